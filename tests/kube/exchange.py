"""The two ends of an HTTP proxy, each on a connection of its own: a client that asks, a server that answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import h11

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

__all__ = ["HOP_BY_HOP", "Answer", "Asked", "Client", "Request"]

_CHUNK = 1 << 16
HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"}


@dataclass
class Asked:
    """A request as the client sent it; `status` is what it was told, None as long as that is nothing."""

    method: str
    target: str
    status: int | None = None


@dataclass
class Request:
    method: str
    target: str
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def watch(self) -> bool:
        return parse_qs(urlsplit(self.target).query).get("watch", ["0"])[0] in ("1", "true")


@dataclass(eq=False)
class Client:
    """A client's connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    asked: list[Asked]
    http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.SERVER))

    async def request(self) -> Request | None:
        """The next request, None when there is none any more."""
        head, body = None, b""
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                self.http.receive_data(await self.reader.read(_CHUNK))
            elif isinstance(event, h11.Request):
                head = event
                if self.http.they_are_waiting_for_100_continue:
                    await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                self.asked.append(Asked(head.method.decode(), head.target.decode()))
                self._current = self.asked[-1]
                return Request(self._current.method, self._current.target, list(head.headers), body)
            else:
                return None

    async def gone(self) -> None:
        """Return when the client hangs up or asks again, which it does only once it is done with an answer."""
        self.http.receive_data(await self.reader.read(_CHUNK))

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._current.status = status
        await self.send(h11.Response(status_code=status, headers=headers))

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()

    async def answer(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """A whole answer; its length replaces the one that is among the headers."""
        kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
        await self.begin(status, [*kept, (b"content-length", str(len(body)).encode())])
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())


class Answer:
    """What the API server answers."""

    def __init__(self, reader: asyncio.StreamReader, http: h11.Connection) -> None:
        self._reader = reader
        self._http = http
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []

    async def begin(self) -> None:
        event = await self._next()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next()
        assert isinstance(event, h11.Response)
        self.status = event.status_code
        self.headers = [(name, value) for name, value in event.headers if name.lower() not in HOP_BY_HOP]

    async def chunks(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_CHUNK))
        return event
