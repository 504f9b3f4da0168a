"""Names of objects: which are allowed, and those made from values.

A name is never taken apart to get values back: the object's fields count. It has to be a valid object name (RFC 1123
subdomain), and one value has one name: whatever the pool is called, two different values of a kind never get the
same one.
"""

from __future__ import annotations

import hashlib
import re

from allotment.addressing.address import Address, Family, Prefix

__all__ = [
    "NAME_LIMIT",
    "NETWORK_NAME_LIMIT",
    "address_name",
    "allocation_name",
    "index_name",
    "is_label",
    "is_subdomain",
    "prefix_name",
]

NAME_LIMIT = 253
"""Longest name of an object (RFC 1123 subdomain, as Kubernetes limits it)."""
NETWORK_NAME_LIMIT = 50
"""Longest name of a network, a class, or a pool that a person names."""

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_DIGEST = 40


def is_label(text: str, limit: int = 63) -> bool:
    """Whether `text` is a DNS label (RFC 1123): a-z, 0-9 and inner dashes, at most `limit` characters."""
    return len(text) <= limit and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether `text` is a valid object name: DNS labels joined by dots, at most 253 characters."""
    return len(text) <= NAME_LIMIT and all(_LABEL.fullmatch(label) for label in text.split("."))


def allocation_name(network: str, node: str) -> str:
    """`<network>.<node>`; where that passes 253 characters the node part is 40 hex digits of its SHA-256."""
    name = f"{network}.{node}"
    if len(name) <= NAME_LIMIT:
        return name
    return f"{network}.{hashlib.sha256(node.encode()).hexdigest()[:_DIGEST]}"


def index_name(pool: str, value: int) -> str:
    """Name of the Index for a number of a pool."""
    return f"{pool}-{value}"


def address_name(pool: str, address: Address) -> str:
    """Name of the IPAddress for an address of a pool: `web-10.4.0.5`; IPv6 is written in full.

    In full, because the short form of `fd00::` would end in a dash and could be read in two ways.
    """
    return f"{pool}-{_spelled(address)}"


def prefix_name(pool: str, prefix: Prefix) -> str:
    """Name of the IPPrefix for a prefix of a pool: `net.blue.v4-10.4.0.0-24`."""
    return f"{pool}-{_spelled(prefix.first)}-{prefix.length}"


def _spelled(address: Address) -> str:
    if address.family is Family.V4:
        return str(address)
    digits = f"{address.value:032x}"
    return "-".join(digits[start : start + 4] for start in range(0, 32, 4))
