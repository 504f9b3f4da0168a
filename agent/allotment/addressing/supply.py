"""`Supply`: which of a network's blocks gives the next address of one family.

Over all blocks that give, the rule is the same as within one (I3): never-used addresses first, block by block in the
plan's order, then the longest idle wherever it is. Two heaps find the block, so that a node with a thousand full
blocks answers as quickly as one with a single block. Entries of the heaps may be out of date in one direction only
(a block may have less to give than its entry says), and are put right when they come up.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allotment.addressing.block import BlockSpace, Taken

__all__ = ["Supply"]


class Supply:
    """The blocks of one family that give, in the plan's order. Made anew whenever the plan changes."""

    __slots__ = ("_fresh", "_idle", "_listed", "_places", "_since", "blocks")

    def __init__(self, blocks: Sequence[BlockSpace]) -> None:
        self.blocks = tuple(blocks)
        self._places = {block: place for place, block in enumerate(self.blocks)}
        self._fresh = list(range(len(self.blocks)))  # a heap: blocks that may have never-used addresses
        self._listed = set(self._fresh)
        self._idle: list[tuple[float, int]] = []  # a heap: (longest idle since, block)
        self._since: dict[int, float] = {}  # the entry of each block in it that counts
        for place, block in enumerate(self.blocks):
            oldest = block.oldest()
            if oldest is not None:
                self._list_idle(place, oldest.seconds)

    def take(self, since: float) -> tuple[BlockSpace, Taken] | None:
        """Take the next address; None when no block has one that has rested since before `since`."""
        while self._fresh:
            block = self.blocks[self._fresh[0]]
            number = block.take_fresh()
            if number is not None:
                return block, (number, None)
            self._listed.discard(heapq.heappop(self._fresh))
        place = self._longest_idle()
        if place is None:
            return None
        taken = self.blocks[place].take_oldest(since)
        return None if taken is None else (self.blocks[place], taken)

    def next_rested(self) -> float | None:
        """When the longest idle address that may be given was released."""
        place = self._longest_idle()
        return None if place is None else self._since[place]

    def returned(self, block: BlockSpace, rested: float | None) -> None:
        """An address came back: never used (None), or resting since `rested`."""
        place = self._places.get(block)
        if place is None:
            return
        if rested is not None:
            self._list_idle(place, rested)
        elif place not in self._listed:
            self._listed.add(place)
            heapq.heappush(self._fresh, place)

    def _list_idle(self, place: int, seconds: float) -> None:
        listed = self._since.get(place)
        if listed is None or seconds < listed:
            self._since[place] = seconds
            heapq.heappush(self._idle, (seconds, place))

    def _longest_idle(self) -> int | None:
        """The block that holds the longest idle address."""
        while self._idle:
            seconds, place = self._idle[0]
            if self._since.get(place) != seconds:
                heapq.heappop(self._idle)
                continue
            oldest = self.blocks[place].oldest()
            if oldest is None:
                heapq.heappop(self._idle)
                del self._since[place]
            elif oldest.seconds > seconds:
                self._since[place] = oldest.seconds
                heapq.heapreplace(self._idle, (oldest.seconds, place))
            else:
                return place
        return None
