"""Order among requests for one attachment: one at a time, first come first served, and nobody else waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Turns"]

K = TypeVar("K", bound=Hashable)


class Turns(Generic[K]):
    """Who may act on a key now. Taking a free key costs a dictionary look-up and never suspends."""

    def __init__(self) -> None:
        self._held: dict[K, deque[asyncio.Future[None]]] = {}

    def try_take(self, key: K) -> bool:
        """Take the turn if nobody has it."""
        if key in self._held:
            return False
        self._held[key] = deque()
        return True

    def held(self) -> frozenset[K]:
        """The keys that somebody has the turn of, or waits for."""
        return frozenset(self._held)

    async def take(self, key: K) -> None:
        """Wait for the turn; cancelling the wait gives it up."""
        queue = self._held.get(key)
        if queue is None:
            self._held[key] = deque()
            return
        mine = asyncio.get_running_loop().create_future()
        queue.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancel() and not mine.cancelled():
                self.release(key)  # it was ours already: pass it on
            raise

    def release(self, key: K) -> None:
        """Pass the turn to who waits longest, or free the key."""
        queue = self._held[key]
        while queue:
            waiting = queue.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        del self._held[key]
