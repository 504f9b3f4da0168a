"""All objects of a kind, kept up to date: list, watch, and again, for ever.

What is published is whole: after each change a new Snapshot of everything. What is known is never thrown away because
the server can't be asked, or says something odd: a refused or failed list is no empty one, an empty one where there
was something is asked for twice, and an object that can't be read stays as it last was, and is named.

The server is taken at its word about order: within a kind, resourceVersions only grow. Where a watch goes backwards,
its server knows another history than ours (etcd was restored, or it lags behind), and everything is listed again.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from allotment.kube.backoff import Backoff
from allotment.kube.failures import ApiFailure, Expired, Silent, Unreadable
from allotment.kube.objects import Kind
from allotment.kube.resources import key_of
from allotment.kube.watch import version_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from allotment.kube.client import Client, Listing
    from allotment.kube.resources import Resource
    from allotment.kube.watch import WatchEvent
    from allotment.observe.clock import Clock
    from allotment.observe.logs import Logger

__all__ = ["Reflector", "Snapshot"]

T = TypeVar("T", bound=Kind)

_GATHER: Final = 0.02
_LIVED: Final = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """All objects of a kind, as of one moment.

    `items` are by name, or by `namespace/name`. `synced`: they have been read from the API server at least once.
    `lost_contact` is since when (`Clock.seconds`) they may be out of date, None while they are not. `problem` says
    what is wrong: why there is no contact, or which objects can't be read (those are as they last could be, or
    missing). `lists` counts how often the whole list has been read. `unread` are the keys of objects that
    can't be read.
    """

    items: Mapping[str, T]
    synced: bool
    lost_contact: float | None
    problem: str = ""
    lists: int = 0
    unread: frozenset[str] = frozenset()


class Reflector(Generic[T]):
    """Lists and watches one kind. `run` does the work; the rest may be called meanwhile, from the same loop."""

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        clock: Clock,
        *,
        namespace: str = "",
        field_selector: str = "",
        log: Logger,
        backoff: Backoff | None = None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._clock = clock
        self._namespace = namespace
        self._selector = field_selector
        self._log = log.bind(kind=resource.kind)
        self._backoff = backoff or Backoff(clock)
        self._items: dict[str, T] = {}
        self._unread: dict[str, str] = {}
        self._version = ""  # up to where everything is known; empty: list first
        self._lists = 0
        self._lost: float | None = None
        self._failure = ""
        self._heard = 0.0
        self._accepted: float | None = None  # when the watch began
        self._dirty = asyncio.Event()
        self._shown = -1  # the version of the last Snapshot
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._reading: asyncio.Timeout | None = None
        self._again = False  # a list that is under way began before it was asked for

    async def run(self, publish: Callable[[Snapshot[T]], None]) -> None:
        """Publish a new Snapshot at each change; never returns.

        A burst is published at once: the first change immediately, what follows within 20 ms together.
        """
        self._lost = self._clock.seconds()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish(publish))
            group.create_task(self._follow())

    async def seen(self, name: str, resource_version: str) -> None:
        """Return once what is published is at least as new as this write of an object of ours.

        `name` is the key in `items`. A write to an object that the selector doesn't match is seen only at the next
        bookmark, up to a minute later: bound the wait.
        """
        wanted = version_number(resource_version)
        while not self._shows(name, wanted):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (wanted, future)
            self._waiting.append(entry)
            try:
                await future
            finally:
                if entry in self._waiting:
                    self._waiting.remove(entry)

    def relist(self) -> int:
        """Read the whole list again now: for whoever doubts what it says (I15), or wants to know what is there by now.

        Returns what `Snapshot.lists` is, at least, once a list that began after this has been read.
        """
        self._version, self._again = "", True
        if self._reading is not None:
            self._reading.reschedule(0)
        return self._lists + 1

    def _shows(self, name: str, wanted: int) -> bool:
        item = self._items.get(name)
        known = item is not None and version_number(item.metadata.resource_version) >= wanted
        return self._shown >= wanted or (known and not self._dirty.is_set())

    async def _publish(self, publish: Callable[[Snapshot[T]], None]) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            problems = [self._failure] if self._failure else []
            problems += sorted(self._unread.values())
            publish(
                Snapshot(
                    items=MappingProxyType(dict(self._items)),
                    synced=self._lists > 0,
                    lost_contact=self._lost,
                    problem="; ".join(problems),
                    lists=self._lists,
                    unread=frozenset(self._unread),
                )
            )
            self._told()
            await self._clock.sleep(_GATHER)

    def _told(self) -> None:
        """What is published is what is known: wake who waited for it."""
        if self._version:
            self._shown = version_number(self._version)
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_result(None)

    async def _follow(self) -> None:
        while True:
            self._accepted, ended, asked = None, False, 0.0
            try:
                while not self._version:
                    await self._read()
                await self._watch()
                ended = True
            except Expired as error:
                self._version = ""
                self._log.debug("the list is read again", why=error.message)
            except ApiFailure as error:
                self._fail(error)
                asked = error.retry_after
            lived = self._accepted is not None and self._clock.seconds() - self._accepted >= _LIVED
            if lived:
                self._backoff.reset()
            if not (ended and lived):  # a server may end a watch when it likes, but not make us spin
                await self._backoff.pause(asked)

    async def _read(self) -> None:
        """Take over the whole list, unless a newer one was asked for meanwhile."""
        self._again = False
        listing = await self._list()
        if self._items and not listing.items and not listing.unread:
            self._log.warning("the list is empty where there was something; it is asked for again")
            await self._backoff.pause()
            listing = await self._list()
        if self._again:
            return
        before, self._items = self._items, {}
        for item in listing.items:
            key = key_of(item.metadata.namespace, item.metadata.name)
            old = before.get(key)
            # Who compares by identity sees at once what has not changed.
            same = old is not None and old.metadata.resource_version == item.metadata.resource_version
            self._items[key] = old if old is not None and same else item
        self._unread = dict(listing.unread)
        for key in self._unread:
            if key in before:
                self._items[key] = before[key]
        self._version = str(version_number(listing.resource_version))
        self._shown = min(self._shown, int(self._version))
        self._lists += 1
        self._contact()
        self._dirty.set()
        self._log.debug("listed", objects=len(self._items), version=self._version)

    async def _list(self) -> Listing[T]:
        return await self._client.list(self._resource, namespace=self._namespace, field_selector=self._selector)

    async def _watch(self) -> None:
        """Follow what happens until the server, or `relist`, ends it."""
        batches = self._client.watch_batches(
            self._resource,
            namespace=self._namespace,
            field_selector=self._selector,
            resource_version=self._version,
        )
        try:
            async with asyncio.timeout(None) as self._reading, aclosing(batches):
                async for batch in batches:
                    if not self._version:  # `relist` came first: what is listed next has all this, and more
                        return
                    self._contact()
                    if self._accepted is None:
                        self._accepted = self._heard
                    changes = [self._take(event) for event in batch]
                    if any(changes):
                        self._dirty.set()
                    elif not self._dirty.is_set():
                        self._told()
        except TimeoutError:
            if self._version:  # nobody asked for it
                raise
        finally:
            self._reading = None

    def _take(self, event: WatchEvent[T]) -> bool:
        """Take an event over; whether it changed anything."""
        if event.version:
            before, now = version_number(self._version), version_number(event.version)
            if now < before:
                raise Expired(
                    f"the watch of {self._resource.full_name} went back from {before} to {now}; all is listed again"
                )
            self._version = event.version
        if event.type == "BOOKMARK":
            return False
        if event.type == "DELETED":
            known = event.key in self._items or event.key in self._unread
            self._items.pop(event.key, None)
            self._unread.pop(event.key, None)
            return known
        if event.item is None:
            self._unread[event.key] = event.problem
            self._log.warning("an object can't be read; it stays as it was", problem=event.problem)
            return True
        self._unread.pop(event.key, None)
        old = self._items.get(event.key)
        self._items[event.key] = event.item
        return old is None or old.metadata.resource_version != event.item.metadata.resource_version

    def _contact(self) -> None:
        self._heard = self._clock.seconds()
        if self._lost is not None and self._version:
            if self._failure:
                self._log.info("in contact with the API server again", seconds=round(self._heard - self._lost, 1))
            self._lost, self._failure = None, ""
            self._dirty.set()

    def _fail(self, error: ApiFailure) -> None:
        """No contact: what is known stays, and says since when it may be out of date."""
        if isinstance(error, Unreadable | Silent):
            # The same line would come again; and a server whose history is behind ours says nothing at all.
            self._version = ""
        if self._lost is None:
            # A line that went quiet may have been dead since it was last heard; one that broke was alive until then.
            self._lost = self._heard if isinstance(error, Silent) else self._clock.seconds()
        if error.message != self._failure:
            self._failure = error.message
            self._log.warning("no contact with the API server", problem=error.message, details=error.details)
            self._dirty.set()
