"""The life of one connection: a request is read, worked on, answered, and the answer acknowledged.

    READING ──whole request──▶ WORKING ──reply──▶ WRITING ──all of it──▶ ANSWERED ──acknowledged──▶ CLOSED

Each state but WORKING has a deadline, so that whoever is slow or silent holds one connection for a bounded time. A
caller that hangs up while its request is worked on has that work cancelled; one that hangs up, or lets the deadline
pass, after there was a reply has it taken back (`Handler.lost`). It may not then believe the answer it has: the
deadline first closes the way back, so that no acknowledgement can slip past the decision, and says WITHDRAWN.

This sits on readiness events and not on asyncio's transports: those cost a task, two callbacks and a round of the
loop for each accepted connection, before the first byte of it has been looked at.
"""

from __future__ import annotations

import math
import select
import socket
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from allotment.addressing.errors import AllotmentError, DecodeError, InternalError, TryAgain
from allotment.cni.answers import answer
from allotment.cni.exchange import Call, Handler, Reply
from allotment.cni.frames import (
    ACKNOWLEDGED,
    WITHDRAWN,
    Kind,
    Request,
    RequestParser,
    decode_environment,
    decode_query_name,
    encode_reply,
)
from allotment.cni.versions import NEWEST

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from allotment.observe.clock import Clock

__all__ = ["Connection", "Host", "Limits", "Peer", "Stats", "Watcher"]

_PIECE: Final = 32_768  # bytes read at once: more than almost any request has
_DONE: Final = RequestParser()  # stands where a connection's own was, which may be large


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What callers may take from us. Seconds unless said."""

    connections: int = 4096  # open at once; more wait in the kernel's queue
    held: int = 64 << 20  # bytes of unfinished requests, of all connections together
    read: float = 5.0  # from accepting to the whole request
    write: float = 5.0  # from the reply to the last byte of it taken
    acknowledge: float = 5.0  # from there to the acknowledgement
    undo: float = 10.0  # what `drain` grants, past its own limit, to work that takes itself back


class Stats(msgspec.Struct):
    """Counts since the start, of connections unless said. All but the first three and last two are ways to end."""

    accepted: int = 0
    calls: int = 0  # whole requests of kind call
    queries: int = 0  # and of kind query
    acknowledged: int = 0  # answered, and all well
    refused: int = 0  # the caller's credentials
    malformed: int = 0  # what it sent was no request
    slow: int = 0  # the request did not arrive in time
    crowded: int = 0  # too many unfinished requests at once
    hung_up: int = 0  # gone before there was a reply
    lost: int = 0  # replies that were not acknowledged
    full: int = 0  # times that accepting stopped at Limits.connections
    starved: int = 0  # times that accepting stopped for want of file descriptors or memory


class Peer(msgspec.Struct, frozen=True, gc=False):
    """Who is at the other end, as the kernel says."""

    pid: int
    uid: int


class Watcher(Protocol):
    """Who is told of what went wrong with a connection, for the log. Must not raise."""

    def refused(self, peer: Peer, error: AllotmentError) -> None:
        """The request was not taken: credentials, or malformed, slow, too much."""
        ...

    def abandoned(self, call: Call, reply: Reply | None) -> None:
        """The caller is gone; with a reply, that is being taken back."""
        ...

    def failed(self, request_id: str, error: Exception) -> None:
        """The handler raised what it should not: a fault of ours."""
        ...


class Host(Protocol):
    """What a connection needs of its server."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    handler: Handler
    limits: Limits
    stats: Stats
    watcher: Watcher | None
    held: int
    working: int

    def next_id(self) -> str:
        """A request ID."""
        ...

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Run it as far as it goes without waiting; the task that goes on with it, if there is more."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it, holding a reference for as long as it runs."""
        ...

    def watch_writing(self, fd: int, *, wanted: bool) -> None:
        """Whether the connection is to be told when it can write; that it can read, it is always told."""
        ...

    def forget(self, fd: int) -> None:
        """The connection is about to be closed."""
        ...


class _State(Enum):
    READING = auto()
    WORKING = auto()
    WRITING = auto()
    ANSWERED = auto()
    CLOSED = auto()


