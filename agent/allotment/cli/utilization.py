"""`allotment utilization`: how full networks and blocks are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from allotment.cli import Exit
from allotment.cli.informant import add_places, informant
from allotment.cli.output import Column, show_rows
from allotment.node.inquiries.reports import UtilizationQuery

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from allotment.node.inquiries.reports import BlockUseReport, UseReport

__all__ = ["columns", "configure", "full", "rows", "run"]

_LONG: Final = 10**12


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `utilization`."""
    parser.description = (
        "How full networks and blocks are. FULL counts what can't be handed out now: in\n"
        "use, cooling and reserved. -o wide shows each block, and numbers in full."
    )
    parser.add_argument("--network", default="", metavar="NAME", help="only this network")
    add_places(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Show the numbers.

    Raises:
        AllotmentError: neither agent nor ledger can be asked.
    """
    with informant(arguments) as asked:
        report = asked.utilization(UtilizationQuery(network=arguments.network))
    found = rows(report.networks, blocks=arguments.output != "table")
    empty = f"no network {arguments.network} is known here" if arguments.network else "no network is known here"
    show_rows(found, columns(arguments.output), arguments.output, empty=empty)
    return Exit.NOT_FOUND if arguments.network and not found else Exit.OK


def rows(networks: Iterable[UseReport], *, blocks: bool) -> list[dict[str, Any]]:
    """A row for each network and family, and with `blocks` one for each block below it."""
    found: list[dict[str, Any]] = []
    for use in networks:
        common = {"network": use.network, "family": f"IPv{use.family}", "phase": use.phase.value}
        found.append({**common, "block": None, **_numbers(use)})
        if blocks:
            found += [{**common, "block": block.block, "gives": block.gives, **_numbers(block)} for block in use.blocks]
    return found


def _numbers(use: UseReport | BlockUseReport) -> dict[str, str]:
    return {
        "inUse": use.in_use,
        "cooling": use.cooling,
        "reserved": use.reserved,
        "available": use.available,
        "capacity": use.capacity,
        "full": full(int(use.capacity), int(use.available)),
    }


def full(capacity: int, available: int) -> str:
    """How much of the capacity can't be handed out now, as a percentage that is 0 or 100 only where that is exact."""
    taken = capacity - available
    if capacity == 0 or available <= 0:
        return "100%"
    if taken <= 0:
        return "0%"
    tenths = (taken * 1000 + capacity // 2) // capacity
    if tenths == 0:
        return "<0.1%"
    if tenths == 1000:
        return ">99.9%"
    return f"{tenths // 10}.{tenths % 10}%"


def columns(form: str) -> Sequence[Column]:
    """The columns; numbers too long for a narrow table are rounded there, and nowhere else."""
    text = _rounded if form == "table" else None
    numbers = (("inUse", "IN USE"), ("cooling", "COOLING"), ("reserved", "RESERVED"))
    return (
        Column("network", "NETWORK"),
        Column("family", "FAMILY"),
        Column("block", "BLOCK", wide=True),
        Column("phase", "PHASE", wide=True),
        Column("gives", "GIVES", wide=True),
        *(Column(key, title, right=True, text=text) for key, title in numbers),
        Column("available", "AVAILABLE", right=True, text=text),
        Column("capacity", "CAPACITY", right=True, text=text),
        Column("full", "FULL", right=True),
    )


def _rounded(number: str) -> str:
    return f"{int(number):.1e}".replace("e+", "e") if int(number) >= _LONG else number
