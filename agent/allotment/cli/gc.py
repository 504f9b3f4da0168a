"""`allotment gc`: free the leases whose owner is gone, on an operator's word, or show which they are."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final

from allotment.addressing.errors import ConfigError
from allotment.cli import Exit
from allotment.cli.informant import add_places, informant
from allotment.cli.leases import columns as lease_columns
from allotment.cli.leases import rows as lease_rows
from allotment.cli.output import Column, show_rows
from allotment.cli.searched import Searched
from allotment.node.inquiries.leftovers import (
    BETWEEN_LOOKS,
    YOUNGEST,
    Candidate,
    confirmed,
    named,
    whose_namespace_is_gone,
)
from allotment.node.inquiries.reports import GcItem, GcQuery, LeasesQuery, time_of
from allotment.node.orphans.evidence import namespace_gone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from allotment.cli.informant import Informant
    from allotment.node.inquiries.reports import LeaseReport

__all__ = ["columns", "configure", "free", "rows", "run"]

_BATCH: Final = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gc`."""
    parser.description = (
        "Free the leases whose owner is gone, or show which they are. Without\n"
        f"--container or --address two looks {BETWEEN_LOOKS:g} s apart decide. Of a pod the agent\n"
        "looks whether the container runtime knows it, where it can ask one; else it is\n"
        "gone when its network namespace is."
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="only show them; this is what happens without --yes")
    mode.add_argument("--yes", action="store_true", help="free them")
    parser.add_argument("--network", default="", metavar="NAME", help="only leases of this network")
    parser.add_argument("--container", default="", metavar="ID", help="the leases of this container, gone or not")
    parser.add_argument("--address", default="", metavar="ADDRESS", help="the pod that has this address, gone or not")
    parser.add_argument(
        "--all-gone", action="store_true", help="believe it when not a single network namespace is there any more"
    )
    parser.add_argument(
        "--force", action="store_true", help="free what --container or --address names even if its namespace is there"
    )
    add_places(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Show, or free.

    Raises:
        ConfigError: the evidence is doubted, or a flag is wrong.
        TryAgain: the agent is down; leases are freed by it alone.
    """
    with informant(arguments) as asked:
        return _run(arguments, asked)


def _run(arguments: argparse.Namespace, asked: Informant) -> Exit:
    by_name = bool(arguments.container or arguments.address)
    if arguments.force and not by_name:
        raise ConfigError("--force goes with --container or --address: it is about leases that you name")

    search = Searched(asked, arguments.network, free=arguments.yes)
    if not by_name:
        search.look()
    lost = "owner" if search.searches else "network namespace"
    none = "fits" if by_name else f"that is {YOUNGEST:g} s old has lost its {lost}"
    empty = f"there is nothing to free: no lease {none}"

    def look() -> tuple[Candidate, ...]:
        query = LeasesQuery(network=arguments.network, container=arguments.container, address=arguments.address)
        # What is to be freed is looked up at the agent; only a look may come from the ledger.
        ask = asked.agents_leases if arguments.yes else asked.leases
        leases = ask(query)
        if arguments.address:
            leases = tuple(whole(leases, ask))
        if by_name:
            return named(leases, namespace_gone, force=arguments.force or not arguments.yes)
        if search.searches:
            leases = tuple(lease for lease in leases if not lease.pod_uid)
        clock = asked.clock
        return whose_namespace_is_gone(
            leases, namespace_gone, boot=clock.boot, seconds=clock.seconds(), believe=arguments.all_gone
        )

    found = look()
    if not arguments.yes:
        found, outcomes = (*search.candidates(), *found), search.outcomes()
        _show(arguments.output, found, asked, outcomes, empty=empty)
        if found and arguments.output in ("table", "wide"):
            print(f"allotment: nothing was freed; --yes frees {_them(len(found))}", file=sys.stderr)
        return Exit.NOT_FOUND if by_name and not found else Exit.OK
    if not by_name and (found or search.undecided):
        print(f"allotment: looking again in {BETWEEN_LOOKS:g} s …", file=sys.stderr)
        asyncio.run(asked.clock.sleep(BETWEEN_LOOKS))
        found = confirmed(found, look()) if found else ()
        if search.undecided:
            search.look()
    outcomes = search.outcomes() | free(found, asked)
    found = (*search.candidates(), *found)
    _show(arguments.output, found, asked, outcomes, empty=empty)
    if by_name and not found:
        return Exit.NOT_FOUND
    return Exit.OK if all(outcome == "freed" for outcome in outcomes.values()) else Exit.PROBLEM


def whole(
    leases: Iterable[LeaseReport], ask: Callable[[LeasesQuery], tuple[LeaseReport, ...]]
) -> Iterator[LeaseReport]:
    """These leases, and what else their attachments hold: a pod has both of its addresses, or none."""
    meant = {(lease.network, lease.container, lease.interface) for lease in leases}
    for network in sorted({network for network, _, _ in meant}):
        for lease in ask(LeasesQuery(network=network)):
            if (lease.network, lease.container, lease.interface) in meant:
                yield lease


def free(candidates: Sequence[Candidate], asked: Informant) -> dict[int, str]:
    """Have the agent free them; says of each, by sequence number, that it was freed or why it was not.

    Raises:
        TryAgain: the agent went away; what was freed until then is in the history.
    """
    outcomes: dict[int, str] = {}
    by_reason: dict[str, list[LeaseReport]] = {}
    for candidate in candidates:
        by_reason.setdefault(candidate.why, []).append(candidate.lease)
    for why, leases in by_reason.items():
        for begin in range(0, len(leases), _BATCH):
            part = leases[begin : begin + _BATCH]
            items = tuple(GcItem(lease.network, lease.address, lease.sequence) for lease in part)
            report = asked.gc(GcQuery(items, detail=why))
            outcomes |= {lease.sequence: "freed" for lease in report.freed}
            kept = {(entry.network, entry.address): entry.why for entry in report.kept}
            for lease in part:
                outcomes.setdefault(lease.sequence, kept.get((lease.network, lease.address), "not freed"))
    return outcomes


def rows(found: Iterable[Candidate], outcomes: Mapping[int, str]) -> list[dict[str, Any]]:
    """Candidates as rows, by network and address, with what became of each (by sequence number)."""
    why = {candidate.lease.sequence: candidate for candidate in found}
    return [
        {**row, "outcome": outcomes.get(row["sequence"]), "why": why[row["sequence"]].why}
        for row in lease_rows(candidate.lease for candidate in why.values())
    ]


def _show(form: str, found: Iterable[Candidate], asked: Informant, outcomes: Mapping[int, str], *, empty: str) -> None:
    of_lease = lease_columns(form, time_of(asked.clock.wall()))
    show_rows(rows(found, outcomes), columns(form, of_lease, freed=bool(outcomes)), form, empty=empty)


def columns(form: str, of_lease: Sequence[Column], *, freed: bool) -> Sequence[Column]:
    """A lease's columns, and what was done with it, or why it may be freed."""
    programs = form in ("json", "yaml")
    left_out = () if form != "table" else ("interface", "given") if freed else ("interface",)
    narrow = [column for column in of_lease if column.key not in left_out]
    outcome = (Column("outcome", "OUTCOME"),) if freed or programs else ()
    return (*narrow, *outcome, Column("why", "WHY", wide=True))


def _them(count: int) -> str:
    return "it" if count == 1 else "them"
