"""Addresses and prefixes, compared by value and written one way.

Text is parsed strictly, because what is accepted here becomes an object name, a key and a kernel attribute:
no leading zeros in IPv4, no host bits in a prefix, no zone, no IPv4-mapped IPv6 (it would make one address two).
IPv6 is printed as RFC 5952 asks. `::5` and `::0005` are the same `Address`.
"""

from __future__ import annotations

import enum
import ipaddress
import re
import struct
from typing import NamedTuple

from allotment.addressing.errors import ConfigError

__all__ = ["Address", "Family", "Prefix", "parse_address", "parse_prefix"]

_MAPPED = 0xFFFF
_GROUPS = struct.Struct(">8H")
_ZEROS = tuple(":" + "0:" * groups for groups in range(8, 1, -1))


class Family(enum.IntEnum):
    """An address family; the value is the IP version."""

    V4 = 4
    V6 = 6

    @property
    def bits(self) -> int:
        """Length of an address: 32 or 128."""
        return 32 if self is Family.V4 else 128

    @property
    def top(self) -> int:
        """The highest address, as a number."""
        return (1 << self.bits) - 1

    def __str__(self) -> str:
        return f"IPv{self.value}"


class Address(NamedTuple):
    """One IP address. Ordered by family, then by value."""

    family: Family
    value: int

    def __str__(self) -> str:
        if self.family is Family.V4:
            value = self.value
            return f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"
        return _ipv6_text(self.value)

    def __add__(self, step: object) -> Address:
        """The address `step` further on; ValueError when that leaves the family."""
        if not isinstance(step, int):
            return NotImplemented
        value = self.value + step
        if not 0 <= value <= self.family.top:
            message = f"{self} + {step} is outside {self.family}"
            raise ValueError(message)
        return Address(self.family, value)


class Prefix(NamedTuple):
    """One CIDR block; `value` is its first address as a number, host bits are zero."""

    family: Family
    value: int
    length: int

    @property
    def size(self) -> int:
        """How many addresses it spans, the unusable ones included."""
        return 1 << (self.family.bits - self.length)

    @property
    def first(self) -> Address:
        """The lowest address."""
        return Address(self.family, self.value)

    @property
    def last(self) -> Address:
        """The highest address."""
        return Address(self.family, self.value + self.size - 1)

    def __contains__(self, item: object) -> bool:
        """Whether an `Address` or a whole `Prefix` lies inside."""
        if isinstance(item, Prefix):
            return (
                self.family is item.family
                and self.length <= item.length
                and self.value <= item.value < self.value + self.size
            )
        if isinstance(item, Address):
            return self.family is item.family and self.value <= item.value < self.value + self.size
        return False

    def overlaps(self, other: Prefix) -> bool:
        """Whether one lies inside the other (prefixes never overlap in any other way)."""
        return self in other or other in self

    def __str__(self) -> str:
        return f"{self.first}/{self.length}"


def parse_address(text: str) -> Address:
    """Parse one address.

    Raises:
        ConfigError: not an address, or not in a form we accept; the message shows the accepted form.
    """
    if "/" in text:
        raise ConfigError(f"{text!r} is a prefix where one address is expected, such as {text.partition('/')[0]!r}")
    if "%" in text:
        raise ConfigError(f"{text!r} names a zone; write the address alone: {text.partition('%')[0]!r}")
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError as error:
        hint = _without_leading_zeros(text)
        if hint is not None:
            raise ConfigError(f"{text!r} has leading zeros, which some read as octal; write {hint!r}") from error
        raise ConfigError(f"{text!r} is not an IP address; write it like 10.1.2.3 or fd00::5") from error
    if isinstance(parsed, ipaddress.IPv6Address) and int(parsed) >> 32 == _MAPPED:
        plain = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        raise ConfigError(f"{text!r} is an IPv4-mapped IPv6 address; write the IPv4 address {str(plain)!r}")
    return Address(Family(parsed.version), int(parsed))


def parse_prefix(text: str) -> Prefix:
    """Parse a CIDR block such as `10.4.0.0/16`; a bare address is not a block.

    Raises:
        ConfigError: not a prefix, or host bits are set; the message shows the right form.
    """
    base, slash, length_text = text.partition("/")
    if not slash:
        raise ConfigError(f"{text!r} has no prefix length; write it like 10.4.0.0/16 or fd00:4::/56")
    address = parse_address(base)
    bits = address.family.bits
    if not re.fullmatch(r"0|[1-9][0-9]{0,2}", length_text) or int(length_text) > bits:
        raise ConfigError(f"{text!r}: the prefix length must be a number from 0 to {bits}")
    length = int(length_text)
    masked = address.value >> (bits - length) << (bits - length)
    if masked != address.value:
        right = Prefix(address.family, masked, length)
        raise ConfigError(f"{text!r} has host bits set; the block that holds it is written {str(right)!r}")
    return Prefix(address.family, masked, length)


def _ipv6_text(value: int) -> str:
    """The text of RFC 5952: lower case, no leading zeros, the longest (and first) run of zero groups as `::`."""
    text = ":%x:%x:%x:%x:%x:%x:%x:%x:" % _GROUPS.unpack(value.to_bytes(16, "big"))  # noqa: UP031  # twice as fast
    for zeros in _ZEROS:
        at = text.find(zeros)
        if at >= 0:
            return f"{text[1:at]}::{text[at + len(zeros) : -1]}"
    return text[1:-1]


def _without_leading_zeros(text: str) -> str | None:
    parts = text.split(".")
    if len(parts) == 4 and all(re.fullmatch("[0-9]{1,8}", part) and int(part) < 256 for part in parts):
        return ".".join(str(int(part)) for part in parts)
    return None
