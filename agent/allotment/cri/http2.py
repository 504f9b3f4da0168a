"""HTTP/2 (RFC 9113) as gRPC's client uses it: one call at a time, one message each way. Bytes in, bytes out, no I/O.

    line = Line()
    line.begin("/runtime.v1.RuntimeService/Version", b"")
    … send line.take(), give line.receive() what comes, until line.answer is not None

What comes may be cut anywhere. Whatever breaks the protocol, or a limit of ours, raises; the connection is then of no
use any more. Windows are opened as fast as data comes: the limit on a message is what bounds memory.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from allotment.addressing.errors import ConfigError, DecodeError, TryAgain
from allotment.cri import hpack

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LARGEST_MESSAGE", "PREFACE", "Answer", "Flag", "Line", "Setting", "Type", "frame", "settings"]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_MESSAGE: Final = 16 << 20
"""Bytes of one answer, as in the kubelet's client."""
_LARGEST_HEAD: Final = 64 << 10
_LARGEST_FRAME: Final = 16384  # what everybody may send as long as nobody says otherwise
_WINDOW: Final = 1 << 20
_FIRST_WINDOW: Final = 65535
_LARGEST_WINDOW: Final = (1 << 31) - 1
_HEADER: Final = struct.Struct("!HBBBI")
_SETTING: Final = struct.Struct("!HI")
_NUMBER: Final = struct.Struct("!I")


