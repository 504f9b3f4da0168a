"""`allotment explain`: all that is known of an address, a pod or a container, in sentences."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import msgspec

from allotment.addressing.errors import ConfigError
from allotment.cli import Exit
from allotment.cli.explanation import address_sentences, past_sentence
from allotment.cli.informant import add_places, informant
from allotment.cli.output import paint, show_document
from allotment.node.inquiries.kept import read_kept
from allotment.node.inquiries.reports import Subject, time_of
from allotment.node.orphans.evidence import namespace_gone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from allotment.node.inquiries.kept import KeptDel
    from allotment.node.inquiries.reports import ExplainReport

__all__ = ["configure", "known", "run", "text"]

_WIDTH = 79
_PAST = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the argument and flags of `explain`."""
    parser.add_argument(
        "subject",
        metavar="ADDRESS|NAMESPACE/POD|CONTAINER",
        help="an address in any spelling, a pod, or a container ID (4 of its first characters are enough)",
    )
    add_places(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Explain it, or say what to try where nothing is known.

    Raises:
        AllotmentError: it can't be an address, pod or container, or neither agent nor ledger can be asked.
    """
    if not arguments.subject.strip():
        raise ConfigError("there is nothing to explain: name an address, NAMESPACE/POD or a container ID")
    with informant(arguments) as asked:
        report = asked.explain(arguments.subject)
        kept = read_kept(asked.settings.spool_dir)
        now = time_of(asked.clock.wall())
    if not known(report):
        print("\n".join(_nothing(report)), file=sys.stderr)
        return Exit.NOT_FOUND
    show_document(
        msgspec.to_builtins(report),
        arguments.output,
        lambda: text(report, now, kept=kept, gone=namespace_gone, past=None if arguments.output == "wide" else _PAST),
    )
    return Exit.OK


def known(report: ExplainReport) -> bool:
    """Whether anything is known; an address that is in no network here and never was is not."""
    return bool(report.past) or any(facts.network for facts in report.addresses)


def text(
    report: ExplainReport,
    now: datetime,
    *,
    kept: Sequence[KeptDel] = (),
    gone: Callable[[str], bool | None] = namespace_gone,
    past: int | None = _PAST,
) -> str:
    """The explanation for a person; `past` is how many leases that ended are told of (None: all that came)."""
    lines: list[str] = []
    if report.kind is not Subject.ADDRESS:
        lines.append(paint(_headline(report), "bold"))
    for facts in sorted(report.addresses, key=lambda facts: facts.lease is None):
        if lines:
            lines.append("")
        first, *rest = address_sentences(facts, now, kept=kept, gone=gone)
        lines += [paint(line, "bold") for line in textwrap.wrap(first, _WIDTH, break_on_hyphens=False)]
        for sentence in rest:
            lines += textwrap.wrap(
                sentence, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
            )
    lines += _past(report, now, past)
    return "\n".join(lines) + "\n"


def _headline(report: ExplainReport) -> str:
    noun = "Pod" if report.kind is Subject.POD else "Container"
    held = sum(1 for facts in report.addresses if facts.lease is not None)
    if not held:
        return f"{noun} {report.subject} holds no address now."
    return f"{noun} {report.subject} holds {held} address{'es' if held > 1 else ''}."


def _past(report: ExplainReport, now: datetime, limit: int | None) -> list[str]:
    lines: list[str] = []
    told = [facts.last for facts in report.addresses if facts.lease is None] if report.kind is Subject.ADDRESS else []
    past = [entry for entry in report.past if entry not in told]
    shown = past if limit is None else past[:limit]
    if shown:
        lines += ["", "Earlier:"]
        for entry in shown:
            lines += textwrap.wrap(
                past_sentence(entry, now, named=report.kind),
                _WIDTH,
                initial_indent="  - ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
        if len(past) > len(shown):
            lines.append(f"    … `allotment history {_flag(report)}` has more")
    if report.past_unknown:
        lines += ["", f"What was before can't be read now: {report.past_unknown}"]
    return lines


def _flag(report: ExplainReport) -> str:
    return f"--{report.kind.value} {report.subject}"


def _nothing(report: ExplainReport) -> list[str]:
    networks = ", ".join(report.networks) or "none"
    match report.kind:
        case Subject.ADDRESS:
            said = f"{report.subject} is foreign: it lies in no network here ({networks}), and never did."
            tip = "`allotment utilization -o wide` shows which blocks this node has."
        case Subject.POD:
            said = f"Nothing is known of pod {report.subject}: it holds no address here, and none is remembered."
            tip = "Does it run on this node, and is its network one of ours? `allotment leases` shows all pods."
        case _:
            said = f"Nothing is known of a container whose ID is or begins with {report.subject}."
            tip = "For a pod write NAMESPACE/POD. `allotment leases -o wide` shows all container IDs."
    lines = [*textwrap.wrap(f"allotment: {said}", _WIDTH), *textwrap.wrap(tip, _WIDTH)]
    if report.past_unknown:
        lines += textwrap.wrap(f"The history can't be read now: {report.past_unknown}", _WIDTH)
    return lines
