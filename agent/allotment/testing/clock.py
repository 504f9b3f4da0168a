"""A clock that moves when it is told to."""

from __future__ import annotations

import asyncio
import heapq
import itertools

__all__ = ["ManualClock", "let_run"]


class ManualClock:
    """A `Clock` under a test's control: `advance` moves both clocks, `jump` only the wall's, `reboot` starts anew."""

    def __init__(self, *, boot: str = "boot-1", seconds: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._boot = boot
        self._seconds = seconds
        self._wall = wall
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @property
    def boot(self) -> str:
        """The boot ID that `seconds` belongs to."""
        return self._boot

    def seconds(self) -> float:
        """Seconds since this boot."""
        return self._seconds

    def wall(self) -> float:
        """Unix time as the machine believes it."""
        return self._wall

    def started(self, pid: int) -> float | None:
        """None: no process lives by this clock."""
        del pid
        return None

    async def sleep(self, seconds: float) -> None:
        """Return once `advance` has moved this far."""
        if seconds <= 0:
            await asyncio.sleep(0)  # noqa: TID251  # a round of the loop, as with the machine's clock
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._seconds + seconds, next(self._order), future))
        await future

    def advance(self, seconds: float) -> None:
        """Let time pass, waking who waits for it."""
        self._seconds += seconds
        self._wall += seconds
        while self._sleepers and self._sleepers[0][0] <= self._seconds:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)

    def jump(self, seconds: float) -> None:
        """Set the wall clock off by that much; durations must not notice (I13)."""
        self._wall += seconds

    def reboot(self, boot: str) -> None:
        """Start a new boot: another ID, and seconds near zero again."""
        self._boot = boot
        self._seconds = 10.0


async def let_run(rounds: int = 10) -> None:
    """Give the other tasks some rounds of the loop: enough for all that waits for nothing but its turn."""
    for _ in range(rounds):
        await asyncio.sleep(0)  # noqa: TID251  # no time passes
