"""The bytes that go over the socket and into the spool. Pure: no I/O, no clock.

All numbers are big-endian; docs/reference/protocol.md is the same in prose.

    request  "ALQ1" | u16 version | u16 kind  | u32 head length | u32 body length | head | body
    reply    "ALR1" | u16 version | u16 flags | u32 exit code   | u32 body length | body
    entry    "ALS1" | u16 version | u16 0 | 36 bytes boot ID | u64 nanoseconds of CLOCK_BOOTTIME | request

The head of a call is its CNI_* variables, each `NAME=value` and a NUL; that of a query is its name. A frame is at
most 1 MiB, all of it counted. The parsers take bytes in pieces of any size, hold no more than one frame, and refuse
as soon as it can be known that what comes is not one.
"""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from allotment.addressing.errors import DecodeError
from allotment.cni.exchange import SPOOL, Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ACKNOWLEDGED",
    "LIMIT",
    "WITHDRAWN",
    "Kind",
    "ReplyParser",
    "Request",
    "RequestParser",
    "SpoolEntry",
    "decode_environment",
    "decode_query_name",
    "decode_spool_entry",
    "encode_call",
    "encode_query",
    "encode_reply",
    "encode_spool_entry",
]

LIMIT: Final = 1 << 20
"""Bytes of a whole frame, in either direction."""

ACKNOWLEDGED: Final = b"\x06"
"""From the caller: the answer has been printed."""

WITHDRAWN: Final = b"\x15"
"""From the agent, which has waited for ACKNOWLEDGED long enough: the answer no longer holds."""

_VERSION: Final = 1
_REQUEST: Final = struct.Struct("!4sHHII")
_REPLY: Final = struct.Struct("!4sHHII")
_ENTRY: Final = struct.Struct("!4sHH36sQ")
_REQUEST_MAGIC: Final = b"ALQ1"
_REPLY_MAGIC: Final = b"ALR1"
_ENTRY_MAGIC: Final = b"ALS1"
_HEADER: Final = 16
_VARIABLES: Final = 64
_BOOT_ID: Final = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_QUERY_NAME: Final = re.compile(rb"[a-z][a-z0-9-]{0,62}")

FrameT = TypeVar("FrameT")


class Kind(IntEnum):
    """What a request is."""

    CALL = 0
    QUERY = 1


_KINDS: Final = {kind.value: kind for kind in Kind}


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request frame in its parts; `head` is still undecoded."""

    kind: Kind
    head: bytes
    body: bytes


class SpoolEntry(msgspec.Struct, frozen=True, gc=False):
    """A DEL that a shim kept for us: it ends what was leased before `seconds` of the boot named `boot`."""

    boot: str
    seconds: float
    env: Mapping[str, str]
    body: bytes


class _Parser(ABC, Generic[FrameT]):
    """One frame out of pieces. A piece that holds the whole frame, the usual case, is not copied on the way."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._size = 0  # of the whole frame; 0 until its header is here

    @property
    def size(self) -> int:
        """Bytes of the whole frame as its header says, 0 as long as the header is not here."""
        return self._size

    @property
    def held(self) -> int:
        """Bytes of it that are here."""
        return len(self._held)

    @property
    def wanted(self) -> int:
        """Bytes that are missing for the next step: of the header, then of the rest."""
        return (self._size or _HEADER) - len(self._held)

    def feed(self, piece: bytes) -> FrameT | None:
        """The frame, once the last of it is in `piece`; else None.

        Raises:
            DecodeError: this is no frame of ours, is longer than allowed, or something follows it.
        """
        if self._held:
            self._held += piece
            data: bytes | bytearray = self._held
        else:
            data = piece
        if not self._size:
            self._check_magic(bytes(data[:4]))
            if len(data) >= _HEADER:
                self._size = self._read_header(data)
        if not self._size or len(data) < self._size:
            if not self._held:
                self._held += piece
            return None
        if len(data) > self._size:
            raise DecodeError(f"{len(data) - self._size} bytes more than the frame's header announces")
        return self._take(data)

    def _check_magic(self, start: bytes) -> None:
        magic = self._magic()
        if magic[: len(start)] != start:
            raise DecodeError(f"a frame starts with {magic!r}, this with {start!r}: the other end is not allotment")

    @abstractmethod
    def _magic(self) -> bytes: ...

    @abstractmethod
    def _read_header(self, data: bytes | bytearray) -> int: ...

    @abstractmethod
    def _take(self, data: bytes | bytearray) -> FrameT: ...


class RequestParser(_Parser[Request]):
    """What the agent reads."""

    def __init__(self) -> None:
        super().__init__()
        self._kind = Kind.CALL
        self._body_at = 0

    def _magic(self) -> bytes:
        return _REQUEST_MAGIC

    def _read_header(self, data: bytes | bytearray) -> int:
        _, version, kind, head, body = _REQUEST.unpack_from(data)
        _check_version(version)
        known = _KINDS.get(kind)
        if known is None:
            raise DecodeError(f"a request of kind {kind} is unknown here: shim and agent are of different releases")
        self._kind = known
        self._body_at = _HEADER + int(head)
        return _check_size(self._body_at + int(body))

    def _take(self, data: bytes | bytearray) -> Request:
        return Request(self._kind, bytes(data[_HEADER : self._body_at]), bytes(data[self._body_at :]))


