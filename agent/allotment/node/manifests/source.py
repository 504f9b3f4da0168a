"""The source of standalone mode: a folder of manifests, watched, with a state folder for what the agent says.

A change is seen by inotify, and looked at once the folder has been quiet for 50 ms (a second at most). Looking again
every 30 s catches what inotify can't see. All disk work is done off the event loop, one step after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from allotment.node.folder_watch import FolderWatch
from allotment.node.manifests.keeper import ManifestKeeper
from allotment.node.view import FileProblem, View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from allotment.api.allocation import Allocation, AllocationStatus
    from allotment.node.manifests.state_folder import StateFolder
    from allotment.observe.clock import Clock

__all__ = ["ManifestSource"]

LOOK_EVERY = 30.0
"""Seconds between looks when nothing rings."""
GRACE = 1.0
"""Seconds for which an object must be missing before it counts as removed."""
_QUIET = 0.05
_QUIET_LIMIT = 1.0


class ManifestSource:
    """The `Source` that reads a folder; see `allotment.node.manifests.standalone` for who is admitted.

    `record` and `forget` work at any time, also before and after `run`; a call that is cancelled is still finished,
    so that memory and disk never part.
    """

    def __init__(
        self,
        folder: Path,
        state: StateFolder,
        node: str,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        grace: float = GRACE,
    ) -> None:
        """Nothing is read or watched before `run`."""
        self._path = folder
        self._keeper = ManifestKeeper(folder, state, node, clock, grace=grace)
        self._clock = clock
        self._log = log
        self._lock = asyncio.Lock()
        self._steps: set[asyncio.Task[View | None]] = set()
        self._publish: Callable[[View], None] = lambda _: None
        self._view = View()
        self._again_in: float | None = None
        self._unwatched = ""

    @property
    def place(self) -> str:
        """The folder."""
        return str(self._path)

    async def run(self, publish: Callable[[View], None], *, known: bool = False) -> None:
        """Publish a View at once, and at each change; never returns. What was there before is in the state folder.

        Raises:
            ConfigError: the state folder can't be used, or was written by a newer version.
        """
        self._publish = publish
        bell = asyncio.Event()
        with contextlib.ExitStack() as stack:
            watch = self._watch(stack, bell.set)
            while True:
                bell.clear()
                if watch is not None:
                    self._unwatched = watch.renew()
                await self._step(self._look)
                await self._pause(bell)

    async def record(
        self, seen: Allocation, *, finalizers: Sequence[str] | None = None, status: AllocationStatus | None = None
    ) -> bool:
        """See `Source.record`."""
        return await self._step(lambda: self._keeper.record(seen.name, finalizers, status)) is not None

    async def forget(self, seen: Allocation) -> None:
        """See `Source.forget`. A Network that still stands in the folder may be admitted anew by this."""
        await self._step(lambda: self._keeper.forget(seen.name))

    def _watch(self, stack: contextlib.ExitStack, ring: Callable[[], None]) -> FolderWatch | None:
        try:
            return stack.enter_context(FolderWatch(self._path, ring))
        except OSError as error:
            self._unwatched = str(error)
            return None

    def _look(self) -> View:
        view, self._again_in = self._keeper.look()
        return view

    async def _step(self, step: Callable[[], View | None]) -> View | None:
        task = asyncio.create_task(self._alone(step))
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        return await asyncio.shield(task)

    async def _alone(self, step: Callable[[], View | None]) -> View | None:
        async with self._lock:
            view = await asyncio.to_thread(step)
            if view is not None:
                self._show(view)
            return view

    def _show(self, view: View) -> None:
        """Publish a View that differs from the one before."""
        if self._unwatched:
            message = f"can't be watched, changes are seen within {LOOK_EVERY:.0f} s: {self._unwatched}"
            view = replace(view, warnings=(*view.warnings, FileProblem(str(self._path), 0, message)))
        before, self._view = self._view, view
        if view == before:
            return
        for item in view.warnings:  # the rest of a View is told by whoever it is published to
            if item not in before.warnings:
                self._log.warning("manifest", file=item.file, line=item.line, warning=item.message)
        self._publish(view)

    async def _pause(self, bell: asyncio.Event) -> None:
        """Wait until it rings and is quiet again, or until it is time to look anyway."""
        seconds = LOOK_EVERY if self._again_in is None else min(LOOK_EVERY, self._again_in)
        waits = (asyncio.create_task(bell.wait()), asyncio.create_task(self._clock.sleep(seconds)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        loop = asyncio.get_running_loop()
        end = loop.time() + _QUIET_LIMIT
        while bell.is_set() and loop.time() < end:
            bell.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_QUIET):
                    await bell.wait()
