"""Kubernetes Events (events.k8s.io/v1): what a person sees with `kubectl describe`.

Events are courtesy. Nothing waits for them, and they never cost much: what repeats becomes a count on the Event that
is there, one object gets only so many and so do all together, the queue is bounded, and while the server is away the
oldest are dropped and counted.
"""

# No postponed annotations here: msgspec reads the types when a class is made.
import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from allotment.addressing.errors import AllotmentError, TryAgain
from allotment.api.meta import ObjectMeta, Record
from allotment.kube.backoff import Backoff
from allotment.kube.client import Client
from allotment.kube.failures import Conflict, NotFound
from allotment.kube.objects import ObjectReference
from allotment.kube.resources import Resource
from allotment.observe.clock import Clock
from allotment.observe.logs import Logger

__all__ = ["EVENTS", "Event", "EventRecorder", "EventSeries"]

EventType = Literal["Normal", "Warning"]

_NOTE_LIMIT: Final = 1000  # the API server takes up to 1 kB
_NAME_LIMIT: Final = 220
_QUEUE: Final = 256
_REMEMBERED: Final = 512
_BURST: Final = 10  # new Events for one object at once …
_REFILL_SECONDS: Final = 60.0  # … and then one each minute
_BURST_IN_ALL: Final = 50  # new Events for all objects together at once …
_REFILL_IN_ALL: Final = 5.0  # … and then one in so many seconds: when a network is full, each node says so
_COUNT_SECONDS: Final = 60.0  # how often a count is brought up to date
_SERIES_SECONDS: Final = 600.0  # what was silent that long is news again


class EventSeries(Record, frozen=True):
    """events.k8s.io/v1 EventSeries."""

    count: int
    last_observed_time: str


class Event(Record, frozen=True):
    """events.k8s.io/v1 Event, as far as we write it."""

    metadata: ObjectMeta
    event_time: str = ""
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    regarding: ObjectReference | None = None
    note: str = ""
    type: str = ""
    series: EventSeries | None = None
    api_version: str = msgspec.field(default_factory=lambda: "events.k8s.io/v1")
    kind: str = msgspec.field(default_factory=lambda: "Event")


EVENTS: Final[Resource[Event]] = Resource("events.k8s.io", "v1", "events", "Event", Event, namespaced=True)

_Key = tuple[ObjectReference, str, str, str]
"""Object, type, reason and topic."""


@dataclass(slots=True)
class _Entry:
    """Something that was said, perhaps often. `count` has happened, `told` of it is on the API server."""

    message: str
    first: float
    last: float
    wall: float
    count: int = 1
    told: int = 0
    told_at: float = 0.0
    event: Event | None = None


@dataclass(slots=True)
class _Bucket:
    """So many at once, and then one in `refill` seconds."""

    most: float
    refill: float
    tokens: float
    at: float

    def fill(self, now: float) -> bool:
        """Put in what came since; whether there is one to take."""
        self.tokens = min(self.tokens + (now - self.at) / self.refill, self.most)
        self.at = now
        return self.tokens >= 1


