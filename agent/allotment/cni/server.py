"""The agent's end of the socket: accepts callers, bounds what they may take, and gives their requests to a handler.

Callers are root, or run as the agent's own user; the socket's mode says so, and the kernel's word on each of them
(SO_PEERCRED) is asked as well. More callers than `Limits.connections` wait in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import select
import socket
import stat
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from allotment.addressing.errors import ConfigError, InternalError, StateFolderHeld
from allotment.cni.begun import begin
from allotment.cni.connection import Connection, Limits, Peer, Stats, Watcher

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from allotment.cni.exchange import Handler
    from allotment.observe.clock import Clock

__all__ = ["BACKLOG", "CniServer", "Limits", "Peer", "Stats", "Watcher", "bind", "refuse_if_answered"]

BACKLOG: Final = 4096

_LONGEST_PATH: Final = 107  # bytes of sockaddr_un.sun_path, without its NUL (unix(7))
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid
_AT_ONCE: Final = 128  # connections accepted in one go, so that those that are open get their turn
_STARVED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_RECOVERY: Final = 0.1  # seconds without accepting after one of these
_SWEEP: Final = 0.25  # seconds between two looks at the deadlines; divides the shortest of them by four at least


def bind(path: Path, *, backlog: int = BACKLOG) -> socket.socket:
    """A listening socket at `path`, mode 0600, in the place of whatever socket was there.

    It is made under another name and renamed, so that a caller always finds a socket that listens: the earlier
    agent's or this one. The folder is made (0700) if it is missing. Nobody removes the socket: a caller that finds
    one without a listener knows, as without a socket, that the agent is away.

    Raises:
        ConfigError: the path is too long, taken by something that is no socket, or cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    if len(os.fsencode(temporary)) > _LONGEST_PATH:
        room = _LONGEST_PATH - len(os.fsencode(temporary)) + len(os.fsencode(path))
        raise ConfigError(f"the socket's path {path} is too long: here it may have {room} bytes")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _refuse_if_taken(path)
        temporary.unlink(missing_ok=True)
        sock.bind(str(temporary))
        temporary.chmod(0o600)  # nobody can have connected before: it does not listen yet
        sock.listen(backlog)
        temporary.rename(path)
    except OSError as error:
        sock.close()
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"cannot listen at {path}: {error.strerror}") from error
    except ConfigError:
        sock.close()
        raise
    return sock


def refuse_if_answered(path: Path) -> None:
    """See that nobody listens at `path`; a socket that an ended agent left there doesn't matter.

    Two agents with a state folder each would both give addresses: whoever was here first keeps the socket (I1).

    Raises:
        StateFolderHeld: somebody does; the message says which process.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0.0)
        process: int | str = "unknown"
        try:
            caller.connect(str(path))
            process, _, _ = _CREDENTIALS.unpack(
                caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
        except BlockingIOError:  # its queue is full: somebody does listen
            pass
        except OSError:
            return
    raise StateFolderHeld(
        f"another agent (process {process}) answers at {path}: stop that one, or give this one another --socket"
    )


def _peer(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group at the other end, as the kernel knows them."""
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid


def _refuse_if_taken(path: Path) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"{path} is there and is no socket: remove it, or choose another path")


