"""docs/reference is what the code says, and what the code says is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from allotment.cli import COMMANDS, command_parser, reference, top_parser
from allotment.observe.metric_table import METRICS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_as_generated(name):
    page = ROOT / "docs/reference" / name
    assert page.read_text() == reference.PAGES[name](), "run `make generate`"


def test_the_check_tells_a_page_that_is_out_of_date(tmp_path, capsys):
    assert reference.main(["--check", str(tmp_path)]) == 1
    assert "run `make generate`" in capsys.readouterr().err
    assert reference.main([str(tmp_path)]) == 0
    assert reference.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "metrics.md").write_text("something else")
    assert reference.main(["--check", str(tmp_path)]) == 1


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_commands_help_fits_80_columns(command):
    parser, module = command_parser(command)
    assert module.__doc__
    text = parser.format_help()
    assert max(map(len, text.splitlines())) <= 80
    assert all(action.help for action in parser._actions), "a flag without a word of help"


def test_the_help_of_all_fits_80_columns():
    assert max(map(len, top_parser().format_help().splitlines())) <= 80


@pytest.mark.parametrize("name", [metric.name for metric in METRICS if metric.name != "build_info"])
def test_a_metric_is_counted_or_read_by_somebody(name):
    sources = [path for path in (ROOT / "agent").rglob("*.py") if path.name != "metric_table.py"]
    assert any(f'"{name}"' in path.read_text() for path in sources)


def test_what_the_docs_call_by_name_exists():
    """Metrics, flags and variables that any page or unit mentions are ours."""
    metrics = {metric.full_name for metric in METRICS}
    variables = {setting.variable for setting in reference.SETTINGS}
    unknown = []
    for page in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "systemd").iterdir()]:
        text = page.read_text()
        used = set(re.findall(r"\ballotment_[a-z_]+[a-z]\b", text)) - {"allotment_controller"}
        bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
        unknown += [f"{page.name}: {name}" for name in bases - metrics]
        found = set(re.findall(r"\bALLOTMENT_[A-Z_]+[A-Z]\b", text))
        # The shim's and the build's own are not settings of the agent.
        others = {name for name in found if re.match(r"ALLOTMENT_(SHIM_CC|TIMEOUT_MS)", name)}
        unknown += [f"{page.name}: {name}" for name in found - variables - others]
    assert unknown == []


def test_the_module_is_run_as_the_makefile_does():
    ended = subprocess.run(
        [sys.executable, "-m", "allotment.cli.reference", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
