"""The command line itself: what is found, what is refused, with which exit code, and that little is loaded."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest

from allotment import __version__, cli
from allotment.addressing.errors import ConfigError, DecodeError, Exhausted, LedgerUnavailable
from allotment.cli import COMMANDS, Exit, main


def test_without_a_command_the_help_lists_all_commands(capsys):
    assert main([]) == Exit.OK
    out = capsys.readouterr().out
    assert all(f"  {command.name} " in out and command.help in out for command in COMMANDS)


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"allotment {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["statsu"], "there is no command 'statsu'; did you mean status?"),
        (["qqq"], "there is no command 'qqq'\n"),
        (["-o", "xml", "status"], "invalid choice: 'xml'"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["install-cni", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["install-cni", "--no-conf", "--conf-dir", "/x"], "not allowed with"),
        (["install-cni", "--wait", "nan"], "'nan' is no number of seconds"),
    ],
)
def test_a_wrong_command_line_is_refused_with_what_is_wrong(capsys, argv, said):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == Exit.USAGE
    assert said in capsys.readouterr().err


class Probe:
    """A sub-command that records what it is given and ends as it is told."""

    def __init__(self, end: BaseException | Exit = Exit.OK) -> None:
        self.end = end
        self.arguments = argparse.Namespace()

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", nargs="?")

    def run(self, arguments: argparse.Namespace) -> Exit:
        self.arguments = arguments
        if isinstance(self.end, BaseException):
            raise self.end
        return self.end


@pytest.fixture
def probe(monkeypatch):
    command = Probe()
    monkeypatch.setitem(sys.modules, "allotment.cli.probe", command)
    monkeypatch.setattr(cli, "COMMANDS", (*COMMANDS, cli.Command("probe", "probe", "look")))
    return command


@pytest.mark.parametrize(
    ("argv", "form"),
    [
        (["probe"], "table"),
        (["-o", "json", "probe"], "json"),
        (["probe", "-o", "yaml"], "yaml"),
        (["-o", "json", "probe", "x", "--output=wide"], "wide"),
    ],
)
def test_the_form_may_be_said_before_or_after_the_command(probe, argv, form):
    assert main(argv) == Exit.OK
    assert probe.arguments.output == form


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (Exit.PROBLEM, 1),
        (Exit.NOT_FOUND, 4),
        (ConfigError("the place: the reason", "more"), 2),
        (LedgerUnavailable("the place: the reason", "more"), 3),
        (Exhausted("the place: the reason", "more"), 1),
        (DecodeError("the place: the reason", "more"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_how_a_command_ends_is_the_exit_code(probe, capsys, end, code):
    probe.end = end
    assert main(["probe"]) == code
    err = capsys.readouterr().err
    assert err == ("allotment: the place: the reason\nmore\n" if isinstance(end, Exception) else "")


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_the_help_loads_none_of_what_commands_need():
    found = run(
        "import sys; from allotment.cli import main; main([]);"
        "print([m for m in ('asyncio','yaml','msgspec','structlog','sqlite3','pyroute2','h11') if m in sys.modules])"
    )
    assert found.stdout.splitlines()[-1] == "[]", found.stderr


def test_a_reader_that_stops_reading_is_no_error():
    program = (
        "import sys, types; from allotment import cli; probe = types.ModuleType('probe');"
        "probe.configure = lambda parser: None; probe.run = lambda arguments: print('x' * 1_000_000) or 0;"
        "sys.modules['allotment.cli.probe'] = probe; cli.COMMANDS = (cli.Command('probe', 'probe', 'look'),);"
        "sys.exit(cli.main(['probe']))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as file:
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=file, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (ended.returncode, ended.stderr) == (0, b"")
