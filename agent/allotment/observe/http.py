"""A small HTTP/1.1 server for what is looked at: metrics, health, and later a status page.

Built on h11, which holds the protocol's rules; this module moves the bytes and sets the limits. It serves GET and
HEAD to whoever may reach the address, loopback by default, and reads no bodies. A peer that is slow, silent,
oversized or garbled costs one bounded connection; an error in a handler costs one answer (500) and a log line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import h11
import structlog

if TYPE_CHECKING:
    from socket import socket

__all__ = ["Handler", "HttpServer", "Limits", "Request", "Response"]

_TEXT: Final = "text/plain; charset=utf-8"
_CHUNK: Final = 16384


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a handler sees it. `path` is decoded and without the query; header names are in lower case."""

    path: str
    query: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. `body` is sent as it is."""

    body: bytes
    content_type: str = _TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one peer, and all together, may use. Times in seconds, sizes in bytes."""

    connections: int = 64
    head_bytes: int = 16384
    request_seconds: float = 10.0  # for a whole request to arrive, and for an idle connection to be used again
    answer_seconds: float = 30.0  # for the handler and for the peer to take the answer
    discarded_bytes: int = 65536  # of a body nobody asked for, before the connection is closed on it


class HttpServer:
    """Serves a table of routes: a path, exactly, to the coroutine that answers it.

    `start` listens, `close` ends every connection. Its tasks are its own and none of them raises.
    """

    def __init__(self, routes: Mapping[str, Handler], limits: Limits | None = None) -> None:
        self._routes = dict(routes)
        self._limits = limits or Limits()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._log = structlog.get_logger()

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._tasks)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address; port 0 lets the kernel choose.

        Raises:
            OSError: the address isn't this machine's, or is taken; the message names it.
        """
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=_CHUNK)
        except OSError as error:
            raise OSError(error.errno, f"can't serve HTTP on {host} port {port}: {error.strerror}") from error
        listener: socket = self._server.sockets[0]
        name = listener.getsockname()
        return str(name[0]), int(name[1])

    async def close(self) -> None:
        """Stop listening and end all connections, answered or not."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= self._limits.connections:
            writer.transport.abort()
            return
        writer.transport.set_write_buffer_limits(0)  # drain() then means that the kernel has all of it
        task = asyncio.create_task(self._serve(reader, writer), name="http connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Connection(reader, writer, self._limits, self._answer).serve()
        except (TimeoutError, OSError):
            writer.transport.abort()
        except Exception:  # noqa: BLE001  # a fault here must not end the agent, and must be seen
            self._log.exception("HTTP connection failed")
            writer.transport.abort()
        finally:
            if writer.transport.get_write_buffer_size():  # closing would go on waiting for this peer
                writer.transport.abort()
            writer.close()

    async def _answer(self, method: bytes, target: bytes, headers: Mapping[str, str]) -> Response:
        path, _, query = target.decode("ascii", "replace").partition("?")
        handler = self._routes.get(unquote(path))
        if handler is None:
            return Response(b"nothing is here\n", status=HTTPStatus.NOT_FOUND)
        if method not in (b"GET", b"HEAD"):
            return Response(
                b"only GET and HEAD are served\n", status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"}
            )
        try:
            return await handler(Request(unquote(path), query, headers))
        except Exception:  # noqa: BLE001  # as above: one answer fails, not the agent
            self._log.exception("HTTP request failed", path=path)
            return Response(b"this failed; the log says why\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)


_Answer = Callable[[bytes, bytes, Mapping[str, str]], Awaitable[Response]]


class _Connection:
    """One peer, one request after the other."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits, answer: _Answer
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._answer = answer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)

    async def serve(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._limits.request_seconds):
                    request = await self._next_event()
            except h11.RemoteProtocolError as error:
                await self._refuse(HTTPStatus(error.error_status_hint))
                return
            if not isinstance(request, h11.Request):  # the peer closed
                return
            async with asyncio.timeout(self._limits.answer_seconds):
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
                response = await self._answer(request.method, request.target, headers)
                await self._send(response, head_only=request.method == b"HEAD")
            if not await self._ready_for_next():
                return

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]  # the one other sentinel was just excluded
            self._http.receive_data(await self._reader.read(min(_CHUNK, self._limits.head_bytes)))

    async def _send(self, response: Response, *, head_only: bool) -> None:
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *response.headers.items(),
        ]
        if self._http.their_state not in (h11.DONE, h11.SEND_BODY):
            headers.append(("Connection", "close"))
        head = h11.Response(status_code=response.status, reason=response.status.phrase.encode("ascii"), headers=headers)
        out = self._http.send(head) or b""
        if not head_only:
            out += self._http.send(h11.Data(data=response.body)) or b""
        out += self._http.send(h11.EndOfMessage()) or b""
        self._writer.write(out)
        await self._writer.drain()

    async def _refuse(self, status: HTTPStatus) -> None:
        """Answer what isn't HTTP, where the protocol's state still allows an answer, and be done with the peer."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        async with asyncio.timeout(self._limits.answer_seconds):
            await self._send(Response(status.phrase.encode() + b"\n", status=status), head_only=False)

    async def _ready_for_next(self) -> bool:
        """Whether the connection can carry another request; a body that was not asked for is read and dropped."""
        if self._http.they_are_waiting_for_100_continue:
            return False
        dropped = 0
        async with asyncio.timeout(self._limits.request_seconds):
            while self._http.their_state is h11.SEND_BODY:
                try:
                    event = await self._next_event()
                except h11.RemoteProtocolError:
                    return False
                dropped += len(event.data) if isinstance(event, h11.Data) else 0
                if dropped > self._limits.discarded_bytes:
                    return False
        # The end of a request without a body is an event, too.
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True