class CniServer:
    """Serves one listening socket, ours (`bind`) or one that systemd passed on, from `start` to `drain`."""

    def __init__(
        self,
        handler: Handler,
        listener: socket.socket,
        *,
        clock: Clock,
        limits: Limits | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.handler = handler
        self.clock = clock
        self.limits = limits or Limits()
        self.watcher = watcher
        self.stats = Stats()
        self.held = 0
        self.working = 0
        """Calls that the handler works on at this moment."""
        self.loop: asyncio.AbstractEventLoop
        self._listener = listener
        self._accepting = False
        self._ready = 0  # how many callers the kernel told of when it last told of any
        # One epoll for all connections below the loop's own: a registration with the loop for each of them, which
        # lives for a millisecond, is a fifth of what a request costs.
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._ended: asyncio.Future[None]
        self._ids = itertools.count(1)
        self._id_prefix = os.urandom(3).hex()
        self._own_uid = os.geteuid()

    @property
    def open_connections(self) -> int:
        """Connections at this moment."""
        return len(self._connections)

    @property
    def alone(self) -> bool:
        """Whether whoever asks this is the only one that is served now: nobody waits, and nobody came with it."""
        return self._ready <= 1 and not self._tasks

    @property
    def unfinished(self) -> int:
        """Requests that are worked on, and lost replies being taken back, at this moment."""
        return len(self._tasks)

    def start(self) -> None:
        """Begin to accept. To be called once, on the running loop."""
        self.loop = asyncio.get_running_loop()
        self._ended = self.loop.create_future()
        self._listener.settimeout(0.0)
        self.loop.add_reader(self._epoll.fileno(), self._dispatch)
        self._resume()

    async def wait(self) -> None:
        """Return when `drain` is through.

        Raises:
            InternalError: the listening socket is broken; what was accepted is still served.
        """
        await asyncio.shield(self._ended)

    async def drain(self, limit: float) -> int:
        """Stop accepting, let what was accepted come to its end, and after `limit` seconds end the rest.

        Callers still in the kernel's queue are served by whoever listens there next, or see the connection end
        without an answer and ask again. Returns how many connections had to be ended.
        """
        self._pause()
        self._listener.close()
        await self._until_idle(limit)
        ended = len(self._connections)
        for connection in tuple(self._connections.values()):
            connection.abort()
        await self._until_idle(self.limits.undo)
        for task in self._tasks:
            task.cancel()
        await self._until_idle(self.limits.undo)
        if self._sweeper is not None:
            self._sweeper.cancel()
        if not self._epoll.closed:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
        if not self._ended.done():
            self._ended.set_result(None)
        return ended

    async def _until_idle(self, limit: float) -> None:
        try:
            async with asyncio.timeout(limit):
                while self._connections or self._tasks:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            pass

    # -- accepting

    def _resume(self) -> None:
        if not self._accepting and self._listener.fileno() >= 0 and not self._ended.done():
            self._accepting = True
            self.loop.add_reader(self._listener.fileno(), self._accept)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self.loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        accepted = [self._register(sock) for sock in self._waiting()]
        self._ready = len(accepted)
        for connection in accepted:
            self._open(connection)

    def _waiting(self) -> Iterator[socket.socket]:
        """The callers in the kernel's queue, as many as there is room for."""
        for _ in range(_AT_ONCE):
            if len(self._connections) >= self.limits.connections:
                self.stats.full += 1
                self._pause()  # until `forget`
                return
            try:
                yield self._listener.accept()[0]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause()
                if error.errno in _STARVED:
                    self.stats.starved += 1
                    self.loop.call_later(_RECOVERY, self._resume)
                else:
                    self._fail(error)
                return

    def _register(self, sock: socket.socket) -> Connection:
        sock.settimeout(0.0)
        pid, uid, _ = _peer(sock)
        connection = self._connections[sock.fileno()] = Connection(self, sock, Peer(pid, uid))
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self.stats.accepted += 1
        return connection

    def _open(self, connection: Connection) -> None:
        pid, uid = connection.peer.pid, connection.peer.uid
        if uid not in (0, self._own_uid):
            connection.refuse(
                ConfigError(
                    f"user {uid} (process {pid}) may not ask this agent; only root and user {self._own_uid} may"
                )
            )
            return
        connection.open()
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self._interval(), self._sweep)

    def _dispatch(self) -> None:
        happened = self._epoll.poll(0, _AT_ONCE)
        self._ready = len(happened)
        for fd, events in happened:
            if (connection := self._connections.get(fd)) is not None:
                connection.ready(events)

    def _interval(self) -> float:
        limits = self.limits
        return min(_SWEEP, min(limits.read, limits.write, limits.acknowledge) / 4)

    def _sweep(self) -> None:
        # One timer for all: nearly every request is long over when the first of its deadlines would pass.
        now = self.loop.time()
        for connection in tuple(self._connections.values()):
            if connection.deadline <= now:
                connection.expire()
        self._sweeper = self.loop.call_later(self._interval(), self._sweep) if self._connections else None

    # -- what connections ask of us

    def next_id(self) -> str:
        """A request ID: unlike any other of this process, and most likely of its predecessors."""
        return f"{self._id_prefix}-{next(self._ids)}"

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Run it as far as it goes without waiting (`cni.begun`); the task that goes on with it, if there is more.

        What it raises ends the server, whether or not it waited before: a caller must not wait for nobody.
        """
        try:
            begun = begin(work)
        except Exception as error:  # noqa: BLE001  # as of a task (`_done`)
            self._fail(error)
            return None
        return None if begun is None else self.spawn(begun)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it, holding a reference for as long as it runs."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._idle.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._ended.done():
            broken = InternalError(f"the socket cannot be served any further: {type(error).__name__}: {error}")
            broken.__cause__ = error
            self._ended.set_exception(broken)

    def watch_writing(self, fd: int, *, wanted: bool) -> None:
        """Whether the connection is to be told when it can write."""
        self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

    def forget(self, fd: int) -> None:
        """The connection is about to be closed."""
        self._epoll.unregister(fd)
        del self._connections[fd]
        self._idle.set()
        if not self._accepting:
            self._resume()
