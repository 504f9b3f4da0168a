"""`allotment history`: who held an address, and when and why it ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from allotment.cli import Exit
from allotment.cli.informant import add_places, informant
from allotment.cli.leases import add_filters
from allotment.cli.output import Column, show_rows
from allotment.cli.times import Stamp, local, parse_time, short
from allotment.node.inquiries.reports import HistoryQuery, time_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from allotment.node.inquiries.reports import HistoryEntry

__all__ = ["REASONS", "columns", "configure", "rows", "run"]

REASONS: Final = {
    "del": "the runtime deleted the container",
    "workload": "the runtime deleted the pod, by another container ID",
    "spool": "the runtime deleted it while the agent was away",
    "gc": "the runtime's garbage collection no longer listed it",
    "boot": "the machine was restarted",
    "hang-up": "the caller was gone before it had its answer",
    "orphan": "its owner was found to be gone",
    "operator": "an operator freed it",
    "resumed": "its virtual machine was started again, and has it",
    "unkept": "it was no longer kept for its virtual machine",
}
"""What a lease's end is called in a sentence, by the word that the ledger keeps."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `history`."""
    add_filters(parser)
    parser.add_argument("--at", metavar="TIME", help="only who held it then: 14:03, 2026-11-29 14:03, or RFC 3339")
    parser.add_argument("--limit", type=int, default=50, metavar="NUMBER", help="at most so many (default: 50)")
    add_places(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Show the leases that ended and those that are held, the newest event first.

    Raises:
        AllotmentError: a filter is malformed, or neither agent nor ledger can be asked.
    """
    with informant(arguments) as asked:
        now = time_of(asked.clock.wall())
        query = HistoryQuery(
            network=arguments.network,
            address=arguments.address,
            pod=arguments.pod,
            container=arguments.container,
            at=parse_time(arguments.at, now) if arguments.at else None,
            limit=arguments.limit,
        )
        report = asked.history(query)
    if report.past_unknown:
        print(f"allotment: leases that ended are missing here: {report.past_unknown}", file=sys.stderr)
    empty = "nobody held it then" if query.at is not None else "the history knows nothing of it"
    shown = rows(report.entries)
    show_rows(shown, columns(arguments.output, vms=any(row["vm"] for row in shown)), arguments.output, empty=empty)
    if report.cut:
        print(f"allotment: there is more; --limit {query.limit} ends it here", file=sys.stderr)
    if report.past_unknown:
        return Exit.PROBLEM
    return Exit.OK if report.entries else Exit.NOT_FOUND


def rows(entries: Iterable[HistoryEntry]) -> list[dict[str, Any]]:
    """Entries as rows, in their order."""
    return [
        {
            "address": entry.address,
            "network": entry.network,
            "pod": f"{entry.pod_namespace}/{entry.pod}" if entry.pod else "",
            "owner": f"{entry.pod_namespace}/{entry.pod}" if entry.pod else "" if entry.vm else entry.container[:12],
            "given": Stamp(entry.given),
            "ended": Stamp(entry.ended.at) if entry.ended else None,
            "cause": entry.ended.cause if entry.ended else None,
            "detail": entry.ended.detail if entry.ended else None,
            "container": "" if entry.kind == "vm" else entry.container,
            "interface": entry.interface,
            "confName": entry.conf_name,
            "kind": entry.kind,
            "vm": f"{entry.pod_namespace}/{entry.vm}" if entry.vm else "",
            "podUID": entry.pod_uid,
            "sequence": entry.sequence,
        }
        for entry in entries
    ]


def columns(form: str, *, vms: bool = False) -> Sequence[Column]:
    """The columns of an entry; a lease that is held has no end. The VM is there where there are any (`vms`)."""
    machine = (Column("vm", "VM"),) if vms or form in ("json", "yaml") else ()
    when = local if form == "wide" else short
    owner = () if form in ("json", "yaml") else (Column("owner", "OWNER"),)
    return (
        Column("address", "ADDRESS"),
        Column("network", "NETWORK"),
        *owner,
        *machine,
        Column("given", "FROM", text=lambda stamp: when(stamp.time)),
        Column("ended", "UNTIL", text=lambda stamp: when(stamp.time)),
        Column("cause", "WHY"),
        Column("pod", "POD", wide=True),
        Column("container", "CONTAINER", wide=True),
        Column("interface", "INTERFACE", wide=True),
        Column("sequence", "LEASE", wide=True, right=True),
        Column("confName", "CONF NAME", wide=True),
        Column("kind", "KIND", wide=True),
        Column("podUID", "POD UID", wide=True),
        Column("detail", "DETAIL", wide=True),
    )
