"""A TCP line that breaks when told to, in every way in which lines break: for between a client and an API server.

    with Line(server.address, server.port) as line:
        client = connect(line.port)
        line.blackhole()

It knows nothing of what it carries, so TLS passes untouched. What the kernel does (it acknowledges what it is sent)
stays alive in all of this: a client notices by its own timeouts alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, Self

__all__ = ["Line", "Served", "abort"]

_CHUNK = 1 << 16
_PATIENCE = 10.0
_RESET = struct.pack("ii", 1, 0)


def abort(connection: socket.socket) -> None:
    """Make the next closing of a connection an RST."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class Served:
    """A TCP server of 127.0.0.1 with a loop in a thread of its own; a context manager.

    Its methods may be called from any other thread, and have taken effect when they return.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=type(self).__name__, daemon=True)
        self._listening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        """Where it listens; the same one again after `down` and `up`."""
        self.accepted = 0
        """How many connections there have been."""

    def __enter__(self) -> Self:
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()

    @property
    def url(self) -> str:
        """Where an HTTPS client finds it."""
        return f"https://127.0.0.1:{self.port}"

    def up(self) -> None:
        """Listen; nothing if it does."""
        self._do(self._listen)

    def down(self) -> None:
        """Refuse new connections, until `up`; those that are there go on."""
        self._do(self._stop_listening())

    async def _serve(self, client: socket.socket) -> None:
        """Serve one connection, and close it; cancelled when all ends."""
        raise NotImplementedError

    def _listen(self) -> None:
        if self._listening is None:
            server = socket.create_server(("127.0.0.1", self.port), backlog=128)
            server.setblocking(False)  # the socket module's own spelling
            self.port = server.getsockname()[1]
            self._listening = self._loop.create_task(self._accept(server))

    async def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None

    async def _accept(self, server: socket.socket) -> None:
        with server:
            while True:
                client, _ = await self._loop.sock_accept(server)
                self.accepted += 1
                task = self._loop.create_task(self._serve(client))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        await self._stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, Any] | Callable[[], Any]) -> Any:
        """Have the loop's thread do this, and wait for it."""

        async def called() -> Any:
            return work()

        future = asyncio.run_coroutine_threadsafe(called() if callable(work) else work, self._loop)
        return future.result(_PATIENCE)


class _Direction:
    """One direction of all connections: whether bytes go on, and how fast."""

    def __init__(self) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self.rate = 0.0
        """Bytes a second; 0: as many as come."""
        self.carried = 0
        """Bytes so far."""


class Line(Served):
    """Carries bytes between its port and a server, and does what it is told."""

    def __init__(self, address: str, port: int) -> None:
        super().__init__()
        self._target = (address, port)
        self._requests = _Direction()
        self._answers = _Direction()
        self._black = False
        self._carried: dict[asyncio.Task[None], tuple[socket.socket, ...]] = {}
        self._lost: list[socket.socket] = []

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for end in self._lost:
            end.close()

    @property
    def connections(self) -> int:
        """How many connections it carries."""
        return len(self._carried)

    @property
    def answered(self) -> int:
        """How many bytes of the server's it has carried."""
        return self._answers.carried

    def cut(self) -> None:
        """End all present connections with RST, on both sides; new ones are carried."""
        self._do(lambda: self._end(abort))

    def finish(self) -> None:
        """End all present connections orderly (FIN), as a load balancer does with idle ones; new ones are carried."""
        self._do(lambda: self._end(lambda _: None))

    def stall(self, *, requests: bool = True, answers: bool = True) -> None:
        """Keep what comes, towards the server or the client, until `flow`; then it goes on and nothing is lost."""
        for direction, chosen in ((self._requests, requests), (self._answers, answers)):
            if chosen:
                self._do(direction.flows.clear)

    def blackhole(self) -> None:
        """From now on nothing arrives anywhere, no FIN and no RST either.

        Present connections never work again; new ones are taken up and get no answer. `flow` helps those that come
        after it.
        """
        self._do(self._lose)

    def slow(self, rate: float) -> None:
        """Carry this many bytes a second and no more, in each direction of each connection."""
        self._requests.rate = self._answers.rate = rate

    def flow(self) -> None:
        """Carry as it should be: end `stall`, `slow` and `blackhole`."""
        self.slow(0.0)
        self._do(self._flow)

    # -- in the loop's thread

    def _end(self, how: Callable[[socket.socket], None]) -> None:
        for task, ends in self._carried.items():
            for end in ends:
                how(end)
            task.cancel()

    def _lose(self) -> None:
        self._black = True
        for task, ends in self._carried.items():
            self._lost += [end.dup() for end in ends]  # a copy that stays open keeps the kernel silent
            task.cancel()

    def _flow(self) -> None:
        self._black = False
        self._requests.flows.set()
        self._answers.flows.set()

    async def _serve(self, client: socket.socket) -> None:
        if self._black:
            self._lost.append(client)
            return
        task = asyncio.current_task()
        assert task is not None
        with client, socket.socket() as server:
            for end in (client, server):
                end.setblocking(False)  # the socket module's own spelling
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._carried[task] = (client, server)
            try:
                await self._loop.sock_connect(server, self._target)
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._pump(client, server, self._requests))
                    pumps.create_task(self._pump(server, client, self._answers))
            except (OSError, ExceptionGroup):
                for end in (client, server):  # one side was reset or isn't there: so is the other
                    abort(end)
            finally:
                del self._carried[task]

    async def _pump(self, source: socket.socket, target: socket.socket, direction: _Direction) -> None:
        while True:
            rate = direction.rate
            data = await self._loop.sock_recv(source, max(1, int(rate / 20)) if rate else _CHUNK)
            await direction.flows.wait()
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            await self._loop.sock_sendall(target, data)
            direction.carried += len(data)
            if rate:
                await self._pause(len(data) / rate)

    async def _pause(self, seconds: float) -> None:
        done = self._loop.create_future()
        self._loop.call_later(seconds, done.cancel)
        await asyncio.wait([done])
