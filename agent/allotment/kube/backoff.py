"""Pauses between tries: the one place where this package waits."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from allotment.observe.clock import Clock

__all__ = ["Backoff"]

_ASKED_LIMIT: Final = 60.0
_random: Final = random.SystemRandom().random


class Backoff:
    """Pauses that double from `first` to `most` seconds, each shortened by up to half at random.

    By half, so that the nodes of a cluster don't come back all at once; never to nothing, so that nobody spins.
    `jitter` gives a number from 0 up to 1.
    """

    def __init__(
        self,
        clock: Clock,
        first: float = 0.5,
        most: float = 10.0,
        jitter: Callable[[], float] = _random,
    ) -> None:
        self._clock = clock
        self._first = first
        self._most = most
        self._jitter = jitter
        self._next = first

    def reset(self) -> None:
        """All is well again: the next pause is the first one."""
        self._next = self._first

    async def pause(self, at_least: float = 0.0) -> None:
        """Wait, and the next time longer. `at_least` is what a server asked for (Retry-After), believed up to 60 s."""
        spread = 1.0 - self._jitter() / 2
        step, self._next = self._next, min(self._next * 2, self._most)
        # What the server asked for is stretched, not shortened: everybody was told the same number.
        asked = min(at_least, _ASKED_LIMIT) * (2.0 - spread)
        await self._clock.sleep(max(step * spread, asked))
