"""Which addresses of a prefix nobody can use, and which one is its gateway.

- IPv4: the first (network) and the last (directed broadcast) address, in a prefix of /30 or larger (RFC 1122,
  3.2.1.3). Both addresses of a /31 are usable (RFC 3021), and so is the one of a /32.
- IPv6: the first address, which is the subnet-router anycast address (RFC 4291, 2.6.1), in a prefix of /126 or
  larger. Both addresses of a /127 are usable (RFC 6164), and so is the one of a /128.
"""

from __future__ import annotations

from typing import Final

from allotment.addressing.address import Address, Family, Prefix
from allotment.addressing.intervals import IntervalSet

__all__ = ["LINK_LOCAL_GATEWAY", "block_gateway", "edge_name", "has_edges", "unusable"]

LINK_LOCAL_GATEWAY: Final = {
    Family.V4: Address(Family.V4, 169 << 24 | 254 << 16 | 1 << 8 | 1),
    Family.V6: Address(Family.V6, 0xFE80 << 112 | 1),
}
"""Told as gateway where a block is too small to spare an address, and for a borrowed address."""


def has_edges(prefix: Prefix) -> bool:
    """Whether the prefix is large enough to have addresses that nobody can use."""
    return prefix.length <= prefix.family.bits - 2


def edge_name(prefix: Prefix, address: Address) -> str | None:
    """What makes an address of this prefix unusable, in words; None when it can be used."""
    if not has_edges(prefix):
        return None
    if address == prefix.first:
        return "network address" if prefix.family is Family.V4 else "subnet-router anycast address"
    if address == prefix.last and prefix.family is Family.V4:
        return "broadcast address"
    return None


def unusable(prefix: Prefix) -> IntervalSet:
    """The addresses of the prefix that nobody can use."""
    if not has_edges(prefix):
        return IntervalSet()
    if prefix.family is Family.V4:
        return IntervalSet.of(prefix.first, prefix.last)
    return IntervalSet.of(prefix.first)


def block_gateway(prefix: Prefix) -> Address | None:
    """The gateway of a block: its first usable address, or None when it is too small to spare one."""
    return prefix.first + 1 if has_edges(prefix) else None
