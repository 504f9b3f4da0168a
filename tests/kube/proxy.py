"""An HTTP proxy in front of an API server that fails as API servers do: what fails, and how often, a test says first.

    with Proxy(server) as proxy:
        client = connect(proxy.url)          # trusts the same CA, with the same tokens
        proxy.answer(429, retry_after=1, method="PATCH", path="/status$")
        proxy.lose_answers(method="POST", path="/leases")

Which requests are meant is said by `Which`; of several wishes that fit, the oldest comes first. A wish holds for as
many requests as `times` says, None for all until `heal`. For lines that break by themselves see `kube.line`; one goes
before a Proxy, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import h11

from kube.exchange import HOP_BY_HOP, Answer, Asked, Client, Request
from kube.line import Served, abort

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import Any

    from cluster.control_plane import ApiServer

__all__ = ["Asked", "Proxy", "Which"]

_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True)
class Which:
    """Which requests are meant: all that fit everything that is said. `path` is searched for in the path and query."""

    method: str = ""
    path: str = ""
    watch: bool | None = None

    def fits(self, request: Request) -> bool:
        return (
            self.method in ("", request.method)
            and re.search(self.path, request.target) is not None
            and self.watch in (None, request.watch)
        )


@dataclass
class _Wish:
    which: Which
    act: Callable[[Request, Client], Awaitable[None]] | None
    """None: it is about the events of a watch."""
    times: int | None
    tears: bool = False
    """Of an event: whether it is torn; else it is swapped with the next."""


@dataclass
class _Watch:
    request: Request
    pump: asyncio.Task[None]


class Proxy(Served):
    """Terminates TLS with a certificate of the API server's own CA, and passes on what nobody wished otherwise."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__()
        own = server.authority.issue("proxy", "/CN=proxy", names=("DNS:localhost", "IP:127.0.0.1"))
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(own.cert, own.key)
        self._target = (server.address, server.port)
        self._onward = ssl.create_default_context(cafile=str(server.ca_file))
        self._wishes: list[_Wish] = []
        self._watches: dict[Client, _Watch] = {}
        self.asked: list[Asked] = []
        """What clients have asked, in order."""

    # -- what shall fail

    def answer(self, status: int, *, retry_after: int | None = None, times: int | None = 1, **which: Any) -> None:
        """Answer with this status, and tell the server nothing; such as 500, 429 with `retry_after` seconds, 410."""
        headers = [(b"content-type", b"application/json")]
        if retry_after is not None:
            headers.append((b"retry-after", str(retry_after).encode()))

        async def act(_: Request, client: Client) -> None:
            await client.answer(status, json.dumps(_failure(status, "as wished")).encode(), headers)

        self._wish(act, times, which)

    def lose_requests(self, *, times: int | None = 1, **which: Any) -> None:
        """Reset the connection with the request on it; the server never hears of it."""

        async def act(_request: Request, _client: Client) -> None:
            raise ConnectionResetError

        self._wish(act, times, which)

    def lose_answers(self, *, times: int | None = 1, **which: Any) -> None:
        """Pass the request on, and reset the connection once the server has answered: what it wrote has happened."""

        async def act(request: Request, _: Client) -> None:
            async with self._passed_on(request) as answer:
                await answer.body()
            raise ConnectionResetError

        self._wish(act, times, which)

    def tear_answers(self, *, times: int | None = 1, **which: Any) -> None:
        """Pass the request on, answer with the first half of what the server said, and reset the connection."""

        async def act(request: Request, client: Client) -> None:
            async with self._passed_on(request) as answer:
                body = await answer.body()
                await client.begin(answer.status, answer.headers)
                await client.send(h11.Data(data=body[: len(body) // 2]))
            raise ConnectionResetError

        self._wish(act, times, {"watch": False, **which})

    def empty_lists(self, *, times: int | None = 1, **which: Any) -> None:
        """Answer a list with its resource version and no items."""

        async def act(request: Request, client: Client) -> None:
            async with self._passed_on(request) as answer:
                body = json.loads(await answer.body())
                body["items"] = []
                await client.answer(answer.status, json.dumps(body).encode(), answer.headers)

        self._wish(act, times, {"method": "GET", "watch": False, **which})

    def swap_events(self, *, times: int | None = 1, **which: Any) -> None:
        """Hold an event of a watch back until the one after it has gone out."""
        self._wish(None, times, {"watch": True, **which})

    def tear_events(self, *, times: int | None = 1, **which: Any) -> None:
        """Send the first half of an event, and reset the connection of its watch."""
        self._wish(None, times, {"watch": True, **which}, tears=True)

    def heal(self) -> None:
        """Forget all wishes."""
        self._do(self._wishes.clear)

    # -- done at once to watches that are open

    def inject(self, event: dict[str, Any], path: str = "") -> int:
        """Send an event of our own to all open watches whose path fits; how many there were."""
        line = json.dumps(event).encode() + b"\n"
        return self._do(self._to_watches(path, h11.Data(data=line)))

    def inject_gone(self, path: str = "") -> int:
        """Tell all open watches, within their answer of 200, that their resource version is too old (410)."""
        return self.inject({"type": "ERROR", "object": _failure(410, "too old resource version: 1 (2)")}, path)

    def end_watches(self, path: str = "") -> int:
        """End all open watches orderly, as the server does when their time is over; how many there were."""
        return self._do(self._to_watches(path, h11.EndOfMessage()))

    @property
    def watches(self) -> list[str]:
        """The paths of the open watches."""
        return self._do(lambda: [watch.request.target for watch in self._watches.values()])

    # -- in the loop's thread

    def _wish(self, act: Any, times: int | None, which: dict[str, Any], *, tears: bool = False) -> None:
        self._do(lambda: self._wishes.append(_Wish(Which(**which), act, times, tears)))

    def _granted(self, request: Request, *, of_events: bool) -> _Wish | None:
        """The first wish that fits, counted as used."""
        for wish in self._wishes:
            if (wish.act is None) == of_events and wish.which.fits(request):
                if wish.times is not None:
                    wish.times -= 1
                    if wish.times == 0:
                        self._wishes.remove(wish)
                return wish
        return None

    async def _serve(self, connection: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls)
        except (OSError, ssl.SSLError):
            connection.close()
            return
        client = Client(reader, asyncio.StreamWriter(transport, protocol, reader, self._loop), self.asked)
        try:
            while (request := await client.request()) is not None:
                await self._exchange(request, client)
                if client.http.our_state is not h11.DONE or client.http.their_state is not h11.DONE:
                    break
                client.http.start_next_cycle()
            client.writer.close()
        except (OSError, EOFError, h11.ProtocolError, asyncio.CancelledError):
            if (ours := transport.get_extra_info("socket")) is not None:  # else it is closed already
                abort(ours)
            transport.abort()

    async def _exchange(self, request: Request, client: Client) -> None:
        wish = self._granted(request, of_events=False)
        if wish is not None and wish.act is not None:
            await wish.act(request, client)
            return
        async with self._passed_on(request) as answer:
            await client.begin(answer.status, answer.headers)
            if request.watch and answer.status == 200:
                await self._watch(request, client, answer)
            else:
                async for chunk in answer.chunks():
                    await client.send(h11.Data(data=chunk))
                await client.send(h11.EndOfMessage())

    async def _watch(self, request: Request, client: Client, answer: Answer) -> None:
        pump = self._loop.create_task(self._pump(request, client, answer))
        gone = self._loop.create_task(client.gone())
        self._watches[client] = _Watch(request, pump)
        try:
            await asyncio.wait((pump, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._watches[client]
            gone.cancel()
            pump.cancel()
            results = await asyncio.gather(pump, gone, return_exceptions=True)
        if client.http.our_state is h11.SEND_BODY:  # else we have ended it ourselves
            if results[0] is not None:
                raise ConnectionResetError
            await client.send(h11.EndOfMessage())

    async def _pump(self, request: Request, client: Client, answer: Answer) -> None:
        rest, held = b"", b""
        async for chunk in answer.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                event = line + b"\n"
                if held:
                    event, held = event + held, b""
                elif b'"type":"BOOKMARK"' not in line and (wish := self._granted(request, of_events=True)) is not None:
                    if wish.tears:
                        await client.send(h11.Data(data=event[: len(event) // 2]))
                        raise ConnectionResetError
                    held = event
                    continue
                await client.send(h11.Data(data=event))

    async def _to_watches(self, path: str, event: h11.Event) -> int:
        chosen = [client for client, watch in self._watches.items() if re.search(path, watch.request.target)]
        for client in chosen:
            await client.send(event)
            if isinstance(event, h11.EndOfMessage):
                self._watches[client].pump.cancel()
        return len(chosen)

    @contextlib.asynccontextmanager
    async def _passed_on(self, request: Request) -> AsyncIterator[Answer]:
        reader, writer = await asyncio.open_connection(*self._target, ssl=self._onward)
        try:
            http = h11.Connection(h11.CLIENT)
            dropped = HOP_BY_HOP | {b"accept-encoding", b"content-length", b"expect"}
            headers = [(name, value) for name, value in request.headers if name.lower() not in dropped]
            headers += [(b"connection", b"close"), (b"content-length", str(len(request.body)).encode())]
            whole = [
                h11.Request(method=request.method, target=request.target, headers=headers),
                h11.Data(data=request.body),
                h11.EndOfMessage(),
            ]
            writer.write(b"".join(http.send(event) or b"" for event in whole))
            answer = Answer(reader, http)
            await answer.begin()
            yield answer
        finally:
            writer.transport.abort()


def _failure(status: int, message: str) -> dict[str, Any]:
    """The Status object of an error, as Kubernetes' API conventions have it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(status, ""),
        "code": status,
    }