class EventRecorder:
    """Takes notes and makes Events of them. `controller` and `instance` say who reports.

    `dropped` counts the notes that became none; `on_drop` hears of each.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        controller: str = "allotment.dev/agent",
        instance: str = "",
        log: Logger,
        backoff: Backoff | None = None,
        on_drop: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._controller = controller
        self._instance = (instance or "allotment")[:128]
        self._log = log
        self._backoff = backoff or Backoff(clock, first=1.0, most=60.0)
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._queue: OrderedDict[_Key, None] = OrderedDict()
        self._buckets: OrderedDict[ObjectReference, _Bucket] = OrderedDict()
        self._all = _full(_BURST_IN_ALL, _REFILL_IN_ALL, clock.seconds())
        self._on_drop = on_drop
        self._wake = asyncio.Event()
        self.dropped = 0

    def note(
        self,
        regarding: ObjectReference,
        reason: str,
        message: str,
        type: EventType = "Normal",  # noqa: A002  # the field's name
        *,
        topic: str | None = None,
    ) -> None:
        """Say that something happened to an object: `reason` is one CamelCase word, `message` a sentence.

        What is noted with the same topic (None: the message is it) is one Event, with a count and the first message:
        the API server lets no message be changed. Never waits and never fails.
        """
        message = message[:_NOTE_LIMIT]
        key = (regarding, type, reason, message if topic is None else topic)
        now = self._clock.seconds()
        entry = self._entries.get(key)
        if entry is not None and now - entry.last < _SERIES_SECONDS:
            entry.count += 1
            entry.last, entry.wall = now, self._clock.wall()
            self._entries.move_to_end(key)
        elif not self._allowed(regarding, now):
            self._drop(1)
            return
        else:
            self._entries[key] = _Entry(message, first=now, last=now, wall=self._clock.wall())
            self._entries.move_to_end(key)
        self._enqueue(key)

    async def run(self) -> None:
        """Send what was noted; never returns."""
        while True:
            key, wait = self._due()
            if key is None:
                self._wake.clear()
                await self._sleep(wait)
                continue
            entry = self._entries[key]
            try:
                await self._send(key, entry)
            except (Conflict, NotFound):  # it expired, or someone changed it
                if entry.event is None:  # its namespace is gone
                    self._give_up(key)
                entry.event = None  # the next round makes a new one
            except TryAgain as error:
                self._log.debug("an event can't be written now", problem=error.message, queued=len(self._queue))
                await self._backoff.pause(getattr(error, "retry_after", 0.0))
            except AllotmentError as error:  # refused for good, as in a namespace that is being deleted
                self._give_up(key)
                self._log.debug("an event was refused", problem=error.message)
            else:
                self._backoff.reset()
                if entry.told == entry.count:
                    self._queue.pop(key, None)

    def _give_up(self, key: _Key) -> None:
        self._drop(1)
        self._queue.pop(key, None)
        self._entries.pop(key, None)

    def _drop(self, number: int) -> None:
        self.dropped += number
        self._on_drop(number)

    def _enqueue(self, key: _Key) -> None:
        self._queue[key] = None
        if len(self._queue) > _QUEUE:
            oldest, _ = self._queue.popitem(last=False)
            lost = self._entries.pop(oldest, None)
            self._drop(1 if lost is None else lost.count - lost.told)
        for old in list(self._entries):
            if len(self._entries) <= _REMEMBERED:
                break
            if old not in self._queue:
                del self._entries[old]
        self._wake.set()

    def _allowed(self, regarding: ObjectReference, now: float) -> bool:
        """Whether the object, and all together, may have one more new Event; it is then taken from both."""
        bucket = self._buckets.pop(regarding, None) or _full(_BURST, _REFILL_SECONDS, now)
        self._buckets[regarding] = bucket
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        if not (bucket.fill(now) and self._all.fill(now)):
            return False
        bucket.tokens -= 1
        self._all.tokens -= 1
        return True

    def _due(self) -> tuple[_Key | None, float]:
        """The next note to send, or how long until there is one that may be (0: until something is noted)."""
        now = self._clock.seconds()
        soonest = 0.0
        for key in self._queue:
            entry = self._entries[key]
            wait = entry.told_at + _COUNT_SECONDS - now if entry.told else 0.0
            if wait <= 0:
                return key, 0.0
            soonest = min(soonest, wait) if soonest else wait
        return None, soonest

    async def _sleep(self, seconds: float) -> None:
        """Until something is noted, or for so long (0: no limit)."""
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._wake.wait())]
        if seconds:
            waits.append(asyncio.create_task(self._clock.sleep(seconds)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    async def _send(self, key: _Key, entry: _Entry) -> None:
        count, wall = entry.count, entry.wall
        if entry.event is None:
            entry.event = await self._client.create(EVENTS, self._made(key, entry, count, wall))
        else:
            change: dict[str, Any] = {"series": {"count": count, "lastObservedTime": _micro_time(wall)}}
            entry.event = await self._client.patch(EVENTS, entry.event, change)
        entry.told, entry.told_at = count, self._clock.seconds()

    def _made(self, key: _Key, entry: _Entry, count: int, wall: float) -> Event:
        regarding, type_, reason, _ = key
        ago = entry.last - entry.first
        return Event(
            # What belongs to no namespace is told in `default`: the API server takes no other.
            metadata=ObjectMeta(
                name=f"{regarding.name[:_NAME_LIMIT].rstrip('-.')}.{secrets.token_hex(8)}",
                namespace=regarding.namespace or "default",
            ),
            event_time=_micro_time(wall - ago),
            reporting_controller=self._controller,
            reporting_instance=self._instance,
            action=reason[:128],
            reason=reason[:128],
            regarding=regarding,
            note=entry.message,
            type=type_,
            series=EventSeries(count, _micro_time(wall)) if count > 1 else None,
        )


def _full(most: int, refill: float, now: float) -> _Bucket:
    return _Bucket(float(most), refill, float(most), now)


def _micro_time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
