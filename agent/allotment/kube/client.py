"""What can be asked of the API server, and what its answers mean.

Nothing here is tried again, but for one 401 after the credentials were read anew: whoever asks decides that, with a
`Backoff`. Writes are guarded so that they only ever reach the object that was looked at, in the state that was
looked at (DESIGN I9); and a write whose answer was lost is looked at before anybody is told that it failed.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

import msgspec

from allotment.addressing.errors import ConfigError, InternalError
from allotment.api.meta import Record
from allotment.kube.failures import (
    ApiFailure,
    Ask,
    Conflict,
    Expired,
    NotFound,
    Unreachable,
    Unreadable,
    failure_of,
)
from allotment.kube.merging import applied, merge_patch
from allotment.kube.objects import Kind
from allotment.kube.resources import Resource, key_of
from allotment.kube.session import IDLE_SECONDS, Session
from allotment.kube.watch import WatchEvent, decoder, identify, read_events

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from allotment.kube.access import Access
    from allotment.kube.session import Query
    from allotment.observe.clock import Clock

__all__ = ["Client", "Listing"]

T = TypeVar("T", bound=Kind)

_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A whole list, as of `resource_version`. `unread` says of objects that can't be decoded, by key, why."""

    items: tuple[T, ...]
    resource_version: str
    unread: Mapping[str, str] = field(default_factory=dict)


