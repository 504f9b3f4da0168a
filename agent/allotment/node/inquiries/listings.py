"""Long listings in pieces: an answer fits in one frame, and 60,000 leases don't.

What is listed is taken at once, when it is asked for first, so that the pieces belong together whatever happens
between them. It is kept for as long as a caller that goes on asking could need it, and no longer.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from allotment.observe.clock import Clock

__all__ = ["Listings"]

ItemT = TypeVar("ItemT")

_KEPT = 8
_SECONDS = 30.0


class Listings(Generic[ItemT]):
    """Hands out sequences in pieces of about `room` bytes, as `size` says of each item, and one item at least.

    At most eight are kept, each for 30 s after it was last asked for.
    """

    def __init__(self, clock: Clock, room: int, size: Callable[[ItemT], int]) -> None:
        self._clock = clock
        self._room = room
        self._size = size
        self._numbers = itertools.count(1)
        self._kept: OrderedDict[str, tuple[float, Sequence[ItemT]]] = OrderedDict()

    def begin(self, items: Sequence[ItemT]) -> tuple[Sequence[ItemT], str]:
        """The first piece, and the word that the next one is asked for by; empty when there is none."""
        return self._piece(str(next(self._numbers)), items, 0)

    def go_on(self, word: str) -> tuple[Sequence[ItemT], str] | None:
        """The piece that `word` asks for and the word for the next; None when the listing isn't kept any more."""
        self._forget()
        name, _, begin = word.partition("-")
        kept = self._kept.pop(name, None)
        if kept is None or not begin.isdecimal():
            return None
        return self._piece(name, kept[1], int(begin))

    def _piece(self, name: str, items: Sequence[ItemT], begin: int) -> tuple[Sequence[ItemT], str]:
        end, used = begin, 0
        while end < len(items) and used < self._room:
            used += self._size(items[end])
            end += 1
        if end >= len(items):
            return items[begin:], ""
        self._forget()
        self._kept[name] = (self._clock.seconds(), items)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return items[begin:end], f"{name}-{end}"

    def _forget(self) -> None:
        oldest = self._clock.seconds() - _SECONDS
        for name in [name for name, (seconds, _) in self._kept.items() if seconds < oldest]:
            del self._kept[name]
