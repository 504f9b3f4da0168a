"""`python -m bench.readme`: puts the figures of the last `make bench` into README.md, between its two marks.

Only a whole run counts, on a machine that nobody else used, in which no call failed: figures of another kind tell of
the machine and not of the program. A bar that was missed is shown as missed, with what the figure is made of. Run it
with PYTHONPATH=tests; exit code 1 when nothing was written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BEGIN", "END", "UnfitError", "filled", "main"]

ROOT: Final = Path(__file__).resolve().parents[2]
BEGIN: Final = "<!-- figures -->"
END: Final = "<!-- end of figures -->"
_SCENARIOS: Final = {
    "size",
    "add",
    "del",
    "throughput",
    "replace",
    "start",
    "memory",
    "growth",
    "pods",
    "drain",
    "idle",
    "foreign",
}


class UnfitError(Exception):
    """These results don't belong into a README; the text says why."""


def filled(page: str, results: Mapping[str, Any]) -> str:
    """The page with the figures of these results (the content of results.json) between its marks.

    Raises:
        UnfitError: the page has no marks, or the results are not fit to be shown.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise UnfitError(f"the page has no {BEGIN} with {END} behind it")
    return f"{head}{BEGIN}\n{_figures(results)}{END}{tail}"


def _figures(results: Mapping[str, Any]) -> str:
    machine, figures = results["machine"], results["figures"]
    missing = _SCENARIOS - {figure["scenario"] for figure in figures}
    if missing:
        raise UnfitError(f"the run was not whole: {', '.join(sorted(missing))} is missing")
    if "quick" in machine["run"] or "beware" in machine:
        raise UnfitError(f"the run was quick, or others used the machine ({machine['run']})")
    if results["problems"]:
        raise UnfitError(f"not all went well: {'; '.join(results['problems'])}")
    lines = ["", "| what | measured | must be | |", "|---|--:|--:|---|"]
    missed: list[str] = []
    for figure in figures:
        value, bar = (_shown(figure[key], figure["unit"]) for key in ("value", "bar"))
        lines.append(f"| {figure['what']} | {value} | {figure['sense']} {bar} | {'' if figure['met'] else 'missed'} |")
        if not figure["met"]:
            missed.append(f"- {figure['what']}: {figure['made_of'] or 'nothing more is known'}.")
    where = ", ".join(machine[key] for key in ("processor", "state folder", "kernel", "Python"))
    lines += ["", f"Measured on: {where}.", ""]
    if missed:
        lines += ["What the missed ones are made of:", "", *missed, ""]
    return "\n".join(lines)


def _shown(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
    return number + (unit if unit in {"", "x", "/s"} else f" {unit}")


def main() -> int:
    """Write README.md, or say why not."""
    readme, results = ROOT / "README.md", ROOT / "build/bench/results.json"
    try:
        content = json.loads(results.read_text(encoding="utf-8"))
        readme.write_text(filled(readme.read_text(encoding="utf-8"), content), encoding="utf-8")
    except (OSError, UnfitError) as error:
        print(f"bench: README.md is as it was: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
