"""The protobuf messages of the calls that we make, by hand.

Field numbers are those of kubernetes/cri-api, pkg/apis/runtime/v1/api.proto, package runtime.v1; they can't change
within v1. Fields that we don't use, and those of later versions, are passed over. A field that is missing has its
type's zero, as proto3 says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from allotment.addressing.address import parse_address
from allotment.addressing.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from allotment.addressing.address import Address

__all__ = [
    "LIST",
    "NO_FILTER",
    "STATUS",
    "VERSION",
    "RuntimeVersion",
    "Sandbox",
    "decode_list",
    "decode_status",
    "decode_version",
    "encode_status_request",
    "encode_version_request",
    "fields",
    "varint",
]

VERSION: Final = "/runtime.v1.RuntimeService/Version"
LIST: Final = "/runtime.v1.RuntimeService/ListPodSandbox"
STATUS: Final = "/runtime.v1.RuntimeService/PodSandboxStatus"

NO_FILTER: Final = b""
"""A ListPodSandboxRequest for all sandboxes, whatever their state."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NODE: Final = 2  # NamespaceMode: the host's


@dataclass(frozen=True, slots=True)
class RuntimeVersion:
    """VersionResponse: the runtime's name and version, and the version of the CRI that it speaks."""

    name: str
    version: str
    api: str


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod's sandbox as the runtime tells of it; `id` is the container ID that the CNI was called with.

    `namespace`, `name`, `uid` are the pod's; a static pod's `uid` is the hash of its configuration. `created_ns` is
    Unix time in nanoseconds, for people. `netns`, `ips` and `host_network` are known from a status only; `netns` is
    empty where the runtime doesn't tell it.
    """

    id: str
    name: str
    namespace: str
    uid: str
    attempt: int = 0
    ready: bool = False
    created_ns: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    netns: str = ""
    ips: tuple[Address, ...] = ()
    host_network: bool = False


# -- the wire format (protobuf.dev/programming-guides/encoding) -------------------------------------------------------


def varint(value: int) -> bytes:
    """A number of at most 64 bits, not negative."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field in turn: a number where its type is one, else bytes.

    Raises:
        DecodeError: it is no message.
    """
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        if tag < 0x80:  # nearly all are
            at += 1
        else:
            tag, at = _varint_at(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise DecodeError("a protobuf message holds a field without a number")
        if kind == _VARINT:
            value, at = _varint_at(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            if at < end and data[at] < 0x80:
                size = data[at]
                at += 1
            else:
                size, at = _varint_at(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise DecodeError(f"a protobuf message holds a field of the unknown type {kind}")
        if end - at < size:
            raise DecodeError("a protobuf message ends in the middle of a field")
        yield number, data[at : at + size]
        at += size


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise DecodeError("a protobuf message ends in the middle of a number")
        octet = data[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if not octet & 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise DecodeError("a protobuf message holds a number of more than 64 bits")


class _Message:
    """A message's fields by number, each with all its values."""

    def __init__(self, data: bytes) -> None:
        values: dict[int, list[int | bytes]] = {}
        for number, value in fields(data):
            if number in values:
                values[number].append(value)
            else:
                values[number] = [value]
        self._values = values

    def number(self, number: int) -> int:
        """The last one counts."""
        value = self._values.get(number, [0])[-1]
        if not isinstance(value, int):
            raise DecodeError(f"field {number} of a protobuf message should be a number")
        return value

    def many(self, number: int) -> list[bytes]:
        values = self._values.get(number, [])
        if int in set(map(type, values)):
            raise DecodeError(f"field {number} of a protobuf message should not be a number")
        return cast("list[bytes]", values)

    def message(self, number: int) -> _Message:
        """Several of one message are merged, which to join their bytes does."""
        return _Message(b"".join(self.many(number)))

    def text(self, number: int) -> str:
        values = self.many(number)
        return values[-1].decode("utf-8", "replace") if values else ""

    def table(self, number: int) -> dict[str, str]:
        """A map<string, string>: each entry is a message of key (1) and value (2)."""
        found: dict[str, str] = {}
        for entry in self.many(number):
            pair = dict(fields(entry))
            key, value = pair.get(1, b""), pair.get(2, b"")
            if isinstance(key, int) or isinstance(value, int):
                raise DecodeError(f"field {number} of a protobuf message should be a table of texts")
            found[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        return found


# -- the calls ---------------------------------------------------------------------------------------------------------


def _bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def encode_version_request() -> bytes:
    """VersionRequest: the version of the kubelet's runtime API, which is not the CRI's, is 0.1.0."""
    return _bytes_field(1, b"0.1.0")


def encode_status_request(sandbox_id: str) -> bytes:
    """PodSandboxStatusRequest, verbose: only then is the network namespace told."""
    return _bytes_field(1, sandbox_id.encode()) + varint(2 << 3 | _VARINT) + b"\1"


def decode_version(data: bytes) -> RuntimeVersion:
    """VersionResponse.

    Raises:
        DecodeError: it is none.
    """
    message = _Message(data)
    return RuntimeVersion(message.text(2), message.text(3), message.text(4))


def decode_list(data: bytes) -> tuple[Sandbox, ...]:
    """ListPodSandboxResponse: `repeated PodSandbox items = 1`.

    Raises:
        DecodeError: it is none, or one of the sandboxes has no ID.
    """
    return tuple(_sandbox(_Message(item), labels=5, annotations=6) for item in _Message(data).many(1))


def decode_status(data: bytes) -> Sandbox:
    """PodSandboxStatusResponse: `status = 1`, and in `map<string, string> info = 2` what the runtime adds in JSON.

    Raises:
        DecodeError: it is none, or the sandbox has no ID.
    """
    message = _Message(data)
    status = message.message(1)
    network = status.message(5)
    options = status.message(6).message(1).message(2)
    first = network.text(1)
    others = [_Message(entry).text(1) for entry in network.many(2)]
    return _sandbox(
        status,
        labels=7,
        annotations=8,
        netns=_namespace_in(message.table(2).get("info", "")),
        ips=tuple(address for text in (first, *others) for address in _addresses(text)),
        host_network=options.number(1) == _NODE,
    )


def _sandbox(
    message: _Message,
    *,
    labels: int,
    annotations: int,
    netns: str = "",
    ips: tuple[Address, ...] = (),
    host_network: bool = False,
) -> Sandbox:
    """PodSandbox and PodSandboxStatus are alike in id = 1, metadata = 2, state = 3 and created_at = 4."""
    metadata = message.message(2)
    identity = message.text(1)
    if not identity:
        raise DecodeError("the runtime tells of a sandbox without an ID")
    return Sandbox(
        id=identity,
        name=metadata.text(1),
        uid=metadata.text(2),
        namespace=metadata.text(3),
        attempt=metadata.number(4),
        ready=message.number(3) == 0,  # PodSandboxState: SANDBOX_READY
        created_ns=message.number(4),
        labels=message.table(labels),
        annotations=message.table(annotations),
        netns=netns,
        ips=ips,
        host_network=host_network,
    )


def _namespace_in(info: str) -> str:
    """The path of the network namespace in the OCI specification that containerd and CRI-O add; empty without one."""
    try:
        namespaces = json.loads(info)["runtimeSpec"]["linux"]["namespaces"]
        paths = [entry.get("path", "") for entry in namespaces if entry.get("type") == "network"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    return paths[0] if paths and isinstance(paths[0], str) else ""


def _addresses(text: str) -> tuple[Address, ...]:
    try:
        return (parse_address(text),) if text else ()
    except ConfigError:
        return ()
