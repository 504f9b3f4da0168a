"""`allotment doctor`: compares memory, disk and kernel, and says what is wrong and what to do. Changes nothing."""

from __future__ import annotations

import asyncio
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from allotment.cli import Exit
from allotment.cli.explanation import as_sentence
from allotment.cli.informant import informant
from allotment.cli.output import paint, show_document
from allotment.node.doctor.examination import Examination, Examined
from allotment.node.doctor.findings import Finding, Severity
from allotment.node.doctor.house import plugin_findings
from allotment.node.inquiries.reports import LeasesQuery, StatusQuery, StatusReport
from allotment.node.settings import add_arguments

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "run", "text"]

_WIDTH = 79
_SHOWN = 10
_MARKS = {Severity.PROBLEM: ("!", "red"), Severity.WARNING: ("-", "yellow"), Severity.NOTE: ("·", "dim")}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `doctor`."""
    parser.description = (
        "Compare the agent's memory, the ledger on disk, and the addresses in the pods'\n"
        "network namespaces. Works with the agent down. Changes nothing; exits 1 when\n"
        "something is wrong."
    )
    parser.add_argument("--bin-dir", type=Path, metavar="DIR", help="also look at the CNI plugin in this folder")
    add_arguments(parser, ("socket", "state_dir", "node", "netns_dir", "cni_cache_dir", "ballast_mib", "config"))


def run(arguments: argparse.Namespace) -> Exit:
    """Examine, and tell.

    Raises:
        AllotmentError: a setting is malformed, or the agent answers what can't be read.
    """
    with informant(arguments) as asked:
        examination = Examination(
            asked.settings,
            asked.clock,
            status=lambda: asked.ask("status", StatusQuery(), StatusReport),
            memory=lambda: asked.agents_leases(LeasesQuery()),
        )
        examined = asyncio.run(examination.run())
    if arguments.bin_dir is not None:
        examined = _with_plugin(examined, arguments.bin_dir)
    show_document(msgspec.to_builtins(examined), arguments.output, lambda: text(examined))
    wrong = any(finding.severity is Severity.PROBLEM for finding in examined.findings)
    return Exit.PROBLEM if wrong else Exit.OK


def _with_plugin(examined: Examined, folder: Path) -> Examined:
    from allotment.cli.install import PLUGIN_NAME, shim_of_this_machine  # noqa: PLC0415  # only where it is asked for

    found = (*examined.findings, *plugin_findings(folder.absolute(), PLUGIN_NAME, shim_of_this_machine()))
    order = list(Severity)
    ordered = tuple(sorted(found, key=lambda finding: order.index(finding.severity)))
    return msgspec.structs.replace(examined, checked=(*examined.checked, "plugin"), findings=ordered)


def text(examined: Examined) -> str:
    """What was examined, for a person: findings first."""
    lines: list[str] = []
    shown: Counter[str] = Counter()
    for finding in examined.findings:
        shown[finding.check] += 1
        if shown[finding.check] <= _SHOWN:
            lines += [*_finding(finding), ""]
    for check, count in shown.items():
        if count > _SHOWN:
            lines += [f"  … and {count - _SHOWN} more like these ({check}); -o json has all", ""]
    counts = {severity: sum(1 for f in examined.findings if f.severity is severity) for severity in Severity}
    said = ", ".join(
        f"{count} {severity.value}{'s' if count != 1 else ''}" for severity, count in counts.items() if count
    )
    lines += _wrapped("checked    ", ", ".join(examined.checked))
    for skipped in examined.skipped:
        lines += _wrapped("skipped    ", f"{skipped.check}: {skipped.why}")
    verdict = f"found      {said}" if said else "found      nothing wrong"
    lines.append(paint(verdict, "red" if counts[Severity.PROBLEM] else "yellow" if said else "green"))
    return "\n".join(lines) + "\n"


def _finding(finding: Finding) -> list[str]:
    mark, style = _MARKS[finding.severity]
    return [
        *(paint(line, style) for line in _wrapped(f"{mark} ", f"{finding.severity.value}: {finding.where}")),
        *_wrapped("  ", as_sentence(finding.what)),
        *_wrapped("  ", as_sentence(f"to do: {finding.advice}")),
    ]


def _wrapped(head: str, body: str) -> list[str]:
    indent = " " * len(head)
    return textwrap.wrap(body, _WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)
