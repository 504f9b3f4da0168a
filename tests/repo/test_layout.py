"""The repository keeps to its own rules: short modules, plain names, nothing of one machine, nothing half-done."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent/allotment", "controller/allotment_controller")
DRAWERS = {"utils", "util", "common", "helpers", "helper", "constants", "misc", "tools"}


@cache
def tracked() -> tuple[Path, ...]:
    """What git has, or, where the tree came without git, what is there less what is built."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    else:
        built = {".venv", "build", "dist", "_shim", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache"}
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if not built & set(path.parts)]
    return tuple(ROOT / name for name in names if (ROOT / name).is_file())


def modules(*folders: str) -> list[Path]:
    roots = [ROOT / folder for folder in folders]
    return [path for path in tracked() if path.suffix == ".py" and any(path.is_relative_to(root) for root in roots)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_look_at():
    assert len(modules(*PACKAGES)) > 20
    assert len(modules("tests")) > 20


def test_no_module_is_too_long_to_read():
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in modules(*PACKAGES, "shim")}
    assert {name: length for name, length in lengths.items() if length > 500} == {}
    assert sum(length > 250 for length in lengths.values()) < len(lengths) / 4


def test_no_function_is_over_a_screen():
    long = {}
    for path in modules(*PACKAGES, "shim"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 80:
                    long[f"{name_of(path)}: {node.name}"] = length
    assert long == {}


def test_no_module_is_a_drawer():
    assert [name_of(path) for path in modules(*PACKAGES, "tests") if path.stem in DRAWERS] == []


def test_every_module_says_what_it_is_for():
    assert [name_of(path) for path in modules(*PACKAGES) if not ast.get_docstring(ast.parse(path.read_text()))] == []


# Spelled so that this file doesn't find itself.
HALF_DONE = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|\bfor n" r"ow\b")
MACHINES = re.compile(
    r"(?<![\w.])/(?:wo"
    r"rk/|ro"
    r"ot/|ho"
    r"me/\w)|\.(?:internal|lan|corp)(?:[:/]|\b(?=\s))"
    r"|\b(?:registry|mirror|proxy)\.\w+\.\w+"
)


@pytest.mark.parametrize(("what", "pattern"), [("half-done", HALF_DONE), ("of one machine", MACHINES)])
def test_nothing_tracked_is(what, pattern):
    found = []
    for path in tracked():
        if path.name in ("LICENSE", "go.sum"):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        lines = enumerate(text.splitlines(), 1)
        found += [f"{name_of(path)}:{number}: {line.strip()[:100]}" for number, line in lines if pattern.search(line)]
    assert found == [], what


def test_each_exception_from_a_check_gives_its_reason():
    """`# noqa: X  # the reason`, in what ships; tests may be silenced for what their name says."""
    silenced = re.compile(r"# (?:ruff: noqa|noqa|type: ignore|pragma)[^#]*")
    bare = [
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path in modules(*PACKAGES, "shim")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := silenced.search(line)) and not re.match(r"#\s*\S", line[found.end() :])
    ]
    assert bare == []


def test_the_files_a_project_has_are_there():
    for name in "README.md", "LICENSE", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "Makefile", ".ci/run":
        assert (ROOT / name).stat().st_size > 0, name
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changes


def test_links_between_our_pages_lead_somewhere():
    links = [
        (page, target)
        for page in tracked()
        if page.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"`[^`]*`", "", page.read_text()))
        if "://" not in target and not target.startswith("mailto:")
    ]
    assert [f"{name_of(page)}: {target}" for page, target in links if not (page.parent / target).exists()] == []


def test_decisions_are_numbered_one_by_one():
    names = sorted(path.name for path in tracked() if path.parent == ROOT / "docs/decisions")
    numbers = [int(name[:4]) for name in names]
    assert numbers
    assert len(set(numbers)) == len(numbers)
