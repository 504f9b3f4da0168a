"""This node's own Claims, as the API server has them; watched only while there is something to see."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from allotment.kube.reflector import Reflector, Snapshot
from allotment.kube.resources import CLAIMS, key_of
from allotment.kube.watch import version_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from allotment.api.claim import Claim
    from allotment.kube.client import Client
    from allotment.observe.clock import Clock
    from allotment.observe.logs import Logger

__all__ = ["OwnClaims"]

_LINGER: Final = 60.0
"""Seconds that the watch goes on with nothing to see, so that the next pod finds it there."""
_LOOKS: Final = 6


class OwnClaims:
    """The Claims with this node in `spec.node`. `run` does the work.

    The list is read once at the start in any case: what an agent before us left is to be seen. After that the watch
    goes on while `want` says so, or while there are any.
    """

    def __init__(self, client: Client, node: str, clock: Clock, log: Logger, changed: Callable[[], None]) -> None:
        self._client = client
        self._selector = f"spec.node={node}"
        self._clock = clock
        self._log = log
        self._changed = changed
        self._wanted = True
        self._wake = asyncio.Event()
        self._snapshot: Snapshot[Claim] = Snapshot(MappingProxyType({}), synced=False, lost_contact=None)
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self.watching = False

    @property
    def synced(self) -> bool:
        """Whether all of them have been read, and are watched."""
        return self.watching and self._snapshot.synced

    @property
    def items(self) -> Mapping[str, Claim]:
        """The Claims, by `namespace/name`."""
        return self._snapshot.items

    def want(self, *, wanted: bool) -> None:
        """Say whether there may be something to see."""
        if wanted and not self._wanted:
            self._wake.set()
        self._wanted = wanted

    async def run(self) -> None:
        """List and watch for ever, with pauses."""
        while True:
            self.watching = True
            reflector = Reflector(self._client, CLAIMS, self._clock, field_selector=self._selector, log=self._log)
            async with asyncio.TaskGroup() as group:
                following = group.create_task(reflector.run(self._take))
                await self._until_idle()
                following.cancel()
            self.watching = False
            self._snapshot = Snapshot(MappingProxyType({}), synced=False, lost_contact=None)
            self._wake.clear()
            while not self._wanted:
                await self._wake.wait()
                self._wake.clear()

    async def _until_idle(self) -> None:
        """Return once there has been nothing to see for a while."""
        quiet = 0
        while quiet < _LOOKS:
            await self._clock.sleep(_LINGER / _LOOKS)
            quiet = quiet + 1 if self._idle() else 0

    def _idle(self) -> bool:
        return not self._wanted and self._snapshot.synced and not self._snapshot.items

    def _take(self, snapshot: Snapshot[Claim]) -> None:
        before, self._snapshot = self._snapshot, snapshot
        for key in [key for key in self._waiting if snapshot.items.get(key) is not before.items.get(key)]:
            for future in self._waiting.pop(key):
                if not future.done():
                    future.set_result(None)
        self._changed()

    async def newer(self, claim: Claim) -> Claim:
        """This very Claim, once the watch shows it in a newer state than this."""
        key = key_of(claim.metadata.namespace, claim.name)
        known = version_number(claim.metadata.resource_version)
        while True:
            item = self._snapshot.items.get(key)
            same = item is not None and item.metadata.uid == claim.metadata.uid
            if item is not None and same and version_number(item.metadata.resource_version) > known:
                return item
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(key, []).append(future)
            await future
