"""How leases, rests and history look as rows, and the way back.

Reading is strict: a row that does not decode to exactly one value, written the one way we write it, is damage
(`RowError`), because two spellings of one address would be two rows for the primary key.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final, TypeAlias

from allotment.addressing.address import Address, Family, Prefix
from allotment.addressing.lease import Lease, LeaseKind, Moment, Owner, Rest

__all__ = [
    "LEASE_COLUMNS",
    "REST_COLUMNS",
    "Decoder",
    "Row",
    "RowError",
    "narrow",
    "parse_written",
    "row_of_lease",
    "row_of_rest",
    "wide",
]

Row: TypeAlias = tuple[str | int | float | bytes, ...]

LEASE_COLUMNS: Final = (
    "network, address, block, container_id, interface, pod_namespace, pod_name, pod_uid, conf_name, kind, sequence, "
    "boot, since, wall, netns, vm"
)
REST_COLUMNS: Final = "network, first, last, block, boot, released, wall"

_WIDE_V4: Final = re.compile(r"[0-9]{3}(\.[0-9]{3}){3}")
_WIDE_V6: Final = re.compile(r"\[[0-9a-f]{4}(:[0-9a-f]{4}){7}\]")


class RowError(ValueError):
    """A row that we can't have written; says which and why."""


def row_of_lease(lease: Lease) -> Row:
    """The lease in the order of `LEASE_COLUMNS`."""
    owner = lease.owner
    return (
        owner.network,
        str(lease.address),
        str(lease.block),
        owner.container_id,
        owner.interface,
        owner.pod_namespace,
        owner.pod_name,
        owner.pod_uid,
        owner.conf_name,
        owner.kind.value,
        lease.sequence,
        lease.since.boot,
        lease.since.seconds,
        lease.wall,
        lease.netns,
        owner.vm,
    )


def row_of_rest(rest: Rest) -> Row:
    """The rest in the order of `REST_COLUMNS`."""
    return (
        rest.network,
        wide(rest.first),
        wide(rest.last),
        str(rest.block),
        rest.released.boot,
        rest.released.seconds,
        rest.wall,
    )


def wide(address: Address) -> str:
    """The address with all its digits: `010.004.001.007`, `[fd00:…:0005]`. Text order is `Address` order.

    The bracket keeps all of IPv6 behind all of IPv4.
    """
    value = address.value
    if address.family is Family.V4:
        return f"{value >> 24:03}.{value >> 16 & 255:03}.{value >> 8 & 255:03}.{value & 255:03}"
    return f"[{ipaddress.IPv6Address(value).exploded}]"


def narrow(text: str) -> Address:
    """The address of a wide form.

    Raises:
        RowError: it isn't one.
    """
    if _WIDE_V6.fullmatch(text):
        return Address(Family.V6, int(text[1:-1].replace(":", ""), 16))
    if _WIDE_V4.fullmatch(text):
        octets = [int(part) for part in text.split(".")]
        if max(octets) < 256:
            return Address(Family.V4, int.from_bytes(bytes(octets), "big"))
    raise RowError(f"{text!r} is not an address in its wide form")


class Decoder:
    """Rows to values. Repeated texts (networks, blocks, boots, namespaces) become one object each, to save memory."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._prefixes: dict[str, Prefix] = {}

    def lease(self, row: Row) -> Lease:
        """A lease from a row of `LEASE_COLUMNS`.

        Raises:
            RowError: it is none that we wrote.
        """
        try:
            (network, address, block, container, interface, namespace, pod, uid, conf, kind, *rest) = row
            sequence, boot, since, wall, netns, vm = rest
            lease = Lease(
                address=parse_written(str(address)),
                block=self._prefix(str(block)),
                owner=Owner(
                    network=self._text(network),
                    container_id=str(container),
                    interface=self._text(interface),
                    pod_namespace=self._text(namespace),
                    pod_name=str(pod),
                    pod_uid=str(uid),
                    conf_name=self._text(conf),
                    kind=LeaseKind(str(kind)),
                    vm=str(vm),
                ),
                sequence=int(sequence),
                since=Moment(self._text(boot), float(since)),
                wall=float(wall),
                netns=str(netns),
            )
        except (ValueError, OSError, TypeError) as error:
            raise RowError(f"lease {row[1]!r} of network {row[0]!r} can't be read: {error}") from error
        if not lease.owner.network or not lease.owner.container_id or lease.sequence < 0:
            raise RowError(f"lease {row[1]!r} of network {row[0]!r} has no network, no container or no sequence number")
        return lease

    def rest(self, row: Row) -> Rest:
        """A rest from a row of `REST_COLUMNS`.

        Raises:
            RowError: it is none that we wrote.
        """
        try:
            network, first, last, block, boot, released, wall = row
            rest = Rest(
                network=self._text(network),
                block=self._prefix(str(block)),
                first=narrow(str(first)),
                last=narrow(str(last)),
                released=Moment(self._text(boot), float(released)),
                wall=float(wall),
            )
        except (ValueError, OSError, TypeError) as error:
            raise RowError(f"rest {row[1]!r} of network {row[0]!r} can't be read: {error}") from error
        if rest.first.family is not rest.last.family or rest.first > rest.last:
            raise RowError(f"rest {row[1]!r} of network {row[0]!r} ends before it begins")
        return rest

    def _text(self, value: object) -> str:
        text = str(value)
        return self._texts.setdefault(text, text)

    def _prefix(self, text: str) -> Prefix:
        known = self._prefixes.get(text)
        if known is None:
            base, _, length = text.partition("/")
            address = parse_written(base)
            known = Prefix(address.family, address.value, int(length))
            if str(known) != text or not 0 <= known.length <= known.family.bits or known.value % known.size:
                raise RowError(f"{text!r} is not a block")
            self._prefixes[text] = known
        return known


def parse_written(text: str) -> Address:
    """Parse our own spelling and no other; far quicker than `parse_address`, whose care is for people's input."""
    if ":" in text:
        packed = socket.inet_pton(socket.AF_INET6, text)
        address = Address(Family.V6, int.from_bytes(packed, "big"))
        if socket.inet_ntop(socket.AF_INET6, packed) == text or str(address) == text:
            return address
    else:
        address = Address(Family.V4, int.from_bytes(socket.inet_pton(socket.AF_INET, text), "big"))
        if str(address) == text:
            return address
    raise RowError(f"{text!r} is not written the way the ledger writes addresses ({address})")
