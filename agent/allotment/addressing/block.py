"""`BlockSpace`: the addresses of one block, and which of them goes next.

Every address is in exactly one of three states: never used, resting (`allotment.addressing.resting`), or taken,
which is what remains; so taken addresses need no memory here. Blocked addresses (edges, gateway, exclusions,
reservations) are never handed out automatically and keep their state; `block` may change them at any time.

Numbers are addresses as numbers. Times are seconds of this boot's clock. `since` is now less the cooldown: what was
released at or before it has rested long enough (I3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.idle import Idle
from allotment.addressing.intervals import IntervalSet
from allotment.addressing.numbers import FreeNumbers
from allotment.addressing.resting import LIMIT, Resting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from allotment.addressing.address import Prefix
    from allotment.addressing.lease import Rested

__all__ = ["BlockSpace", "Taken"]

Taken = tuple[int, Idle | None]
"""An address that was taken, and the rest it was taken from: None when it was never used. `undo` wants both."""


class BlockSpace:
    """One block's addresses. Taking and putting back cost the same whatever the block's size and use.

    `limit` is how many rested addresses are remembered one by one.
    """

    __slots__ = ("_blocked", "_fresh", "_limit", "_network", "_resting", "prefix")

    def __init__(self, network: str, prefix: Prefix, boot: str, *, limit: int = LIMIT) -> None:
        self.prefix = prefix
        self._network = network
        self._limit = limit
        self._fresh = FreeNumbers(prefix.value, prefix.value + prefix.size - 1)
        self._resting = Resting(prefix, boot)
        self._blocked: IntervalSet | None = None

    def fill(self, taken: Iterable[int], resting: Iterable[Idle]) -> None:
        """Take in what is known of the block's addresses, before anything else is asked (I15).

        What is taken isn't resting, whatever `resting` says; where rests overlap, the latest counts.
        """
        self._fresh.take_all(taken)
        kept: list[Idle] = []
        for idle in sorted(resting, key=lambda idle: (idle.seconds, idle.order), reverse=True):
            runs = self._fresh.clip(idle.first, idle.last)
            if runs != [(idle.first, idle.last)]:
                idle.tear()  # the ledger has more, and goes on having it
            for first, last in runs:
                self._fresh.take_run(first, last)
                kept.append(idle.part(first, last))
        for idle in reversed(kept):
            self._resting.add(idle)

    def block(self, blocked: IntervalSet) -> None:
        """Set which of the block's addresses may not be handed out automatically; what is taken stays taken."""
        if blocked != self._blocked:
            self._blocked = blocked
            runs = blocked.numbers(self.prefix.family)
            self._fresh.withhold(runs)
            self._resting.block(runs)

    @property
    def taken(self) -> int:
        """How many addresses are taken."""
        return self.prefix.size - self._fresh.count - self._resting.count

    @property
    def blocked(self) -> int:
        """How many addresses may not be handed out automatically."""
        return 0 if self._blocked is None else self._blocked.count()

    def find(self, number: int) -> Idle | None:
        """The rest that an address takes part in, if any."""
        return self._resting.find(number)

    def resting(self) -> Iterable[Idle]:
        """All that rests, in no order."""
        return self._resting

    def cooling(self, since: float) -> int:
        """How many addresses are cooling, blocked ones included. Costs all that rests."""
        return self._resting.cooling(since)

    def take_fresh(self) -> int | None:
        """Take the lowest never-used address; None when none is left to give."""
        return self._fresh.take_lowest()

    def oldest(self) -> Idle | None:
        """The longest idle that is not blocked, cooling or not."""
        return self._resting.oldest()

    def take_oldest(self, since: float) -> Taken | None:
        """Take the longest idle address, if it is no longer cooling."""
        oldest = self._resting.oldest()
        if oldest is None or oldest.seconds > since:
            return None
        idle = self._resting.take_oldest()
        return None if idle is None else (idle.first, idle)

    def take(self, since: float) -> Taken | None:
        """Take the next address: never used, ascending; then the longest idle; None when there is none (I3)."""
        number = self._fresh.take_lowest()
        return self.take_oldest(since) if number is None else (number, None)

    def take_this(self, number: int, since: float) -> Taken | None:
        """Take a given address, blocked or not; None when it is taken or cooling."""
        if self._fresh.take(number):
            return (number, None)
        idle = self._resting.find(number)
        if idle is None or idle.seconds > since:
            return None
        taken = self._resting.take(number)
        return None if taken is None else (number, taken)

    def undo(self, taken: Taken) -> None:
        """Put back what was taken as if it had never been: never used, or to where it rested."""
        number, idle = taken
        if idle is None:
            self._fresh.put(number)
        else:
            self._resting.restore(idle)

    def release(self, idle: Idle) -> None:
        """A taken address begins to rest."""
        self._resting.add(idle)

    def rest_fresh(self, seconds: float, wall: float) -> list[Idle]:
        """Let what was never used, and may be given, rest from `seconds` on, as if released then."""
        fresh = IntervalSet.of_numbers(self.prefix.family, self._fresh.runs())
        runs = (fresh - (self._blocked or IntervalSet())).numbers(self.prefix.family)
        begun = [Idle(first, last, seconds, wall=wall, block=self.prefix) for first, last in runs]
        for idle in begun:
            self._fresh.take_run(idle.first, idle.last)
            self._resting.add(idle)
        return begun

    def foreign(self) -> set[Prefix]:
        """The other blocks under whose names the ledger has some of what rests here."""
        return self._resting.foreign()

    def housekeeping(self, since: float, budget: int) -> list[Rested]:
        """Rests to be written anew or joined, at most about `budget` of them looked at."""
        changes = self._resting.rewrite(self._network, budget)
        if len(changes) < budget:
            changes += self._resting.coalesce(self._network, since, self._limit, budget - len(changes))
        return changes
