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
    "LABEL",
    "NAME_LIMIT",
    "NETWORK_NAME_LIMIT",
    "POOL_NAME_LIMIT",
    "address_name",
    "allocation_name",
    "claim_name",
    "index_name",
    "is_label",
    "is_pool_name",
    "is_subdomain",
    "pool_name",
    "prefix_name",
]

NAME_LIMIT = 253
"""Longest name of an object (RFC 1123 subdomain, as Kubernetes limits it)."""
NETWORK_NAME_LIMIT = 50
"""Longest name of a network, a class, or a pool that a person names."""

POOL_NAME_LIMIT = len("net..v4") + NETWORK_NAME_LIMIT
"""Longest name of a pool: that of the controller's own behind a network of the longest name."""

LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
"""A DNS label (RFC 1123) as a regular expression, without its limit of length."""

_LABEL = re.compile(LABEL)
_NETWORK_POOL = re.compile(rf"net\.({LABEL})\.v[46]")
_DIGEST = 40
_CLAIM_POD = 200
_CLAIM_DIGEST = 16


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


def pool_name(network: str, family: Family) -> str:
    """Name of the controller's own pool behind a network: `net.blue.v4`."""
    return f"net.{network}.v{family.value}"


def is_pool_name(text: str) -> bool:
    """Whether `text` may name a pool: as a person names one (a label), or as `pool_name` does."""
    own = _NETWORK_POOL.fullmatch(text)
    return is_label(own[1] if own else text, NETWORK_NAME_LIMIT)


def claim_name(pod: str, pool: str, container_id: str, interface: str) -> str:
    """Name of a pod's Claim: the pod's name, cut to 200 characters, a dot and 16 digits of the attachment's hash.

    The hash tells one sandbox and interface of a pod from another, and, by the pool, the two families of a
    dual-stack network; a retry of the same ADD finds its Claim again.
    """
    digest = hashlib.sha256(f"{pool}\0{container_id}\0{interface}".encode()).hexdigest()[:_CLAIM_DIGEST]
    return f"{pod[:_CLAIM_POD].rstrip('-.')}.{digest}"


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
