"""What keeps the addresses of virtual machines, and what it needs of the agent; without the API client's weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from allotment.node.attaching.machines import Machines

if TYPE_CHECKING:
    from collections.abc import Callable

    from allotment.addressing.book import LeaseBook
    from allotment.node.attaching.attachments import Attachments
    from allotment.node.view import View
    from allotment.observe.clock import Clock
    from allotment.observe.metrics import Metrics

__all__ = ["VmParts", "Vms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VmParts:
    """What it needs. `waits` says why what there is isn't all known yet; empty once it is."""

    book: LeaseBook
    attachments: Attachments
    clock: Clock
    metrics: Metrics
    node: str
    waits: Callable[[], str]


class Vms(Machines, Protocol):
    """What the agent runs: `allotment.node.vms.keeper` is the one that ships."""

    async def run(self) -> None:
        """End what is kept in vain; never returns."""
        ...

    def take(self, view: View) -> None:
        """A new View, by which is planned already."""
        ...

    def poke(self) -> None:
        """Leases changed."""
        ...
