"""A reflector that runs for the length of a test, and waiting for what it shows."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING

import structlog

from allotment.kube.backoff import Backoff
from allotment.kube.reflector import Reflector
from allotment.observe.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from allotment.kube.reflector import Snapshot

__all__ = ["CLOCK", "Following", "following", "until"]

CLOCK = SystemClock("boot-1")


class Hurried(SystemClock):
    """The machine's clock, on which pauses are short: tests don't wait for a server to calm down."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 50)


class Following:
    """What a reflector has published: `snapshots`, all of them, and `last`."""

    def __init__(self, reflector: Reflector):
        self.reflector = reflector
        self.snapshots: list[Snapshot] = []
        self._news = asyncio.Event()

    @property
    def last(self) -> Snapshot | None:
        return self.snapshots[-1] if self.snapshots else None

    def publish(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        self._news.set()

    async def until(self, shown: Callable[[Snapshot], bool], limit: float = 15.0) -> Snapshot:
        """Wait until the last snapshot is as wished."""
        try:
            async with asyncio.timeout(limit):
                while self.last is None or not shown(self.last):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"after {limit} s what is shown is {self.last}") from None
        return self.last

    async def names(self, *names: str, limit: float = 15.0) -> Snapshot:
        """Wait until these are all that there are, and there is contact."""
        wanted = set(names)
        return await self.until(lambda it: it.synced and it.lost_contact is None and set(it.items) == wanted, limit)


@contextlib.asynccontextmanager
async def following(client, resource, *, clock=CLOCK, backoff=None, **options) -> AsyncIterator[Following]:
    """Follow a kind; pauses are short, so that tests are."""
    backoff = backoff or Backoff(Hurried("boot-1"))
    reflector = Reflector(client, resource, clock, log=structlog.get_logger(), backoff=backoff, **options)
    found = Following(reflector)
    task = asyncio.create_task(reflector.run(found.publish))
    try:
        yield found
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object], what: str, limit: float = 15.0) -> None:
    """Wait until something is so; the condition may be a coroutine function."""
    try:
        async with asyncio.timeout(limit):
            while True:
                found = condition()
                if await found if inspect.isawaitable(found) else found:
                    return
                await CLOCK.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"after {limit} s: {what}") from None
