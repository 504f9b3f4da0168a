"""How commands show what they found: as a table for people, or as JSON or YAML for programs.

The four forms come from one list of columns, so they can't differ in what they say: `table` shows the columns that
matter most, `wide` shows all, `json` and `yaml` give all under their keys, with the values as they are: numbers, text,
lists and mappings of them, so an address is given as text. The same rows give the same bytes.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Row = Mapping[str, Any]

__all__ = ["Column", "paint", "render_document", "render_rows", "show_document", "show_rows"]

_GAP: Final = "   "
_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the row's key, the title above it, and whether only `wide` shows it.

    `right` sets numbers flush right. `text` turns a value into what a person reads; programs get the value itself.
    """

    key: str
    title: str
    wide: bool = False
    right: bool = False
    text: Callable[[Any], str] | None = None


def show_rows(rows: Sequence[Row], columns: Sequence[Column], form: str, *, empty: str = "nothing to show") -> None:
    """Print `rows` on standard output in this form; `empty` is said, on standard error, in place of an empty table."""
    if not rows and form in ("table", "wide"):
        print(empty, file=sys.stderr)
        return
    print(render_rows(rows, columns, form), end="")


def show_document(document: Mapping[str, Any], form: str, text: Callable[[], str]) -> None:
    """Print one thing on standard output: as JSON or YAML, or in the words that `text` makes for a person."""
    print(render_document(document, form, text), end="")


def render_rows(rows: Sequence[Row], columns: Sequence[Column], form: str) -> str:
    """`rows` as text, ending in a line break; a key that a row lacks is null, or a dash in a table."""
    if form in ("json", "yaml"):
        return _structured([{column.key: row.get(column.key) for column in columns} for row in rows], form)
    shown = [column for column in columns if form == "wide" or not column.wide]
    cells = [[column.title for column in shown]]
    cells += [[_cell(column, row.get(column.key)) for column in shown] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(shown))]
    lines = (
        _GAP.join(
            text.rjust(width) if column.right else text.ljust(width)
            for column, text, width in zip(shown, line, widths, strict=True)
        )
        for line in cells
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def render_document(document: Mapping[str, Any], form: str, text: Callable[[], str]) -> str:
    """One thing as text, ending in a line break."""
    if form in ("json", "yaml"):
        return _structured(dict(document), form)
    found = text()
    return found if found.endswith("\n") else f"{found}\n"


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    """`text` in a style (bold, dim, red, green, yellow) where `stream` is a terminal that wants colour."""
    stream = sys.stdout if stream is None else stream
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def _structured(value: object, form: str) -> str:
    if form == "json":
        return json.dumps(value, indent=2) + "\n"
    import yaml  # noqa: PLC0415  # 10 ms that only this form needs

    plain = json.loads(json.dumps(value))  # enumerations and tuples as JSON has them
    return str(yaml.safe_dump(plain, sort_keys=False, default_flow_style=False, width=1000))


def _cell(column: Column, value: Any) -> str:
    """A value as one line that can't move the cursor, whoever chose the name in it."""
    if value is None or value == "" or value in ([], ()):
        return "-"
    if column.text is not None:
        text = column.text(value)
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, list | tuple):
        text = ",".join(map(str, value))
    else:
        text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
