"""A container runtime that knows what it is told, at a socket of its own, and answers as badly as it is told to.

    with FakeRuntime(folder / "cri.sock") as runtime:
        runtime.start(Sandbox("s1", name="web-0", namespace="shop", uid="u1", ready=True))
        runtime.fault = Fault.STALL

It speaks the calls of `allotment.cri.messages` and minds the caller's windows. It runs in threads of its own, so that
tests with and without an event loop, and other processes, can ask it.
"""

from __future__ import annotations

import enum
import json
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote

from allotment.cri import hpack
from allotment.cri.http2 import PREFACE, Flag, Setting, Type, frame, settings
from allotment.cri.messages import LIST, STATUS, VERSION, Sandbox, fields, varint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

__all__ = ["FakeRuntime", "Fault", "encode_huffman", "encode_sandbox", "encode_status"]

_FRAME: Final = 16384
_NODE: Final = 2


class Fault(enum.Enum):
    """What is wrong with the answers; it holds from the next call on."""

    NONE = "none"
    STALL = "the answer never comes"
    CUT = "the connection ends in the middle of the answer"
    ERROR = "the call fails, with trailers"
    ERROR_AT_ONCE = "the call fails, with nothing but trailers"
    EMPTY = "the list is empty, whatever runs"
    UNIMPLEMENTED = "this version of the CRI isn't known"
    RESET = "the stream is reset"
    GO_AWAY = "the connection is closed in good order, before the call"
    NO_STATUS = "the answer ends without a status"
    OTHER_PROTOCOL = "what listens there is a web server"


