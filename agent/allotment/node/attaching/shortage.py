"""Requests that found no address although more are to be had: who waits, for what, and what wakes them.

Whoever asks for further blocks reads `of`, and is told by `on_change` when a request begins to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from typing import TYPE_CHECKING, TypeVar

from allotment.addressing.errors import BlockAwaited, Exhausted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from allotment.addressing.address import Family

__all__ = ["Shortage"]

T = TypeVar("T")


class Shortage:
    """The requests that wait for an address of a network, in the order in which they came."""

    def __init__(self) -> None:
        self._short: dict[str, Counter[Family]] = {}
        self._sleeping: dict[str, deque[asyncio.Future[None]]] = {}
        self._begun: Callable[[], None] = lambda: None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a request begins to wait; it must be cheap."""
        self._begun = callback

    def of(self, network: str) -> Mapping[Family, int]:
        """How many requests wait for an address of each family."""
        return self._short.get(network, {})

    @contextlib.contextmanager
    def waiting(self, network: str, families: Sequence[Family]) -> Iterator[None]:
        """Count a request that is short of these families as long as the context lasts."""
        counts = self._short.setdefault(network, Counter())
        counts.update(families)
        self._begun()
        try:
            yield
        finally:
            counts.subtract(families)
            if not any(counts.values()):
                self._short.pop(network, None)

    async def serve(
        self,
        network: str,
        families: Sequence[Family],
        give: Callable[[], Awaitable[T]],
        *,
        hope: Callable[[Exhausted], bool],
        limit: float,
    ) -> T:
        """Try `give` again whenever there may be an address, for at most `limit` seconds.

        `hope` says whether it is worth waiting on. Only in a task, and not while holding anything.

        Raises:
            BlockAwaited: nothing came in time.
            Exhausted: there is no hope any more.
        """
        ends = asyncio.get_running_loop().time() + limit
        over = False
        with self.waiting(network, families):
            while True:
                try:
                    async with asyncio.timeout_at(ends):
                        await self.relief(network)
                except TimeoutError:
                    over = True  # once more: what was cooling may have cooled
                try:
                    return await give()
                except Exhausted as error:
                    if not hope(error):
                        raise
                    if over:
                        raise BlockAwaited(
                            f"{error.message}; a further block did not come in {limit:g} s: try again",
                            reason=error.reason,
                        ) from error

    async def relief(self, network: str) -> None:
        """Return once an address of the network may be had."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeping = self._sleeping.setdefault(network, deque())
        sleeping.append(future)
        try:
            await future
        finally:
            if future in sleeping:
                sleeping.remove(future)
            if not sleeping and self._sleeping.get(network) is sleeping:
                del self._sleeping[network]

    def plans_changed(self) -> None:
        """There may be a further block, or no hope of one any more: all look again."""
        for sleeping in self._sleeping.values():
            _wake(sleeping, len(sleeping))

    def leases_changed(self) -> None:
        """A lease may have ended: of each network one request looks, since one address is enough for one."""
        for sleeping in self._sleeping.values():
            _wake(sleeping, 1)


def _wake(sleeping: deque[asyncio.Future[None]], count: int) -> None:
    while sleeping and count:
        future = sleeping.popleft()
        if not future.done():
            future.set_result(None)
            count -= 1
