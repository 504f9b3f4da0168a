"""What our pages show, taken out of them: the fenced blocks, and the commands that are to be run, in order.

A page is a Markdown file. Conventions, which `tests/repo/test_docs.py` holds:

- ```` ```console run ````: a root shell's session. A line that begins with `# ` is a command (with what a trailing
  backslash or a here-document adds to it), the lines up to the next one are what it prints. Every command is run, and
  prints that; times, ages, sizes and random names may be others, the width of columns too, and a line `…` stands for
  anything. A command that ends in the comment `# exits N` ends so, any other with 0.
- ```` ```console ````: the same, but nobody runs it; the paragraph before it says "not run by our tests".
- `<!-- run … -->`: commands that set the scene and aren't shown.
- ```` ```yaml ````, `json`, `toml`: what the program reads; decoded by the code that reads it.
- ```` ```text ````: messages, each a line; they stand so in the code, with `…` where something is put in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Command", "Fence", "commands", "fences", "pages"]

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"```(\w*) ?(.*)")
_HERE = re.compile(r"<<'?(\w+)'?")
_EXITS = re.compile(r"\s+# exits (\d+)$")
_PROMPT = "# "


@dataclass(frozen=True, slots=True)
class Fence:
    """One block: `line` is that of its first line of text, `before` the paragraph that stands before it."""

    page: Path
    line: int
    language: str
    mark: str
    text: str
    before: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page: what it prints (None: nobody says), and its exit code."""

    line: int
    text: str
    prints: str | None
    code: int = 0


def pages() -> list[Path]:
    """The pages that people read: what is generated and what is decided is tested elsewhere."""
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs/guide").glob("*.md")),
        *sorted((ROOT / "docs/operations").glob("*.md")),
    ]


def fences(page: Path) -> list[Fence]:
    """All blocks of a page. `<!-- run` comments are among them, with the language `hidden`."""
    found: list[Fence] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    before: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.strip() and at and not lines[at - 1].strip():
            before = before if line.startswith(("```", "<!-- run")) else []
        opened = _FENCE.fullmatch(line)
        hidden = line.startswith("<!-- run")
        if opened or hidden:
            begin = at + 1
            end = next(number for number in range(begin, len(lines)) if lines[number] == ("-->" if hidden else "```"))
            text = "\n".join(lines[begin:end]) + "\n"
            language, mark = ("hidden", "run") if opened is None else (opened[1], opened[2])
            found.append(Fence(page, begin + 1, language, mark, text, " ".join(before)))
            at = end
        elif line.strip():
            before.append(line.strip())
        at += 1
    return found


def commands(page: Path) -> list[Command]:
    """What is to be run on a page, in order."""
    found: list[Command] = []
    for fence in fences(page):
        if fence.mark == "run":
            found += _hidden(fence) if fence.language == "hidden" else _session(fence)
    return found


def _hidden(fence: Fence) -> list[Command]:
    return [Command(fence.line, fence.text, None)]


def _session(fence: Fence) -> list[Command]:
    """Commands and what they print."""
    found: list[Command] = []
    lines = fence.text.splitlines()
    at = 0
    while at < len(lines):
        begin = at
        assert lines[at].startswith(_PROMPT), f"{fence}: a command is expected, not {lines[at]!r}"
        at = _end_of_command(lines, at)
        text = "\n".join([lines[begin].removeprefix(_PROMPT), *lines[begin + 1 : at]])
        output = at
        while at < len(lines) and not lines[at].startswith(_PROMPT):
            at += 1
        exits = _EXITS.search(text)
        found.append(Command(fence.line + begin, text, "\n".join(lines[output:at]), int(exits[1]) if exits else 0))
    return found


def _end_of_command(lines: list[str], at: int) -> int:
    """The number of the line after the command that begins on this one."""
    here = _HERE.search(lines[at])
    while lines[at].endswith("\\"):
        at += 1
    if here:
        while lines[at] != here[1]:
            at += 1
    return at + 1