class FakeRuntime:
    """The runtime. `asked` are the paths of the calls it has heard; `message` is what an ERROR says."""

    def __init__(self, path: Path, *, window: int = 65535) -> None:
        self.path = path
        self.fault = Fault.NONE
        self.message = "the store is locked: 50% of 2 ✗"
        self.asked: list[str] = []
        self._window = window
        self._sandboxes: dict[str, Sandbox] = {}
        self._lock = threading.Lock()
        self._callers: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._ended = False

    def __enter__(self) -> Self:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._begin(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended = True
            for caller in self._callers:
                with suppress(OSError):
                    caller.shutdown(socket.SHUT_RDWR)
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def start(self, *sandboxes: Sandbox) -> None:
        """These run from here on, or run otherwise than before."""
        with self._lock:
            self._sandboxes |= {sandbox.id: sandbox for sandbox in sandboxes}

    def remove(self, *ids: str) -> None:
        """Nothing is known of these any more."""
        with self._lock:
            for identity in ids:
                self._sandboxes.pop(identity, None)

    def sandboxes(self) -> tuple[Sandbox, ...]:
        """Those that run."""
        with self._lock:
            return tuple(self._sandboxes.values())

    # -- threads

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._ended:
                    caller.close()
                    return
                self._callers.add(caller)
            self._begin(self._serve, caller)

    def _serve(self, caller: socket.socket) -> None:
        with caller, suppress(OSError, EOFError):
            _Connection(self, caller, self._window).run()
        with self._lock:
            self._callers.discard(caller)

    # -- answers

    def answer(self, path: str, request: bytes) -> tuple[int, bytes]:
        """The status of gRPC, and the message or (where the status isn't 0) what it says."""
        values = dict(fields(request))
        self.asked.append(path)
        match path:
            case _ if self.fault is Fault.UNIMPLEMENTED:
                return 12, b"unknown service runtime.v1.RuntimeService"
            case _ if self.fault in (Fault.ERROR, Fault.ERROR_AT_ONCE):
                return 2, self.message.encode()
            case _ if path == VERSION:
                return 0, b"".join(_text(number, text) for number, text in ((2, "fake"), (3, "1.0"), (4, "v1")))
            case _ if path == LIST:
                found = () if self.fault is Fault.EMPTY else self.sandboxes()
                return 0, b"".join(_bytes(1, encode_sandbox(sandbox)) for sandbox in found)
            case _ if path == STATUS:
                wanted = values.get(1, b"")
                sandbox = self._sandboxes.get(wanted.decode()) if isinstance(wanted, bytes) else None
                return (0, encode_status(sandbox)) if sandbox else (5, b"no such sandbox")
        return 12, f"unknown method {path}".encode()


@dataclass
class _Connection:
    """One caller; blocking."""

    runtime: FakeRuntime
    caller: socket.socket
    window: int
    _rest: bytes = b""
    _room: dict[int, int] = field(default_factory=lambda: {0: 65535})
    _first: int = 65535
    _path: dict[int, str] = field(default_factory=dict)
    _body: dict[int, bytes] = field(default_factory=dict)

    def run(self) -> None:
        if self.runtime.fault is Fault.OTHER_PROTOCOL:
            self._read(len(PREFACE))
            self.caller.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            return
        assert self._read(len(PREFACE)) == PREFACE  # noqa: S101  # the caller under test is wrong
        self.caller.sendall(settings({Setting.INITIAL_WINDOW_SIZE: self.window}))
        self.caller.sendall(frame(Type.PING, 0, 0, b"are you?"))
        while True:
            stream = self._next()
            if stream:
                self._reply(stream)

    def _read(self, size: int) -> bytes:
        while len(self._rest) < size:
            piece = self.caller.recv(1 << 16)
            if not piece:
                raise EOFError
            self._rest += piece
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def _next(self) -> int:
        """Take one frame; the stream whose request is whole with it, or 0."""
        high, low, kind, flags, stream = struct.unpack("!HBBBI", self._read(9))
        payload = self._read(high << 8 | low)
        match kind:
            case Type.HEADERS:
                self._path[stream] = dict(hpack.decode(payload))[":path"]
                self._body[stream] = b""
                self._room[stream] = self._first
            case Type.DATA:
                self._body[stream] += payload
                if self.window < len(self._body[stream]) + 64:  # a small window, opened a little at a time
                    self.caller.sendall(frame(Type.WINDOW_UPDATE, 0, stream, struct.pack("!I", max(len(payload), 1))))
                return stream if flags & Flag.END_STREAM else 0
            case Type.SETTINGS if not flags & Flag.ACK:
                values = dict(struct.iter_unpack("!HI", payload))
                self._first = values.get(Setting.INITIAL_WINDOW_SIZE, self._first)
                self.caller.sendall(frame(Type.SETTINGS, Flag.ACK, 0))
            case Type.WINDOW_UPDATE:
                self._room[stream] = self._room.get(stream, 0) + struct.unpack("!I", payload)[0]
        return 0

    def _reply(self, stream: int) -> None:
        status, message = self.runtime.answer(self._path[stream], self._body[stream][5:])
        begin = hpack.encode(((":status", "200"), ("content-type", "application/grpc")))
        end = hpack.encode((("grpc-status", str(status)),))
        if status:
            end += _coded("grpc-message", quote(message))
        match self.runtime.fault:
            case Fault.STALL:
                return
            case Fault.RESET:
                self.caller.sendall(frame(Type.RST_STREAM, 0, stream, struct.pack("!I", 2)))
                return
            case Fault.GO_AWAY:
                self.caller.sendall(frame(Type.GOAWAY, 0, 0, struct.pack("!II", 0, 0) + b"bye"))
                return
            case Fault.ERROR_AT_ONCE:
                self.caller.sendall(frame(Type.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, stream, begin + end))
                return
        self._headers(stream, begin)
        if not status:
            body = struct.pack("!BI", 0, len(message)) + message
            if self.runtime.fault is Fault.CUT:
                self.caller.sendall(frame(Type.DATA, 0, stream, body[:_FRAME])[:-1])
                raise EOFError
            self._send(stream, body)
        if self.runtime.fault is Fault.NO_STATUS:
            self.caller.sendall(frame(Type.DATA, Flag.END_STREAM, stream))
        else:
            self._headers(stream, end, Flag.END_STREAM)

    def _headers(self, stream: int, block: bytes, flags: int = 0) -> None:
        """A header block in two frames, the first one padded."""
        half = len(block) // 2
        padded = b"\x03" + block[:half] + b"\0\0\0"
        self.caller.sendall(
            frame(Type.HEADERS, flags | Flag.PADDED, stream, padded)
            + frame(Type.CONTINUATION, Flag.END_HEADERS, stream, block[half:])
        )

    def _send(self, stream: int, data: bytes) -> None:
        """All of it, as the caller opens its windows."""
        while data:
            size = min(len(data), _FRAME, self._room[0], self._room[stream])
            if size <= 0:
                self._next()
                continue
            self.caller.sendall(frame(Type.DATA, 0, stream, data[:size]))
            self._room[0] -= size
            self._room[stream] -= size
            data = data[size:]


# -- bytes -------------------------------------------------------------------------------------------------------------


def encode_huffman(data: bytes) -> bytes:
    """RFC 7541, section 5.2."""
    codes = hpack.huffman_codes()
    length = bits = 0
    for octet in data:
        size, code = codes[octet]
        length, bits = length + size, bits << size | code
    padding = -length % 8
    return (bits << padding | (1 << padding) - 1).to_bytes((length + padding) // 8, "big")


def _coded(name: str, value: str) -> bytes:
    """A literal that asks to be remembered, both strings Huffman-coded."""
    block = b"\x40"
    for text in (name, value):
        octets = encode_huffman(text.encode())
        size = len(octets)
        # The integers of section 5.1: below 127 in one octet, else the rest in groups of seven bits.
        block += (bytes((0x80 | size,)) if size < 127 else b"\xff" + varint(size - 127)) + octets
    return block


def _bytes(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode()) if value else b""


def _number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value) if value else b""


def _table(number: int, table: object) -> bytes:
    assert isinstance(table, dict)  # noqa: S101  # a fake's own data
    return b"".join(_bytes(number, _text(1, key) + _text(2, value)) for key, value in table.items())


def _beginning(sandbox: Sandbox) -> bytes:
    metadata = (
        _text(1, sandbox.name) + _text(2, sandbox.uid) + _text(3, sandbox.namespace) + _number(4, sandbox.attempt)
    )
    state = _number(3, 0 if sandbox.ready else 1)
    return _text(1, sandbox.id) + _bytes(2, metadata) + state + _number(4, sandbox.created_ns)


def encode_sandbox(sandbox: Sandbox) -> bytes:
    """PodSandbox, as in a list."""
    return _beginning(sandbox) + _table(5, dict(sandbox.labels)) + _table(6, dict(sandbox.annotations))


def encode_status(sandbox: Sandbox) -> bytes:
    """PodSandboxStatusResponse, with the namespace where containerd and CRI-O tell it."""
    first, *others = [str(address) for address in sandbox.ips] or [""]
    network = _text(1, first) + b"".join(_bytes(2, _text(1, other)) for other in others)
    options = _number(1, _NODE if sandbox.host_network else 0)
    status = (
        _beginning(sandbox)
        + _bytes(5, network)
        + _bytes(6, _bytes(1, _bytes(2, options)))
        + _table(7, dict(sandbox.labels))
        + _table(8, dict(sandbox.annotations))
    )
    namespaces = [{"type": "pid"}, *([{"type": "network", "path": sandbox.netns}] if sandbox.netns else [])]
    info = json.dumps({"pid": 1, "runtimeSpec": {"linux": {"namespaces": namespaces}}})
    return _bytes(1, status) + _table(2, {"info": info})
