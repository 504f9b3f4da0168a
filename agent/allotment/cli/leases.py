"""`allotment leases`: who holds which address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allotment.addressing.address import parse_address
from allotment.cli import Exit
from allotment.cli.informant import add_places, informant
from allotment.cli.output import Column, show_rows
from allotment.cli.times import Stamp, local
from allotment.node.inquiries.reports import LeasesQuery, time_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from allotment.node.inquiries.reports import LeaseReport

__all__ = ["add_filters", "columns", "configure", "rows", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `leases`."""
    add_filters(parser)
    add_places(parser)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose leases; all that are given must fit."""
    parser.add_argument("--network", default="", metavar="NAME", help="only those of this network")
    parser.add_argument("--pod", default="", metavar="NAMESPACE/POD", help="only those of this pod")
    parser.add_argument(
        "--container", default="", metavar="ID", help="only those of this container; its first characters are enough"
    )
    parser.add_argument("--address", default="", metavar="ADDRESS", help="only this address, in any spelling")


def run(arguments: argparse.Namespace) -> Exit:
    """Show the leases.

    Raises:
        AllotmentError: a filter is malformed, or neither agent nor ledger can be asked.
    """
    query = LeasesQuery(
        network=arguments.network, pod=arguments.pod, container=arguments.container, address=arguments.address
    )
    with informant(arguments) as asked:
        found = asked.leases(query)
        now = time_of(asked.clock.wall())
    filtered = query != LeasesQuery()
    shown = rows(found)
    show_rows(
        shown,
        columns(arguments.output, now, vms=any(row["vm"] for row in shown)),
        arguments.output,
        empty="no lease fits" if filtered else "no address is held on this node",
    )
    return Exit.NOT_FOUND if filtered and not found else Exit.OK


def rows(leases: Iterable[LeaseReport]) -> list[dict[str, Any]]:
    """Leases as rows, by network and address."""
    ordered = sorted(leases, key=lambda lease: (lease.network, parse_address(lease.address), lease.interface))
    return [
        {
            "address": lease.address,
            "network": lease.network,
            "pod": f"{lease.pod_namespace}/{lease.pod}" if lease.pod else "",
            "container": "" if lease.kind == "vm" else lease.container,
            "interface": lease.interface,
            "given": Stamp(lease.given),
            "block": lease.block,
            "confName": lease.conf_name,
            "kind": lease.kind,
            "vm": f"{lease.pod_namespace}/{lease.vm}" if lease.vm else "",
            "sequence": lease.sequence,
            "podUID": lease.pod_uid,
            "netns": lease.netns,
        }
        for lease in ordered
    ]


def columns(form: str, now: datetime, *, vms: bool = False) -> Sequence[Column]:
    """The columns of a lease: the age in a table, all of it in the wide one; the VM where there are any (`vms`)."""
    wide = form == "wide"
    machine = (Column("vm", "VM"),) if vms or form in ("json", "yaml") else ()
    return (
        Column("address", "ADDRESS"),
        Column("network", "NETWORK"),
        Column("pod", "POD"),
        *machine,
        Column("container", "CONTAINER", text=None if wide else lambda text: str(text)[:12]),
        Column("interface", "INTERFACE"),
        Column("given", "GIVEN" if wide else "AGE", text=lambda given: local(given.time) if wide else given.age(now)),
        Column("block", "BLOCK", wide=True),
        Column("confName", "CONF NAME", wide=True),
        Column("kind", "KIND", wide=True),
        Column("sequence", "LEASE", wide=True, right=True),
        Column("podUID", "POD UID", wide=True),
        Column("netns", "NAMESPACE PATH", wide=True),
    )