class Connection:
    """One caller."""

    __slots__ = (
        "_call",
        "_fd",
        "_held",
        "_host",
        "_parser",
        "_reply",
        "_sock",
        "_state",
        "_task",
        "_unsent",
        "_waits_to_write",
        "deadline",
        "peer",
    )

    def __init__(self, host: Host, sock: socket.socket, peer: Peer) -> None:
        self.deadline = host.loop.time() + host.limits.read
        self._host = host
        self._sock = sock
        self._fd = sock.fileno()
        self.peer = peer
        self._state = _State.READING
        self._parser = RequestParser()
        self._held = 0
        self._task: asyncio.Task[None] | None = None
        self._call: Call | None = None
        self._reply: Reply | None = None
        self._unsent = memoryview(b"")
        self._waits_to_write = False

    def open(self) -> None:
        """Begin. The request is mostly here already: the caller sends it in the same breath as it connects."""
        self._readable()

    def ready(self, events: int) -> None:
        """The kernel has something: bits of `select.EPOLL*`."""
        if events & ~select.EPOLLOUT:
            self._readable()
        if events & select.EPOLLOUT and self._state is _State.WRITING:
            self._write()

    def expire(self) -> None:
        """The deadline has passed."""
        if self._state is _State.READING:
            parser, seconds = self._parser, self._host.limits.read
            of = f"of {parser.size} " if parser.size else ""
            self._host.stats.slow += 1
            self._refuse(DecodeError(f"no whole request in {seconds:g} s, only {parser.held} {of}bytes of it"))
        elif self._state in (_State.WRITING, _State.ANSWERED):
            self._withdraw()

    def abort(self) -> None:
        """End it now, as if the caller had hung up."""
        if self._state is _State.WORKING or self._state is _State.READING:
            self._hung_up()
        elif self._state is not _State.CLOSED:
            self._withdraw()

    def refuse(self, error: AllotmentError) -> None:
        """Say why this caller is not served, and close."""
        self._host.stats.refused += 1
        self._refuse(error)

    # -- what comes in

    def _readable(self) -> None:
        try:
            reading = self._state is _State.READING
            data = self._sock.recv(max(self._parser.wanted, _PIECE) if reading else 16)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # a reset is a hang-up
            data = b""
        if self._state is _State.READING:
            self._read(data)
        elif self._state is _State.WORKING:
            self._hung_up()  # also where something was sent: an acknowledgement of nothing is as good as none
        elif self._state is _State.ANSWERED and data.startswith(ACKNOWLEDGED):
            self._acknowledged()
        else:
            self._withdraw()

    def _read(self, data: bytes) -> None:
        if not data:
            self._hung_up()
            return
        try:
            request = self._parser.feed(data)
            if request is not None:
                self._hold(-self._held)
                self._parser = _DONE
                self._begin(request)
                return
        except DecodeError as error:
            self._host.stats.malformed += 1
            self._refuse(error)
            return
        self._hold(len(data))
        if self._host.held > self._host.limits.held:
            self._host.stats.crowded += 1
            self._refuse(TryAgain("too many unfinished requests are held by this agent; try again shortly"))

    def _hold(self, size: int) -> None:
        self._held += size
        self._host.held += size

    def _begin(self, request: Request) -> None:
        host = self._host
        if request.kind is Kind.CALL:
            env = decode_environment(request.head)
            call = Call(host.next_id(), env, request.body, host.clock.seconds(), self.peer.pid)
            self._call = call
            host.stats.calls += 1
            work = self._answer_call(call)
        else:
            work = self._answer_query(decode_query_name(request.head), request.body)
            host.stats.queries += 1
        self._state = _State.WORKING
        self.deadline = math.inf  # the handler has its own limits, and so has the caller
        self._task = host.begin(work)

    # -- the work

    async def _answer_call(self, call: Call) -> None:
        self._host.working += 1
        try:
            reply = await self._host.handler.call(call)
        except AllotmentError as error:
            self._send(_failure(error, call.id))
            return
        except Exception as error:  # noqa: BLE001  # a fault of ours must not leave the caller without an answer
            self._failed(call.id, error)
            return
        finally:
            self._host.working -= 1
        try:
            frame = encode_reply(reply)
        except DecodeError as error:
            # Not in this task, which is cancelled when the caller hangs up.
            self._host.begin(self._undo(call, reply))
            self._failed(call.id, _unsendable(error))
            return
        self._reply = reply
        if self._state is _State.CLOSED:
            self._host.stats.lost += 1
            await self._undo(call, reply)
        else:
            self._send(frame)

    async def _answer_query(self, name: str, arguments: bytes) -> None:
        request_id = self._host.next_id()
        try:
            body = await self._host.handler.query(name, arguments)
        except AllotmentError as error:
            self._send(_failure(error, request_id))
            return
        except Exception as error:  # noqa: BLE001  # as above
            self._failed(request_id, error)
            return
        try:
            self._send(encode_reply(Reply(body)))
        except DecodeError as error:
            self._failed(request_id, _unsendable(error))

    def _failed(self, request_id: str, error: Exception) -> None:
        if self._host.watcher is not None:
            self._host.watcher.failed(request_id, error)
        self._send(_failure(error, request_id))

    async def _undo(self, call: Call, reply: Reply) -> None:
        if self._host.watcher is not None:
            self._host.watcher.abandoned(call, reply)
        try:
            await self._host.handler.lost(call, reply)
        except Exception as error:  # noqa: BLE001  # the caller is gone: the log is all there is left to tell
            if self._host.watcher is not None:
                self._host.watcher.failed(call.id, error)

    # -- what goes out

    def _send(self, frame: bytes) -> None:
        if self._state is _State.CLOSED:
            return
        self._state = _State.WRITING
        self._unsent = memoryview(frame)
        self.deadline = self._host.loop.time() + self._host.limits.write
        self._write()

    def _write(self) -> None:
        """Send what can be sent, and the rest when that can be."""
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._withdraw()
            return
        rest = self._unsent[sent:]
        if bool(rest) != self._waits_to_write:
            self._waits_to_write = bool(rest)
            self._host.watch_writing(self._fd, wanted=bool(rest))
        self._unsent = rest
        if not rest:
            self._state = _State.ANSWERED
            self.deadline = self._host.loop.time() + self._host.limits.acknowledge

    def _refuse(self, error: AllotmentError) -> None:
        if self._host.watcher is not None:
            self._host.watcher.refused(self.peer, error)
        with suppress(OSError):  # it is not there, or does not read: then it can't be told
            # The kernel keeps what is sent for the other end to read, also after we have closed ours.
            self._sock.send(_failure(error, ""))
        self._close()

    # -- the ends

    def _acknowledged(self) -> None:
        self._host.stats.acknowledged += 1
        self._close()
        if self._call is not None:
            self._host.handler.acknowledged(self._call)

    def _hung_up(self) -> None:
        self._host.stats.hung_up += 1
        self._close()
        if self._call is not None and self._host.watcher is not None:
            self._host.watcher.abandoned(self._call, None)
        if self._task is not None:
            self._task.cancel()

    def _withdraw(self) -> None:
        undo = True
        if self._state is _State.ANSWERED:
            try:
                self._sock.shutdown(socket.SHUT_RD)  # from here on the other end cannot acknowledge …
                if self._sock.recv(1) == ACKNOWLEDGED:  # … and this is whether it has
                    self._acknowledged()
                    return
                self._sock.send(WITHDRAWN)
            except BlockingIOError:
                # More than the kernel holds for one connection is unread, so this cannot be said; what was answered
                # then has to hold, and ends by DEL or as an orphan.
                undo = False
            except OSError:
                pass  # nobody is there
        if not undo:
            self._acknowledged()
            return
        self._host.stats.lost += 1
        self._close()
        if self._call is not None and self._reply is not None:
            self._host.spawn(self._undo(self._call, self._reply))

    def _close(self) -> None:
        self._hold(-self._held)
        self._state = _State.CLOSED
        self._host.forget(self._fd)
        self._sock.close()


def _unsendable(error: DecodeError) -> InternalError:
    fault = InternalError(f"the answer cannot be sent: {error.message}")
    fault.__cause__ = error
    return fault


def _failure(error: BaseException, request_id: str) -> bytes:
    body, exit_code = answer(error, NEWEST, request_id=request_id)
    return encode_reply(Reply(body, exit_code))
