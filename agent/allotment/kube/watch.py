"""One watch: the lines of its answer as typed events.

A line is `{"type": …, "object": …}`. The object is decoded only once the type is known: an ERROR carries a Status, a
BOOKMARK hardly more than a resourceVersion. An object that doesn't fit its type is named, not fatal: everything else
in the stream still counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from allotment.api.meta import Record
from allotment.kube.failures import Ask, Status, Unreadable, failure_of_status
from allotment.kube.objects import Kind
from allotment.kube.resources import Resource, key_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["WatchEvent", "decoder", "identify", "read_events", "version_number"]

T = TypeVar("T", bound=Kind)

_LINE_LIMIT: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """`type` is ADDED, MODIFIED, DELETED or BOOKMARK.

    DELETED of a watch with a selector means that the object no longer matches, which is not always that it is gone;
    `item` is then as it was before. `key` is the object's `name` or `namespace/name`, `version` the resourceVersion
    up to which the watch has told all. `item` is None for a BOOKMARK, and where `problem` says why it can't be read.
    """

    type: str
    key: str
    version: str
    item: T | None = None
    problem: str = ""


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Meta(Record, frozen=True):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Named(Record, frozen=True):
    metadata: _Meta = _Meta()


_decode_line: Final = msgspec.json.Decoder(_Line).decode
_decode_status: Final = msgspec.json.Decoder(Status).decode
_decode_named: Final = msgspec.json.Decoder(_Named).decode


@cache
def decoder(type_: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a kind."""
    return msgspec.json.Decoder(type_)


def version_number(version: str) -> int:
    """A resourceVersion as the number that it is: within one kind they can be compared (Kubernetes KEP-5504).

    Raises:
        Unreadable: it is none.
    """
    try:
        return int(version)
    except ValueError as error:
        raise Unreadable(f"the API server's resourceVersion {version!r} is no number, as Kubernetes' are") from error


def identify(raw: msgspec.Raw) -> tuple[str, str]:
    """Key and resourceVersion of an object whatever else is wrong with it; empty where that can't be told."""
    try:
        meta = _decode_named(raw).metadata
    except msgspec.DecodeError:
        return "", ""
    return key_of(meta.namespace, meta.name), meta.resource_version


async def read_events(
    resource: Resource[T], ask: Ask, chunks: AsyncIterator[bytes]
) -> AsyncIterator[tuple[WatchEvent[T], ...]]:
    """The events of a watch's answer, as many at once as came at once. Ends where the server ended it.

    A line cut off at the end is passed over: the watch goes on from the last whole one.

    Raises:
        ApiFailure: the server said so in an ERROR event; `Expired` for a 410.
        Unreadable: this is no watch.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk if rest else chunk).split(b"\n")
        if len(rest) > _LINE_LIMIT:
            raise Unreadable(f"{ask}: an event is longer than {_LINE_LIMIT >> 20} MiB; it is not read")
        if lines:
            found: list[WatchEvent[T]] = []
            failure = None
            for event in _events(resource, ask, lines):
                if isinstance(event, Exception):
                    failure = event
                    break
                found.append(event)
            if found:
                yield tuple(found)
            if failure is not None:
                raise failure


def _events(resource: Resource[T], ask: Ask, lines: list[bytes]) -> Iterator[WatchEvent[T] | Exception]:
    for line in lines:
        if not line.strip():
            continue
        try:
            parsed = _decode_line(line)
            if parsed.type == "ERROR":
                yield failure_of_status(ask, _decode_status(parsed.object))
                return
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            yield Unreadable(f"{ask}: a line of the watch can't be read: {error}; is that an API server?")
            return
        yield _event(resource, parsed.type, parsed.object)


def _event(resource: Resource[T], type_: str, raw: msgspec.Raw) -> WatchEvent[T]:
    if type_ == "BOOKMARK":
        return WatchEvent(type_, "", identify(raw)[1])
    try:
        item: Any = decoder(resource.type).decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        key, version = identify(raw)
        return WatchEvent(type_, key, version, problem=f"{resource.kind} {key or '(without a name)'}: {error}")
    meta = item.metadata
    return WatchEvent(type_, key_of(meta.namespace, meta.name), meta.resource_version, item)
