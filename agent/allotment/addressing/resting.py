"""`Resting`: the addresses of one block that were used before and are not in use now.

Each released address is remembered by itself, with its time, so that the longest idle goes first (I3). For a block
that lives long that must end somewhere: above a limit, the longest idle ones that are no longer cooling are joined
into runs, which forget the order inside and count as old as their youngest. What is cooling is never joined, since
that would make it cool for longer.

What is decided here reaches the disk later or never, so runs are cut before the ledger knows of it. Until it does, or
the cut is undone, the parts are left alone: a `Rested` always names whole runs as the ledger has them.

Blocked addresses (excluded, reserved) rest like any other; when one comes up first it is set aside until what is
blocked changes, so that it is looked at once and not for every request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from allotment.addressing.idle import Idle, IdleQueue
from allotment.addressing.lease import Rested

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from allotment.addressing.address import Prefix

__all__ = ["LIMIT", "Resting"]

LIMIT = 16_384
"""How many addresses a block remembers one by one before the oldest are joined into runs."""

_BEYOND = 1 << 130  # above every address's number


class Resting:
    """See the module's text. `count` is the number of addresses resting, blocked ones included."""

    __slots__ = ("_aside", "_blocked", "_boot", "_firsts", "_next", "_prefix", "_rewrite", "_runs", "_singles", "count")

    def __init__(self, prefix: Prefix, boot: str) -> None:
        self._prefix = prefix
        self._boot = boot
        self._singles = IdleQueue()
        self._runs = IdleQueue()
        self._firsts: list[int] = []  # of the runs, ascending
        self._aside: list[tuple[IdleQueue, Idle]] = []
        self._blocked: Sequence[tuple[int, int]] = ()
        self._rewrite: list[Idle] = []
        self._next = 0
        self.count = 0

    def __iter__(self) -> Iterator[Idle]:
        yield from self._singles.members.values()
        yield from self._runs.members.values()

    def find(self, number: int) -> Idle | None:
        """The rest that an address takes part in."""
        idle = self._singles.members.get(number)
        return idle if idle is not None else self._run_at(number)

    def block(self, blocked: Sequence[tuple[int, int]]) -> None:
        """Set which addresses may not be handed out: ascending, disjoint runs that don't touch."""
        self._blocked = blocked
        for queue, idle in self._aside:
            if queue.members.get(idle.first) is idle:
                queue.requeue(idle)
        self._aside.clear()

    def add(self, idle: Idle) -> None:
        """An address, or a run, begins to rest."""
        idle.order = self._next
        self._next += 1
        self._insert(idle)

    def restore(self, idle: Idle) -> None:
        """Put back what `take` or `take_oldest` gave, to where it was in the order and into the run it was cut from."""
        if idle.row is None:
            self._insert(idle)
            return
        idle.mend()
        first, last = idle.first, idle.last
        before, after = self.find(first - 1), self.find(last + 1)
        if before is not None and before.row is idle.row:
            first = before.first
            self._remove(before)
        if after is not None and after.row is idle.row:
            last = after.last
            self._remove(after)
        self._insert(idle.part(first, last))

    def oldest(self) -> Idle | None:
        """The longest idle run that has an address to hand out, whatever its cooldown says."""
        while True:
            queue, idle = self._front()
            if idle is None or self._open(idle) is not None:
                return idle
            queue.skip()
            self._aside.append((queue, idle))

    def take_oldest(self) -> Idle | None:
        """Take one address of the longest idle run, whatever its cooldown says.

        Within a run, whose order is forgotten, the highest goes first: that leaves the rest of the run as it is.
        """
        idle = self.oldest()
        number = None if idle is None else self._open(idle)
        return None if number is None else self.take(number)

    def take(self, number: int) -> Idle | None:
        """Take this address, blocked or not; None when it isn't resting.

        When the taking is on disk, or undone, call `mend` of what it gave, or `restore` with it.
        """
        idle = self.find(number)
        if idle is None:
            return None
        if idle.first == idle.last:
            self._remove(idle)
            if idle.row is not None:
                idle.tear()
            return idle
        idle.tear()
        self.count -= 1
        if number < idle.last:
            above = idle.part(number + 1, idle.last)
            self._add_run(above)
            self._note_outdated(above)
        if number > idle.first:
            idle.last = number - 1
        else:
            self._drop_run(idle)
        return idle.part(number, number)

    def cooling(self, since: float) -> int:
        """How many addresses were released after `since`."""
        return sum(idle.last - idle.first + 1 for idle in self if idle.seconds > since)

    def rewrite(self, network: str, budget: int) -> list[Rested]:
        """Bring the ledger's text up to date where it names another boot or another block; at most `budget`."""
        changes: list[Rested] = []
        torn: list[Idle] = []
        while self._rewrite and len(changes) < budget:
            idle = self._rewrite.pop()
            if not self._outdated(idle):
                continue
            if idle.torn:
                torn.append(idle)
                continue
            before = idle.rest(network, self._boot)
            idle.origin = None
            idle.block = self._prefix
            changes.append(Rested((before,), idle.rest(network, self._boot)))
        self._rewrite.extend(torn)
        return changes

    def foreign(self) -> set[Prefix]:
        """The other blocks under whose names some of this is on file."""
        return {idle.block for idle in self._rewrite if self._outdated(idle)} - {self._prefix}

    def _outdated(self, idle: Idle) -> bool:
        here = self.find(idle.first) is idle
        return here and (idle.origin is not None or idle.block != self._prefix)

    def coalesce(self, network: str, since: float, limit: int, budget: int) -> list[Rested]:
        """Join the longest idle into runs, down to `limit` remembered one by one, looking at most at `budget`.

        Only what was released at `since` or before is joined (what is cooling isn't).
        """
        moved: list[Idle] = []
        while len(self._singles.members) > limit and len(moved) < budget:
            idle = self._singles.oldest()
            if idle is None or idle.seconds > since or idle.torn:
                break
            self._singles.skip()
            del self._singles.members[idle.first]
            moved.append(idle)
        moved.sort()
        changes: list[Rested] = []
        at = 0
        while at < len(moved):
            group = [moved[at]]
            left = self._ending_at(moved[at].first - 1)
            if left is not None and left.seconds <= since and not left.torn:
                group.insert(0, left)
            at += 1
            while True:
                wanted = group[-1].last + 1
                if at < len(moved) and moved[at].first == wanted:
                    group.append(moved[at])
                    at += 1
                    continue
                right = self._runs.members.get(wanted)
                if right is None or right.seconds > since or right.torn:
                    break
                group.append(right)
            changes.extend(self._join(network, group))
        return changes

    def _join(self, network: str, group: list[Idle]) -> list[Rested]:
        if len(group) == 1:
            self._add_run(group[0])
            return []
        before = tuple(idle.rest(network, self._boot) for idle in group)
        for idle in group:
            if self._runs.members.get(idle.first) is idle:
                self._drop_run(idle)
        youngest = max(group, key=lambda idle: (idle.seconds, idle.order))
        joined = Idle(group[0].first, group[-1].last, youngest.seconds, wall=youngest.wall, block=self._prefix)
        joined.order = youngest.order
        self._add_run(joined)
        return [Rested(before, joined.rest(network, self._boot))]

    def _insert(self, idle: Idle) -> None:
        if idle.first == idle.last:
            self._singles.push(idle)
        else:
            self._add_run(idle)
        self.count += idle.last - idle.first + 1
        self._note_outdated(idle)

    def _note_outdated(self, idle: Idle) -> None:
        if idle.origin is not None or idle.block != self._prefix:
            self._rewrite.append(idle)

    def _remove(self, idle: Idle) -> None:
        self.count -= idle.last - idle.first + 1
        if self._singles.members.get(idle.first) is idle:
            del self._singles.members[idle.first]
        else:
            self._drop_run(idle)

    def _add_run(self, idle: Idle) -> None:
        insort(self._firsts, idle.first)
        self._runs.push(idle)

    def _drop_run(self, idle: Idle) -> None:
        del self._firsts[bisect_left(self._firsts, idle.first)]
        del self._runs.members[idle.first]

    def _run_at(self, number: int) -> Idle | None:
        index = bisect_right(self._firsts, number) - 1
        if index < 0:
            return None
        idle = self._runs.members[self._firsts[index]]
        return idle if idle.last >= number else None

    def _ending_at(self, number: int) -> Idle | None:
        idle = self._run_at(number)
        return idle if idle is not None and idle.last == number else None

    def _front(self) -> tuple[IdleQueue, Idle | None]:
        single, run = self._singles.oldest(), self._runs.oldest()
        if run is None or (single is not None and (single.seconds, single.order) < (run.seconds, run.order)):
            return self._singles, single
        return self._runs, run

    def _open(self, idle: Idle) -> int | None:
        """The highest address of the run that isn't blocked."""
        index = bisect_right(self._blocked, (idle.last, _BEYOND)) - 1
        if index < 0 or self._blocked[index][1] < idle.last:
            return idle.last
        below = self._blocked[index][0] - 1
        return below if below >= idle.first else None
