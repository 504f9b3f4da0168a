"""`BlockCutter`: cuts a subnet into blocks of one size, lowest first (standalone, `allotment plan`, the controller).

It counts blocks, not addresses, and keeps free ones as runs: finding the last free block of a /8 cut into /32s,
or of an IPv6 /32 cut into /64s, is one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.address import Family, Prefix
from allotment.addressing.edges import has_edges
from allotment.addressing.errors import ConfigError
from allotment.addressing.intervals import IntervalSet
from allotment.addressing.numbers import FreeNumbers

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BlockCutter"]


class BlockCutter:
    """The blocks of prefix length `length` in a subnet: which are free, and the next one to give.

    Two kinds of addresses are left out, and may be changed at any time with `leave_out`: a block that touches
    `forbidden` (a Service range, somebody else's prefix) is never cut; a block all of whose addresses are `reserved`
    (excluded, or in an IPReservation) would have nothing to give and is passed over.

    Raises:
        ConfigError: blocks of that length don't fit into the subnet.
    """

    def __init__(
        self,
        subnet: Prefix,
        length: int,
        *,
        forbidden: IntervalSet | None = None,
        reserved: IntervalSet | None = None,
    ) -> None:
        if not subnet.length <= length <= subnet.family.bits:
            raise ConfigError(
                f"subnet {subnet} can't be cut into blocks of /{length}: "
                f"give a prefix length from {subnet.length} to {subnet.family.bits}"
            )
        self.subnet = subnet
        self.length = length
        self._size = 1 << (subnet.family.bits - length)
        self._total = subnet.size // self._size
        self._free = FreeNumbers(0, self._total - 1)
        self._left_out: tuple[tuple[int, int], ...] = ()
        self.leave_out(forbidden or IntervalSet(), reserved or IntervalSet())

    def leave_out(self, forbidden: IntervalSet, reserved: IntervalSet) -> None:
        """Set what is left out from now on; blocks that were cut before stay cut."""
        family = self.subnet.family
        runs = [self._touched(run) for run in forbidden.within(self.subnet).numbers(family)]
        for run in reserved.within(self.subnet).numbers(family):
            covered = self._covered(run)
            if covered is not None:
                runs.append(covered)
        # Block numbers are joined like addresses; IPv6 has room for any number of blocks.
        self._left_out = IntervalSet.of_numbers(Family.V6, runs).numbers(Family.V6)
        self._free.withhold(self._left_out)

    def cut(self) -> Prefix | None:
        """Take the lowest free block; None when no block is left."""
        number = self._free.take_lowest()
        return None if number is None else self._block(number)

    def reserve(self, block: Prefix) -> bool:
        """Take a given block, left out or not; False when it is taken already.

        Raises:
            ConfigError: it isn't one of this cutter's blocks.
        """
        return self._free.take(self._number(block))

    def give_back(self, block: Prefix) -> bool:
        """Make a block free again; False when it was free.

        Raises:
            ConfigError: it isn't one of this cutter's blocks.
        """
        number = self._number(block)
        if number in self._free:
            return False
        self._free.put(number)
        return True

    def is_free(self, block: Prefix) -> bool:
        """Whether nobody has that block; it may still be left out.

        Raises:
            ConfigError: it isn't one of this cutter's blocks.
        """
        return self._number(block) in self._free

    @property
    def total(self) -> int:
        """How many blocks the subnet has."""
        return self._total

    @property
    def remaining(self) -> int:
        """How many blocks can still be cut."""
        hidden = sum(end - begin + 1 for first, last in self._left_out for begin, end in self._free.clip(first, last))
        return self._free.count - hidden

    def taken(self) -> Iterator[Prefix]:
        """The blocks that somebody has, ascending."""
        expected = 0
        for first, last in (*self._free.runs(), (self._total, self._total)):
            yield from map(self._block, range(expected, first))
            expected = last + 1

    def _block(self, number: int) -> Prefix:
        return Prefix(self.subnet.family, self.subnet.value + number * self._size, self.length)

    def _number(self, block: Prefix) -> int:
        if block.length != self.length or block not in self.subnet:
            raise ConfigError(f"{block} is not a block of {self.subnet} cut into /{self.length}")
        return (block.value - self.subnet.value) // self._size

    def _touched(self, run: tuple[int, int]) -> tuple[int, int]:
        first, last = run
        return ((first - self.subnet.value) // self._size, (last - self.subnet.value) // self._size)

    def _covered(self, run: tuple[int, int]) -> tuple[int, int] | None:
        """The blocks that have nothing to give once the run is reserved.

        What a block can't give anyway (its edges, its gateway) need not be in the run.
        """
        first, last = run[0] - self.subnet.value, run[1] - self.subnet.value
        if has_edges(Prefix(self.subnet.family, 0, self.length)):
            into_block = first % self._size
            first -= into_block if into_block <= 2 else 0  # edge and gateway come first
            if self.subnet.family is Family.V4 and last % self._size == self._size - 2:
                last += 1
        begin = -(-first // self._size)
        end = (last + 1) // self._size - 1
        return (begin, end) if begin <= end else None
