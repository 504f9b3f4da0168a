"""Work that begins at once, and becomes a task only if it has to wait.

Most calls never wait: what they need is in memory, and a disk that is quick is written to on the spot. A task for each
of them costs a round of the event loop before its first line runs. From Python 3.12 on asyncio has the like
(`eager_task_factory`); this does it for 3.11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Final

__all__ = ["Begun", "begin"]

_NOTHING: Final = object()


def begin(work: Coroutine[Any, Any, None]) -> Begun | None:
    """Run `work` up to its first wait; None if it came to its end without one.

    Up to there it is in no task: what asks for the current one (`asyncio.timeout`, `asyncio.TaskGroup`) raises
    RuntimeError. `await asyncio.sleep(0)` before it is a wait like any other.

    Raises:
        BaseException: what `work` raised before its first wait.
    """
    try:
        return Begun(work, work.send(None))
    except StopIteration:
        return None


class Begun(Coroutine[Any, Any, None]):
    """The rest of a coroutine, for a task to go on with; `waits_for` is what it waits for."""

    __slots__ = ("_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, None], waits_for: object) -> None:
        self._work = work
        self._waits_for = waits_for

    def send(self, value: Any) -> Any:
        """Hand out what it waits for, the first time; then go on."""
        waits_for, self._waits_for = self._waits_for, _NOTHING
        return self._work.send(value) if waits_for is _NOTHING else waits_for

    def throw(self, *error: Any) -> Any:
        """Raise in it what stopped the wait (a cancellation, mostly).

        A task cancels what it waits for. One that is cancelled before its first step does not know what that is, so
        it is done here: what is left waiting for nobody would be taken for somebody who still waits.
        """
        waits_for, self._waits_for = self._waits_for, _NOTHING
        if isinstance(waits_for, asyncio.Future):
            waits_for.cancel()
        return self._work.throw(*error)

    def close(self) -> None:
        """End it where it is."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        """Only a task may go on with it.

        Raises:
            TypeError: always.
        """
        raise TypeError("what has begun is for a task to go on with: loop.create_task(begun)")