class Type(IntEnum):
    """RFC 9113, section 6."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntFlag):
    """The flags of the frames that have them; END_STREAM and ACK are one bit."""

    END_STREAM = 0x1
    ACK = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Setting(IntEnum):
    """RFC 9113, section 6.5.2."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    INITIAL_WINDOW_SIZE = 4
    MAX_HEADER_LIST_SIZE = 6


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended: gRPC's status (0 is success) and message, and the one message that came back."""

    status: int
    message: str
    body: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return _HEADER.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(Type.SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


class Line:
    """The client's end of one connection."""

    def __init__(self) -> None:
        self._out = bytearray(PREFACE)
        self._out += settings(
            {
                Setting.HEADER_TABLE_SIZE: 0,
                Setting.ENABLE_PUSH: 0,
                Setting.INITIAL_WINDOW_SIZE: _WINDOW,
                Setting.MAX_HEADER_LIST_SIZE: _LARGEST_HEAD,
            }
        )
        self._in = bytearray()
        self._greeted = False
        self._stream = -1
        self._leaving = ""
        # What we may send: on the connection, on the stream, and on a stream that begins.
        self._room, self._stream_room, self._first_room = _FIRST_WINDOW, 0, _FIRST_WINDOW
        self._unsent = bytearray()
        self._takers: dict[int, Callable[[int, int, bytes], None]] = {
            Type.DATA: self._take_data,
            Type.HEADERS: self._take_headers,
            Type.RST_STREAM: self._take_reset,
            Type.SETTINGS: self._take_settings,
            Type.PUSH_PROMISE: self._take_promise,
            Type.PING: self._take_ping,
            Type.GOAWAY: self._take_goaway,
            Type.WINDOW_UPDATE: self._take_window,
            Type.CONTINUATION: self._take_continuation,
        }
        self._clear()

    def _clear(self) -> None:
        self.answer: Answer | None = None
        self._head: bytearray | None = None  # of a header block that goes on in CONTINUATION frames
        self._head_ends = False
        self._begun = False
        self._body = bytearray()

    @property
    def usable(self) -> bool:
        """Whether another call can begin here."""
        return not self._leaving and (self._stream < 0 or self.answer is not None)

    def begin(self, path: str, message: bytes) -> None:
        """Begin a call; the one before has to be answered."""
        if not self.usable:
            raise TryAgain(self._leaving or "another call is under way on this connection")
        self._clear()
        self._stream += 2
        head = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
        self._out += frame(Type.HEADERS, Flag.END_HEADERS, self._stream, hpack.encode(head))
        self._stream_room = self._first_room
        self._unsent = bytearray(struct.pack("!BI", 0, len(message)) + message)
        self._send()

    def take(self) -> bytes:
        """What is to be sent; it is the caller's from here on."""
        out, self._out = bytes(self._out), bytearray()
        return out

    def receive(self, data: bytes) -> None:
        """Take in what came.

        Raises:
            DecodeError: this breaks the protocol, or exceeds a limit.
            TryAgain: the other end took the call back.
            ConfigError: the other end speaks HTTP/2, but is no gRPC server.
        """
        self._in += data
        while len(self._in) >= 9:
            high, low, kind, flags, stream = _HEADER.unpack_from(self._in)
            length = high << 8 | low
            if not self._greeted and kind != Type.SETTINGS:
                raise DecodeError("what answers there does not begin as HTTP/2 does; this is no CRI socket")
            if length > _LARGEST_FRAME:
                raise DecodeError(f"a frame of {length} bytes is larger than agreed")
            if len(self._in) < 9 + length:
                return
            payload = bytes(self._in[9 : 9 + length])
            del self._in[: 9 + length]
            self._greeted = True
            self._take_frame(kind, flags, stream & _LARGEST_WINDOW, payload)

    def _take_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._head is not None and (kind != Type.CONTINUATION or stream != self._stream):
            raise DecodeError("another frame came in the middle of a header block")
        taker = self._takers.get(kind)
        if taker is not None:  # others are PRIORITY, and what later documents define (section 4.1)
            taker(flags, stream, payload)

    # -- an answer

    def _take_headers(self, flags: int, stream: int, payload: bytes) -> None:
        block = _unpadded(flags, payload)
        if flags & Flag.PRIORITY:
            _demand(len(block) >= 5, "a HEADERS frame")
            block = block[5:]
        _demand(stream == self._stream and self.answer is None, "a HEADERS frame", "for a stream that is not open")
        self._head, self._head_ends = bytearray(), bool(flags & Flag.END_STREAM)
        self._take_head(flags, block)

    def _take_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if self._head is None or stream != self._stream:
            raise DecodeError("a CONTINUATION frame came that continues nothing")
        self._take_head(flags, payload)

    def _take_head(self, flags: int, block: bytes) -> None:
        assert self._head is not None  # noqa: S101  # both callers see to it
        self._head += block
        _demand(len(self._head) <= _LARGEST_HEAD, "a header block", f"of more than {_LARGEST_HEAD} bytes")
        if flags & Flag.END_HEADERS:
            block, self._head = bytes(self._head), None
            self._take_fields(dict(hpack.decode(block)))

    def _take_fields(self, fields: dict[str, str]) -> None:
        if not self._begun:
            status = fields.get(":status", "")
            if status.startswith("1") and not self._head_ends:
                return
            if status != "200" or not fields.get("content-type", "").startswith("application/grpc"):
                raise ConfigError(f"what answers there is no gRPC server: it answers with HTTP status {status or '?'}")
            self._begun = True
            if not self._head_ends:
                return
        elif not self._head_ends:
            raise DecodeError("an answer has headers in its middle")
        try:
            status_code = int(fields["grpc-status"])
        except (KeyError, ValueError):
            raise DecodeError("an answer ends without gRPC's status") from None
        # gRPC over HTTP/2, "Responses": the message is percent-encoded UTF-8.
        self._end(status_code, unquote(fields.get("grpc-message", ""), errors="replace"))

    def _take_data(self, flags: int, stream: int, payload: bytes) -> None:
        _demand(stream == self._stream and self.answer is None, "a DATA frame", "for a stream that is not open")
        _demand(self._begun, "a DATA frame", "before the headers")
        self._body += _unpadded(flags, payload)
        _demand(len(self._body) <= LARGEST_MESSAGE + 5, "an answer", f"of more than {LARGEST_MESSAGE} bytes")
        if flags & Flag.END_STREAM:
            raise DecodeError("an answer ends without gRPC's status")
        if payload:
            room = _NUMBER.pack(len(payload))
            self._out += frame(Type.WINDOW_UPDATE, 0, 0, room) + frame(Type.WINDOW_UPDATE, 0, stream, room)

    def _take_reset(self, _flags: int, stream: int, payload: bytes) -> None:
        _demand(len(payload) == 4 and stream != 0, "an RST_STREAM")
        if stream == self._stream and self.answer is None:
            raise TryAgain(f"it took the call back, with code {_NUMBER.unpack(payload)[0]}")

    def _take_promise(self, _flags: int, _stream: int, _payload: bytes) -> None:
        raise DecodeError("a PUSH_PROMISE came, which we do not allow")

    def _end(self, status: int, message: str) -> None:
        body = b""
        if status == 0:
            _demand(len(self._body) >= 5, "an answer", "without a message")
            compressed, length = struct.unpack_from("!BI", self._body)
            _demand(not compressed, "an answer", "that is compressed, which we did not ask for")
            _demand(len(self._body) == 5 + length, "an answer", "whose message has not the length that it says")
            body = bytes(memoryview(self._body)[5:])
        self.answer = Answer(status, message, body)
        self._body = bytearray()
        self._unsent = bytearray()

    # -- the connection

    def _take_settings(self, flags: int, stream: int, payload: bytes) -> None:
        _demand(stream == 0 and len(payload) % 6 == 0, "a SETTINGS frame")
        if flags & Flag.ACK:
            _demand(not payload, "a SETTINGS frame")
            return
        for name, value in _SETTING.iter_unpack(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                _demand(value <= _LARGEST_WINDOW, "a SETTINGS frame")
                self._stream_room += value - self._first_room
                self._first_room = value
        self._out += frame(Type.SETTINGS, Flag.ACK, 0)
        self._send()

    def _take_ping(self, flags: int, stream: int, payload: bytes) -> None:
        _demand(len(payload) == 8 and stream == 0, "a PING")
        if not flags & Flag.ACK:
            self._out += frame(Type.PING, Flag.ACK, 0, payload)

    def _take_window(self, _flags: int, stream: int, payload: bytes) -> None:
        _demand(len(payload) == 4, "a WINDOW_UPDATE")
        more = _NUMBER.unpack(payload)[0] & _LARGEST_WINDOW
        _demand(more > 0, "a WINDOW_UPDATE")
        if stream == 0:
            self._room += more
        elif stream == self._stream:
            self._stream_room += more
        _demand(max(self._room, self._stream_room) <= _LARGEST_WINDOW, "a WINDOW_UPDATE")
        self._send()

    def _take_goaway(self, _flags: int, stream: int, payload: bytes) -> None:
        _demand(stream == 0 and len(payload) >= 8, "a GOAWAY")
        last, code = struct.unpack_from("!II", payload)
        more = payload[8:200].decode("ascii", "replace")
        self._leaving = f"it closes the connection, with code {code}" + (f" ({more})" if more else "")
        if self._stream > last & _LARGEST_WINDOW and self.answer is None:
            raise TryAgain(self._leaving)

    def _send(self) -> None:
        """As much of the request as the windows have room for."""
        while self._unsent:
            size = min(len(self._unsent), self._room, self._stream_room, _LARGEST_FRAME)
            if size <= 0:
                return
            part = bytes(self._unsent[:size])
            del self._unsent[:size]
            self._room -= size
            self._stream_room -= size
            self._out += frame(Type.DATA, 0 if self._unsent else Flag.END_STREAM, self._stream, part)


def _unpadded(flags: int, payload: bytes) -> bytes:
    """Sections 6.1 and 6.2: the first octet says how many at the end mean nothing."""
    if not flags & Flag.PADDED:
        return payload
    _demand(bool(payload) and payload[0] < len(payload), "a padded frame")
    return payload[1 : len(payload) - payload[0]]


def _demand(holds: bool, what: str, how: str = "that is malformed") -> None:  # noqa: FBT001  # reads as a sentence
    if not holds:
        raise DecodeError(f"{what} came {how}")
