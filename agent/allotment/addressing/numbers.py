"""`FreeNumbers`: which numbers of a range are free, lowest first, at a cost that knows nothing of the range's size.

The numbers are the addresses of a block that were never used, or the blocks of a subnet that nobody has. Free
numbers are kept as runs; some may be withheld (excluded, reserved), which changes at any time and hides them from
`take_lowest` alone. The search keeps a cursor below which nothing is left to find, except what was put back since,
which waits in a heap. So a withheld run is skipped in one step and once only, not once for every request.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["FreeNumbers"]

Run = tuple[int, int]
_BEYOND = 1 << 130  # above every number that an address or a block can have


class FreeNumbers:
    """The free numbers from `first` to `last`; all of them at the beginning.

    Taking and putting back cost the logarithm of the number of runs, which is at most one more than the number of
    numbers in use. `count` says how many are free, the withheld ones included.
    """

    __slots__ = ("_cursor", "_first", "_firsts", "_lasts", "_returned", "_waiting", "_withheld", "count")

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._firsts = [first]
        self._lasts = [last]
        self._withheld: Sequence[Run] = ()
        self._cursor = first
        self._returned: list[int] = []
        self._waiting: set[int] = set()  # what is in that heap, so that no number is in it twice
        self.count = last - first + 1

    def __contains__(self, number: int) -> bool:
        index = bisect_left(self._lasts, number)
        return index < len(self._firsts) and self._firsts[index] <= number

    def runs(self) -> Iterator[Run]:
        """The free runs (first, last), ascending, the withheld numbers included."""
        return zip(self._firsts, self._lasts, strict=True)

    def clip(self, first: int, last: int) -> list[Run]:
        """The free runs between two numbers, both included."""
        runs: list[Run] = []
        index = bisect_left(self._lasts, first)
        while index < len(self._firsts) and self._firsts[index] <= last:
            runs.append((max(first, self._firsts[index]), min(last, self._lasts[index])))
            index += 1
        return runs

    def withhold(self, runs: Sequence[Run]) -> None:
        """Set which numbers `take_lowest` passes over: ascending, disjoint runs, in place of the earlier ones."""
        self._withheld = runs
        self._cursor = self._first
        self._returned.clear()  # what waited there lies at or above the cursor again
        self._waiting.clear()

    def take_lowest(self) -> int | None:
        """Take the lowest free number that isn't withheld; None when there is none."""
        while self._returned:
            number = heapq.heappop(self._returned)
            self._waiting.discard(number)
            if self.take(number):
                return number
        while True:
            index = bisect_left(self._lasts, self._cursor)
            if index == len(self._firsts):
                return None
            number = max(self._cursor, self._firsts[index])
            end = self._withheld_until(number)
            if end is None:
                self._cut(index, number, number)
                self._cursor = number + 1
                return number
            self._cursor = end + 1

    def take(self, number: int) -> bool:
        """Take this number, withheld or not; False when it isn't free."""
        index = bisect_left(self._lasts, number)
        if index == len(self._firsts) or self._firsts[index] > number:
            return False
        self._cut(index, number, number)
        return True

    def take_run(self, first: int, last: int) -> None:
        """Take a run that is free as a whole (see `clip`)."""
        self._cut(bisect_left(self._lasts, first), first, last)

    def take_all(self, numbers: Iterable[int]) -> None:
        """Take many at once; those that aren't free are passed over."""
        ordered = sorted(numbers)
        begin = 0
        for index, number in enumerate(ordered):
            if index + 1 == len(ordered) or ordered[index + 1] > number + 1:
                for first, last in self.clip(ordered[begin], number):
                    self.take_run(first, last)
                begin = index + 1

    def put(self, number: int) -> None:
        """Make a number free again that was taken."""
        index = bisect_left(self._lasts, number)
        joins_left = index > 0 and self._lasts[index - 1] == number - 1
        joins_right = index < len(self._firsts) and self._firsts[index] == number + 1
        if joins_left and joins_right:
            self._lasts[index - 1] = self._lasts.pop(index)
            del self._firsts[index]
        elif joins_left:
            self._lasts[index - 1] = number
        elif joins_right:
            self._firsts[index] = number
        else:
            self._firsts.insert(index, number)
            self._lasts.insert(index, number)
        self.count += 1
        if number < self._cursor and number not in self._waiting and self._withheld_until(number) is None:
            self._waiting.add(number)
            heapq.heappush(self._returned, number)

    def _withheld_until(self, number: int) -> int | None:
        index = bisect_right(self._withheld, (number, _BEYOND)) - 1
        if index < 0 or self._withheld[index][1] < number:
            return None
        return self._withheld[index][1]

    def _cut(self, index: int, first: int, last: int) -> None:
        """Take first to last out of the run at `index`, which holds them all."""
        begin, end = self._firsts[index], self._lasts[index]
        if begin == first and end == last:
            del self._firsts[index], self._lasts[index]
        elif begin == first:
            self._firsts[index] = last + 1
        else:
            self._lasts[index] = first - 1
            if end != last:
                self._firsts.insert(index + 1, last + 1)
                self._lasts.insert(index + 1, end)
        self.count -= last - first + 1