class ReplyParser(_Parser[Reply]):
    """What a caller reads."""

    def __init__(self) -> None:
        super().__init__()
        self._flags = 0
        self._exit_code = 0

    def _magic(self) -> bytes:
        return _REPLY_MAGIC

    def _read_header(self, data: bytes | bytearray) -> int:
        _, version, self._flags, self._exit_code, body = _REPLY.unpack_from(data)
        _check_version(version)
        if self._flags & ~SPOOL:
            raise DecodeError(f"a reply with flags {self._flags:#x} is unknown here")
        if self._exit_code > 255:
            raise DecodeError(f"a reply says exit code {self._exit_code}; there are only 0 to 255")
        return _check_size(_HEADER + int(body))

    def _take(self, data: bytes | bytearray) -> Reply:
        return Reply(bytes(data[_HEADER:]), self._exit_code, self._flags)


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise DecodeError(f"a frame of protocol version {version}; this end speaks {_VERSION}")


def _check_size(size: int) -> int:
    if size > LIMIT:
        raise DecodeError(f"a frame of {size} bytes; {LIMIT} are allowed")
    return size


def decode_environment(head: bytes) -> dict[str, str]:
    """The CNI_* variables of a call. A byte that is not UTF-8 becomes a lone surrogate, as in `os.environ`.

    Raises:
        DecodeError: not NUL-terminated, not a CNI_* variable, given twice, or too many.
    """
    entries = head.decode("utf-8", "surrogateescape").split("\0")
    if entries.pop():
        raise DecodeError("the last CNI_* variable is cut off: each ends with a NUL")
    if len(entries) > _VARIABLES:
        raise DecodeError(f"{len(entries)} CNI_* variables; {_VARIABLES} are allowed")
    variables: dict[str, str] = {}
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not separator or not name.startswith("CNI_"):
            raise DecodeError(f"{name[:64]!r} is no CNI_* variable with a value")
        if name in variables:
            raise DecodeError(f"{name[:64]} is given twice: which of the two is meant cannot be known")
        variables[name] = value
    return variables


def decode_query_name(head: bytes) -> str:
    """The name of a query: up to 63 of a-z, 0-9 and "-", a letter first.

    Raises:
        DecodeError: it is anything else.
    """
    if not _QUERY_NAME.fullmatch(head):
        raise DecodeError(f"{head[:64]!r} cannot be the name of a query")
    return head.decode("ascii")


def encode_call(env: Mapping[str, str], body: bytes) -> bytes:
    """A CNI call as a frame. The CNI_* variables of `env` go in, others stay out, as the shim has it.

    Raises:
        DecodeError: the frame would be too long.
    """
    head = "".join(f"{name}={value}\0" for name, value in env.items() if name.startswith("CNI_"))
    return _request(Kind.CALL, head.encode("utf-8", "surrogateescape"), body)


def encode_query(name: str, arguments: bytes) -> bytes:
    """A question as a frame.

    Raises:
        DecodeError: the frame would be too long, or this cannot be a query's name.
    """
    head = name.encode()
    decode_query_name(head)
    return _request(Kind.QUERY, head, arguments)


def _request(kind: Kind, head: bytes, body: bytes) -> bytes:
    _check_size(_HEADER + len(head) + len(body))
    return b"".join((_REQUEST.pack(_REQUEST_MAGIC, _VERSION, kind, len(head), len(body)), head, body))


def encode_reply(reply: Reply) -> bytes:
    """A reply as a frame.

    Raises:
        DecodeError: the frame would be too long, or exit code or flags are out of range.
    """
    _check_size(_HEADER + len(reply.body))
    if not 0 <= reply.exit_code <= 255 or reply.flags & ~SPOOL:
        raise DecodeError(f"a reply cannot have exit code {reply.exit_code} and flags {reply.flags:#x}")
    header = _REPLY.pack(_REPLY_MAGIC, _VERSION, reply.flags, reply.exit_code, len(reply.body))
    return header + reply.body


def encode_spool_entry(boot: str, nanoseconds: int, request: bytes) -> bytes:
    """A spool entry around a whole request frame; `nanoseconds` of CLOCK_BOOTTIME in the boot named `boot`."""
    return _ENTRY.pack(_ENTRY_MAGIC, _VERSION, 0, boot.encode("ascii"), nanoseconds) + request


def decode_spool_entry(data: bytes) -> SpoolEntry:
    """What a spool entry holds.

    Raises:
        DecodeError: it is not, or not the whole of, an entry, or not of a CNI call.
    """
    if len(data) < _ENTRY.size or not data.startswith(_ENTRY_MAGIC):
        raise DecodeError(f"a spool entry starts with {_ENTRY_MAGIC!r} and has at least {_ENTRY.size} bytes")
    _, version, reserved, boot, nanoseconds = _ENTRY.unpack_from(data)
    _check_version(version)
    if reserved or not _BOOT_ID.fullmatch(boot):
        raise DecodeError("the spool entry's header does not name a boot")
    request = RequestParser().feed(data[_ENTRY.size :])
    if request is None:
        raise DecodeError("the spool entry is cut off")
    if request.kind is not Kind.CALL:
        raise DecodeError("the spool entry holds something other than a CNI call")
    return SpoolEntry(boot.decode("ascii"), nanoseconds / 1e9, decode_environment(request.head), request.body)