class _ListMeta(Record, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(Record, frozen=True):
    items: tuple[msgspec.Raw, ...]
    metadata: _ListMeta = _ListMeta()


_decode_page: Final = msgspec.json.Decoder(_Page).decode


class Client:
    """The API server that `access` leads to; an async context manager.

    `timeout` is that of a call as a whole, in seconds; `idle` how long a watch may be silent. `on_list` hears of each
    whole list that was read, by the plural of its kind. Besides the failures named with each method, all of them raise
    `Unreachable`, `TooManyRequests`, `Unserved`, `Forbidden` and `Invalid` (`allotment.kube.failures`), and ConfigError
    for a name that no object can have.
    """

    def __init__(
        self,
        access: Access,
        clock: Clock,
        *,
        user_agent: str = "allotment",
        timeout: float = 10.0,
        idle: float = IDLE_SECONDS,
        on_list: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.clock = clock
        self._on_list = on_list
        self._session = Session(access, user_agent=user_agent, timeout=timeout, idle=idle)

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.__aexit__()

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """The object as it is now (a quorum read).

        Raises:
            NotFound: there is none.
            Unreadable: it doesn't fit its type.
        """
        ask = _ask("get", resource, name, namespace)
        return self._decoded(resource, ask, await self._get(resource, ask, name, namespace))

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        page: int = 500,
    ) -> Listing[T]:
        """All that there are now, of one moment, read in pages of `page` objects.

        Raises:
            Expired: reading took so long that the API server forgot that moment, twice.
        """
        ask = _ask("list", resource, namespace=namespace)
        selectors = _selectors(field_selector, label_selector)
        path = resource.path(namespace=namespace)
        try:
            return await self._list(resource, ask, path, selectors, page)
        except Expired:
            # Between two pages the server forgot the moment they are of. In one piece there is no between.
            return await self._list(resource, ask, path, selectors, 0)

    async def create(self, resource: Resource[T], body: Mapping[str, Any] | msgspec.Struct) -> T:
        """Make an object; its `metadata` says its name (or `generateName`) and namespace.

        Raises:
            AlreadyExists: its name is taken, perhaps by an earlier try of ours: read it and see.
            Terminating: its namespace is being deleted.
        """
        plain: dict[str, Any] = msgspec.to_builtins(body)
        meta = plain.get("metadata") or {}
        name, namespace = meta.get("name", ""), meta.get("namespace", "")
        ask = _ask("create", resource, name or f"{meta.get('generateName', '')}…", namespace)
        path = resource.path(namespace=namespace)
        try:
            answer = await self._call(ask, "POST", path, body=msgspec.json.encode(plain), content_type=_JSON)
        except Unreachable as lost:
            if not lost.sent or not name:
                raise
            answer = await self._look(resource, lost, name, namespace, "", plain)
        return self._decoded(resource, ask, answer)

    async def patch_finalizers(self, resource: Resource[T], item: T, finalizers: Sequence[str]) -> T:
        """Set the whole list of finalizers of `item`, if it is still as it was read.

        The last one off an object that is being deleted ends it; what it last was is returned.

        Raises:
            Conflict: it has changed; read it again.
            NotFound: it is gone; another one under its name was not touched.
            Terminating: it is being deleted, and the list holds one that it doesn't have.
        """
        return await self.patch(resource, item, {"metadata": {"finalizers": list(finalizers)}})

    async def patch_status(self, resource: Resource[T], item: T, status: Mapping[str, Any] | msgspec.Struct) -> T:
        """Set the status of `item`, if it is still as it was read. What its status has and `status` lacks goes.

        Raises:
            Conflict: it has changed, or is another one by now; read it again.
            NotFound: it is gone.
        """
        before = msgspec.to_builtins(getattr(item, "status", None) or {})
        wanted = merge_patch(before, msgspec.to_builtins(status))
        return await self.patch(resource, item, {"status": wanted}, subresource="status")

    async def patch(self, resource: Resource[T], item: T, change: Mapping[str, Any], *, subresource: str = "") -> T:
        """A merge patch (RFC 7396) of `item`, guarded by its UID and resourceVersion.

        Raises:
            Conflict: it has changed; read it again.
            NotFound: it is gone, or another one by now.
        """
        meta = item.metadata
        ask = _ask("patch", resource, meta.name, meta.namespace, subresource)
        guard = _guard(ask, item)
        body = {**change, "metadata": {**change.get("metadata", {}), **guard}}
        path = resource.path(namespace=meta.namespace, name=_named(ask, meta.name), subresource=subresource)
        try:
            answer = await self._call(ask, "PATCH", path, body=msgspec.json.encode(body), content_type=_MERGE)
        except Unreachable as lost:
            if not lost.sent:
                raise
            answer = await self._look(resource, lost, meta.name, meta.namespace, meta.uid, change)
        found = self._decoded(resource, ask, answer)
        if found.metadata.uid != meta.uid:  # on /status the API server itself doesn't look at the UID
            raise NotFound(f"{ask}: the object that was meant is gone, another one has its name")
        return found

    async def delete(self, resource: Resource[T], item: T) -> None:
        """Ask for `item` to be deleted, if it is still as it was read. It stays until its last finalizer is off.

        Nothing happens to one that is being deleted already.

        Raises:
            Conflict: it has changed; read it again.
            NotFound: it is gone, perhaps by an earlier try of this very call; another one under its name was not
                touched.
        """
        meta = item.metadata
        ask = _ask("delete", resource, meta.name, meta.namespace)
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": _guard(ask, item)}
        path = resource.path(namespace=meta.namespace, name=_named(ask, meta.name))
        try:
            await self._call(ask, "DELETE", path, body=msgspec.json.encode(body), content_type=_JSON)
        except (Unreachable, Conflict) as failure:
            # aiohttp sends a DELETE once more by itself where a pooled connection broke: then a conflict can be with
            # what the first one did.
            if isinstance(failure, Unreachable) and not failure.sent:
                raise
            try:
                now = await self.get(resource, meta.name, namespace=meta.namespace)
            except NotFound:
                return
            except ApiFailure:
                raise failure from None
            if now.metadata.uid == meta.uid and not now.metadata.deleting:
                raise

    async def watch(
        self, resource: Resource[T], *, namespace: str = "", field_selector: str = "", resource_version: str
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """What happens after `resource_version`, until the server ends it. As `watch_batches`, one by one."""
        batches = self.watch_batches(
            resource, namespace=namespace, field_selector=field_selector, resource_version=resource_version
        )
        async with aclosing(batches):
            async for batch in batches:
                for event in batch:
                    yield event

    async def watch_batches(
        self, resource: Resource[T], *, namespace: str = "", field_selector: str = "", resource_version: str
    ) -> AsyncGenerator[tuple[WatchEvent[T], ...], None]:
        """What happens after `resource_version`, as much at once as came at once, until the server ends it.

        The first batch is empty: the server has accepted the watch.

        Raises:
            Expired: that version is no longer kept; list again.
            Silent: nothing was heard for the idle timeout.
            Unreachable: the line broke.
        """
        ask = _ask("watch", resource, namespace=namespace)
        query = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            *_selectors(field_selector, ""),
        ]
        async with self._session.stream(ask, resource.path(namespace=namespace), query) as chunks:
            yield ()
            async for batch in read_events(resource, ask, chunks):
                yield batch

    async def _list(self, resource: Resource[T], ask: Ask, path: str, selectors: Query, page: int) -> Listing[T]:
        items: list[T] = []
        unread: dict[str, str] = {}
        decode = decoder(resource.type).decode
        more = ""
        while True:
            query = [*selectors, *([("limit", str(page))] if page else []), *([("continue", more)] if more else [])]
            body = await self._call(ask, "GET", path, query=query)
            try:
                found = _decode_page(body)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise Unreadable(f"{ask}: the list can't be read: {error}; is that an API server?") from error
            for raw in found.items:
                try:
                    items.append(decode(raw))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    key, _ = identify(raw)
                    unread[key] = f"{resource.kind} {key or '(without a name)'}: {error}"
            more = found.metadata.continue_
            if not more:
                self._on_list(resource.plural)
                return Listing(tuple(items), found.metadata.resource_version, unread)

    async def _get(self, resource: Resource[T], ask: Ask, name: str, namespace: str) -> bytes:
        return await self._call(ask, "GET", resource.path(namespace=namespace, name=_named(ask, name)))

    async def _look(
        self, resource: Resource[T], lost: Unreachable, name: str, namespace: str, uid: str, change: Mapping[str, Any]
    ) -> bytes:
        """After a write without an answer: the object, if it shows the change; else the failure is raised."""
        try:
            body = await self._get(resource, _ask("get", resource, name, namespace), name, namespace)
            now = msgspec.json.decode(body)
        except NotFound:
            if uid:
                raise
            raise lost from None
        except (ApiFailure, msgspec.DecodeError):
            raise lost from None
        if uid and now["metadata"].get("uid") != uid:
            raise NotFound(f"get {resource.kind} {name}: the object that was meant is gone, another one has its name")
        if not _unchanged(resource, now, change):
            raise lost from None
        return body

    async def _call(
        self,
        ask: Ask,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes = b"",
        content_type: str = "",
    ) -> bytes:
        answer = await self._session.exchange(ask, method, path, query=query, body=body, content_type=content_type)
        if not 200 <= answer.status < 300:
            raise failure_of(ask, answer.status, answer.body, answer.headers)
        return answer.body

    def _decoded(self, resource: Resource[T], ask: Ask, body: bytes) -> T:
        try:
            found: T = decoder(resource.type).decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unreadable(f"{ask}: the object can't be read: {error}; it may be of a newer release") from error
        return found


def _ask(verb: str, resource: Resource[T], name: str = "", namespace: str = "", subresource: str = "") -> Ask:
    return Ask(verb, resource.kind, resource.full_name, key_of(namespace, name) if name else "", subresource)


def _selectors(field_selector: str, label_selector: str) -> Query:
    pairs = (("fieldSelector", field_selector), ("labelSelector", label_selector))
    return [(name, text) for name, text in pairs if text]


def _unchanged(resource: Resource[T], now: dict[str, Any], change: Mapping[str, Any]) -> bool:
    """Whether an object would be what it is once more after a change, in the fields that we read.

    Compared as our types, so that what is left out counts the same as what the server filled in.
    """
    try:
        return bool(msgspec.convert(now, resource.type) == msgspec.convert(applied(now, change), resource.type))
    except msgspec.ValidationError:
        return False


def _named(ask: Ask, name: str) -> str:
    """A path without the name is the whole collection's: deleting that is not what anybody meant."""
    if not name:
        raise ConfigError(f"{ask}: an object without a name can't be asked for")
    return name


def _guard(ask: Ask, item: Kind) -> dict[str, str]:
    meta = item.metadata
    if not meta.uid or not meta.resource_version:
        raise InternalError(f"{ask}: a write needs the UID and the resourceVersion that were read")
    return {"uid": meta.uid, "resourceVersion": meta.resource_version}
