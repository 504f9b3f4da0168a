"""The results as a person reads them (results.md, and printed) and as a program does (results.json)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from bench.figures import Figure, Outcome, Reading

__all__ = ["markdown", "missed", "write"]


def missed(outcome: Outcome) -> list[str]:
    """Each bar that was missed and each problem, as a line."""
    lines = [
        f"{figure.what}: {_number(figure.value)}{_suffix(figure.unit)}, must be {figure.sense} "
        f"{_number(figure.bar)}{_suffix(figure.unit)}" + (f" ({figure.made_of})" if figure.made_of else "")
        for figure in outcome.figures
        if not figure.met
    ]
    return lines + outcome.problems


def markdown(outcome: Outcome, facts: Mapping[str, str]) -> str:
    """The whole report: ratios, then other bars, then what was measured, then the machine."""
    figures = sorted(outcome.figures, key=lambda figure: figure.unit != "x")  # stable: the scenarios' order stays
    parts = ["# Benchmarks", ""]
    parts += _table(("what", "measured", "must be", "", "made of"), "lrrcl", map(_figure_row, figures))
    parts += ["", "## Measured", ""]
    head = ("what", "who", "unit", "median", "p90", "p99", "max", "values")
    parts += _table(head, "lllrrrrr", map(_reading_row, outcome.readings))
    parts += ["", "## Machine", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    wrong = missed(outcome)
    if wrong:
        parts += ["## Missed", "", *(f"- {line}" for line in wrong), ""]
    return "\n".join(parts)


def write(folder: Path, outcome: Outcome, facts: Mapping[str, str]) -> None:
    """Write results.json and results.md."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": dict(facts),
        "figures": [figure.summary() for figure in outcome.figures],
        "readings": [reading.summary() for reading in outcome.readings],
        "problems": outcome.problems,
    }
    (folder / "results.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(markdown(outcome, facts), encoding="utf-8")


def _figure_row(figure: Figure) -> tuple[str, ...]:
    unit = _suffix(figure.unit)
    bar = ("≤ " if figure.sense == "at most" else "≥ ") + _number(figure.bar) + unit
    return figure.what, _number(figure.value) + unit, bar, "yes" if figure.met else "MISSED", figure.made_of


def _reading_row(reading: Reading) -> tuple[str, ...]:
    told = reading.summary()
    numbers = (_number(float(str(told[name]))) for name in ("median", "p90", "p99", "max"))
    return reading.what, reading.who, reading.unit, *numbers, str(told["count"])


def _suffix(unit: str) -> str:
    return unit if unit in {"", "x", "/s"} else f" {unit}"


def _number(value: float) -> str:
    """Three digits that count, and no decimals where they say nothing."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _table(head: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns also line up as plain text; the last column is not padded."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    widths[-1] = len(head[-1])

    def shown(line: Sequence[str]) -> str:
        cells = (
            cell.rjust(width) if where == "r" else cell.ljust(width)
            for cell, width, where in zip(line, widths, align, strict=True)
        )
        return ("| " + " | ".join(cells) + " |").rstrip()

    rule = {"l": "-" * 3, "r": "--:", "c": ":-:"}
    marks = (
        rule[where][:-1] + "-" * (width - 3) + rule[where][-1] if where != "c" else ":" + "-" * (width - 2) + ":"
        for width, where in zip((max(3, width) for width in widths), align, strict=True)
    )
    return [shown(lines[0]), "| " + " | ".join(marks) + " |", *map(shown, lines[1:])]
