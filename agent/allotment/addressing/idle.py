"""Runs of resting addresses: one of them, what the ledger knows of it, and a queue by time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from allotment.addressing.address import Address
from allotment.addressing.lease import Moment, Rest

if TYPE_CHECKING:
    from allotment.addressing.address import Prefix

__all__ = ["Idle", "IdleQueue", "Row"]


class Row:
    """What the ledger has as one run while it is in parts here; `open` counts the cuts it doesn't know of."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = 0


class Idle:
    """A run of addresses that rest since `seconds` (the latest of them), on this boot's clock.

    `order` decides between equal times. `origin` and `block` are what the ledger has on file, where that differs:
    the moment, when it was in another boot (I13: the rest started anew at load), and the block that the address was
    given from, when the blocks have been cut anew since. `row` is shared by the parts of a run that was cut.
    """

    __slots__ = ("block", "first", "last", "order", "origin", "row", "seconds", "wall")

    def __init__(
        self, first: int, last: int, seconds: float, *, wall: float, block: Prefix, origin: Moment | None = None
    ) -> None:
        self.first = first
        self.last = last
        self.seconds = seconds
        self.wall = wall
        self.block = block
        self.origin = origin
        self.order = 0
        self.row: Row | None = None

    def __lt__(self, other: Idle) -> bool:
        return self.first < other.first

    def part(self, first: int, last: int) -> Idle:
        """The same rest for a part of the run."""
        part = Idle(first, last, self.seconds, wall=self.wall, block=self.block, origin=self.origin)
        part.order = self.order
        part.row = self.row
        return part

    def tear(self) -> None:
        """Note a cut that the ledger doesn't know of; `mend` when it does, or when the cut is undone."""
        if self.row is None:
            self.row = Row()
        self.row.open += 1

    def mend(self) -> None:
        """One cut less that the ledger doesn't know of."""
        if self.row is not None:
            self.row.open -= 1

    @property
    def torn(self) -> bool:
        """Whether the ledger has this as part of something larger."""
        return self.row is not None and self.row.open > 0

    def rest(self, network: str, boot: str) -> Rest:
        """As the ledger has it."""
        family = self.block.family
        released = self.origin or Moment(boot, self.seconds)
        return Rest(network, self.block, Address(family, self.first), Address(family, self.last), released, self.wall)


class IdleQueue:
    """Idle runs by time; what was removed elsewhere is dropped when it comes up, or when it outweighs the rest."""

    __slots__ = ("_heap", "members")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Idle]] = []
        self.members: dict[int, Idle] = {}  # by first address

    def push(self, idle: Idle) -> None:
        """Add a run."""
        self.members[idle.first] = idle
        self.requeue(idle)

    def requeue(self, idle: Idle) -> None:
        """Put a member into the order again that was skipped."""
        if len(self._heap) > 2 * len(self.members) + 64:
            self._heap = [(each.seconds, each.order, each) for each in self.members.values()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (idle.seconds, idle.order, idle))

    def oldest(self) -> Idle | None:
        """The member that rests longest, of those that weren't skipped."""
        heap = self._heap
        while heap:
            idle = heap[0][2]
            if self.members.get(idle.first) is idle:
                return idle
            heapq.heappop(heap)
        return None

    def skip(self) -> None:
        """Take the oldest out of the order, but not out of the members."""
        heapq.heappop(self._heap)
