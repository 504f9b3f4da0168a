"""What the program can say: the texts in its source, with `…` where something is put in."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

from handbook.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_said"]


@cache
def _texts() -> tuple[str, ...]:
    found = [text for path in sorted((ROOT / "agent").rglob("*.py")) for text in _of_python(path.read_text())]
    return (*found, _of_c((ROOT / "shim/main.c").read_text()))


def _of_python(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _of_c(source: str) -> str:
    """All literals, those that follow one another joined; what is put in between stands as `…`."""
    return "…".join(re.sub(r'"\s*"', "", group)[1:-1] for group in re.findall(r'(?:"(?:[^"\\]|\\.)*"\s*)+', source))


def is_said(message: str) -> bool:
    """Whether each piece of the message (`…` parts them) stands in one and the same text of the program, in order."""
    pieces = [re.escape(piece.strip()) for piece in message.split("…") if piece.strip()]
    wanted = re.compile(".*?".join(pieces), re.DOTALL)
    return any(wanted.search(" ".join(text.split())) for text in _texts())
