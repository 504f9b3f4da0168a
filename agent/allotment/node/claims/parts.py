"""What the asking for addresses by Claim is made of, and needs of the agent; without the API client's weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from allotment.node.attaching.picker import Picker

if TYPE_CHECKING:
    from collections.abc import Callable

    from allotment.addressing.book import LeaseBook
    from allotment.node.attaching.attachments import Attachments
    from allotment.node.view import View
    from allotment.observe.clock import Clock
    from allotment.observe.metrics import Metrics

__all__ = ["ClaimParts", "Claims"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimParts:
    """What it needs. `limit` is how many seconds an ADD waits at most; `waits` says why leases aren't all known yet."""

    book: LeaseBook
    attachments: Attachments
    clock: Clock
    metrics: Metrics
    node: str
    ledger_id: str
    limit: float
    waits: Callable[[], str]


class Claims(Picker, Protocol):
    """What the agent runs: `allotment.node.claims.desk` is the one that ships."""

    async def run(self) -> None:
        """Keep Claims and leases in step; never returns."""
        ...

    def take(self, view: View) -> None:
        """A new View."""
        ...

    def poke(self) -> None:
        """Leases changed."""
        ...

    def role(self, claim: str) -> str:
        """What the Claim `namespace/name` is to its VM's address, Active or Standby; empty if that isn't known."""
        ...
