"""Order among requests for one attachment: one at a time, first come first served, and nobody else waits."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Turns"]


class Turns:
    """Who may act on a key now. Taking a free key costs a dictionary look-up and never suspends."""

    def __init__(self) -> None:
        self._held: dict[Hashable, deque[asyncio.Future[None]]] = {}

    def try_take(self, key: Hashable) -> bool:
        """Take the turn if nobody has it."""
        if key in self._held:
            return False
        self._held[key] = deque()
        return True

    async def take(self, key: Hashable) -> None:
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

    def release(self, key: Hashable) -> None:
        """Pass the turn to who waits longest, or free the key."""
        queue = self._held[key]
        while queue:
            waiting = queue.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        del self._held[key]
