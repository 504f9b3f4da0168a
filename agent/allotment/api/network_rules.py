"""The rules of a Network: its subnets, and what may change once it exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.address import Address, Family, Prefix, parse_address, parse_prefix
from allotment.addressing.errors import ConfigError
from allotment.addressing.intervals import IntervalSet, parse_range
from allotment.addressing.plan import Layer
from allotment.api.names import NETWORK_NAME_LIMIT, is_label
from allotment.api.shape import Path, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from allotment.api.network import LabelSelector, Network, NetworkSpec, Subnet

__all__ = [
    "canonical",
    "canonical_address",
    "exclude_problems",
    "network_name_problems",
    "network_problems",
    "network_update_problems",
    "overlaps",
    "selector_problems",
]

_SPEC: Path = ("spec",)
_IPV6_MTU = 1280


def network_name_problems(name: str, path: Path, what: str = "network") -> Iterator[Problem]:
    """What is wrong with the name of a Network, or of something else (`what`) that is named by the same rule."""
    if not is_label(name, NETWORK_NAME_LIMIT):
        form = f"a-z, 0-9 and inner dashes, at most {NETWORK_NAME_LIMIT} characters"
        yield Problem(path, f"{name!r} is no name for a {what}; use {form}")


def network_problems(network: Network) -> Iterator[Problem]:
    """What is wrong with a Network by itself."""
    yield from network_name_problems(network.name, ("metadata", "name"))
    spec = network.spec
    prefixes: list[tuple[Path, Prefix]] = []
    for index, subnet in enumerate(spec.subnets):
        path: Path = (*_SPEC, "subnets", index)
        found = canonical(subnet.cidr, (*path, "cidr"))
        if isinstance(found, Problem):
            yield found
        else:
            prefixes.append(((*path, "cidr"), found))
            yield from _subnet_problems(subnet, found, spec.type, path)
    yield from overlaps(prefixes)
    yield from _field_problems(spec, prefixes)
    yield from selector_problems(spec.node_selector, (*_SPEC, "nodeSelector"))


def canonical(text: str, path: Path) -> Prefix | Problem:
    """A prefix that is written the one right way, or what is wrong with it."""
    try:
        prefix = parse_prefix(text)
    except ConfigError as error:
        return Problem(path, error.message)
    if str(prefix) != text:
        return Problem(path, f"{text!r} is not the usual form; write {str(prefix)!r}")
    return prefix


def canonical_address(text: str, path: Path) -> Address | Problem:
    """An address that is written the one right way, or what is wrong with it."""
    try:
        address = parse_address(text)
    except ConfigError as error:
        return Problem(path, error.message)
    if str(address) != text:
        return Problem(path, f"{text!r} is not the usual form; write {str(address)!r}")
    return address


def overlaps(prefixes: list[tuple[Path, Prefix]]) -> Iterator[Problem]:
    """A problem for each prefix that overlaps another one; sorted, so that many cost little."""
    last: tuple[Path, Prefix] | None = None
    for path, prefix in sorted(prefixes, key=lambda entry: (entry[1], entry[0])):
        if last is not None and prefix in last[1]:
            what = "is listed twice" if prefix == last[1] else f"overlaps {last[1]}"
            yield Problem(path, f"{prefix} {what}; no two may share an address")
        else:
            last = (path, prefix)


def _subnet_problems(subnet: Subnet, prefix: Prefix, layer: Layer, path: Path) -> Iterator[Problem]:
    if layer is Layer.L3:
        yield from _length_problems(subnet.host_prefix_length, prefix, (*path, "hostPrefixLength"))
        if subnet.gateway is not None:
            at = (*path, "gateway")
            yield Problem(at, "only an L2 network has one; on L3 each block's first address is its gateway")
    else:
        if subnet.host_prefix_length is not None:
            yield Problem((*path, "hostPrefixLength"), "only an L3 network is cut into blocks; leave it out on L2")
        if subnet.gateway is not None:
            yield from _gateway_problems(subnet.gateway, prefix, (*path, "gateway"))
    for index, text in enumerate(subnet.exclude):
        yield from exclude_problems(text, (prefix,), (*path, "exclude", index))


def _length_problems(length: int | None, prefix: Prefix, path: Path) -> Iterator[Problem]:
    low, high = prefix.length, prefix.family.bits
    if length is None:
        yield Problem(path, f"is required on L3: the size of a node's block, from {low} to {high}")
    elif not low <= length <= high:
        yield Problem(path, f"must be from {low} to {high} in {prefix}, not {length}")


def _gateway_problems(text: str, prefix: Prefix, path: Path) -> Iterator[Problem]:
    try:
        gateway = parse_address(text)
    except ConfigError as error:
        yield Problem(path, error.message)
        return
    if gateway not in prefix:
        yield Problem(path, f"{gateway} is not in {prefix}; a gateway is an address of its own subnet")
    elif name := _unusable(gateway, prefix):
        yield Problem(path, f"{gateway} is the {name} of {prefix}; choose an address that a router can have")


def _unusable(address: Address, prefix: Prefix) -> str:
    """What an address is, if no host can have it: /31, /32, /127 and /128 have no such address (RFC 3021, 6164)."""
    if prefix.family.bits - prefix.length < 2:
        return ""
    if address == prefix.first:
        return "network address" if prefix.family is Family.V4 else "subnet-router anycast address"
    if prefix.family is Family.V4 and address == prefix.last:
        return "broadcast address"
    return ""


def exclude_problems(text: str, prefixes: Sequence[Prefix], path: Path) -> Iterator[Problem]:
    """What is wrong with an exclusion: it must be an address or a prefix, and lie inside one of `prefixes`."""
    try:
        covered = parse_range(text)
    except ConfigError as error:
        yield Problem(path, error.message)
        return
    if "-" in text:
        listed = ", ".join(str(piece) for piece in _pieces(covered))
        yield Problem(path, f"{text!r} is a range; list prefixes and single addresses: {listed}")
    elif all(covered.within(prefix) != covered for prefix in prefixes):
        where = str(prefixes[0]) if len(prefixes) == 1 else "any one of the prefixes"
        yield Problem(path, f"{text} is not in {where}; exclude only what lies inside")


def _pieces(covered: IntervalSet) -> Iterator[Prefix | Address]:
    """The fewest prefixes that cover a set exactly, whole-length ones as addresses."""
    for first, last in covered:
        family, value = first.family, first.value
        while value <= last.value:
            host = (value & -value).bit_length() - 1 if value else family.bits
            while value + (1 << host) - 1 > last.value:
                host -= 1
            piece = Prefix(family, value, family.bits - host)
            yield piece if host else piece.first
            value += 1 << host


def _field_problems(spec: NetworkSpec, prefixes: list[tuple[Path, Prefix]]) -> Iterator[Problem]:
    if spec.network_id is not None and spec.network_id_pool is not None:
        message = "give networkID or networkIDPool, not both: a number is chosen or drawn from a pool"
        yield Problem((*_SPEC, "networkIDPool"), message)
    six = any(prefix.family is Family.V6 for _, prefix in prefixes)
    if spec.mtu is not None and six and spec.mtu < _IPV6_MTU:
        yield Problem((*_SPEC, "mtu"), f"must be {_IPV6_MTU} or more with an IPv6 subnet (RFC 8200), not {spec.mtu}")


def selector_problems(selector: LabelSelector | None, path: Path) -> Iterator[Problem]:
    """What is wrong with a label selector; a missing one is right."""
    if selector is None:
        return
    for index, need in enumerate(selector.match_expressions):
        at: Path = (*path, "matchExpressions", index, "values")
        if need.operator in {"In", "NotIn"} and not need.values:
            yield Problem(at, f"{need.operator} needs at least one value")
        elif need.operator in {"Exists", "DoesNotExist"} and need.values:
            yield Problem(at, f"{need.operator} takes no values; leave them out")


def network_update_problems(old: Network, new: Network) -> Iterator[Problem]:
    """What of a change is not allowed. `old.status.subnets_in_use` tells which subnets may not go yet."""
    if old.spec.type is not new.spec.type:
        message = f"is {old.spec.type} and can't be changed; make a new network, or delete this one first"
        yield Problem((*_SPEC, "type"), message)
    if old.spec.network_id is not None and old.spec.network_id != new.spec.network_id:
        yield Problem((*_SPEC, "networkID"), f"is {old.spec.network_id} and can't be changed once it is set")
    kept = {subnet.cidr: (index, subnet) for index, subnet in enumerate(new.spec.subnets)}
    for before in old.spec.subnets:
        if before.cidr not in kept:
            yield from _removal_problems(old, before)
            continue
        index, after = kept[before.cidr]
        if before.host_prefix_length != after.host_prefix_length:
            path: Path = (*_SPEC, "subnets", index, "hostPrefixLength")
            yield Problem(path, f"is {before.host_prefix_length} and can't be changed; add a further subnet instead")


def _removal_problems(old: Network, subnet: Subnet) -> Iterator[Problem]:
    path: Path = (*_SPEC, "subnets")
    if not subnet.closed:
        yield Problem(path, f"{subnet.cidr} may be removed only once it is closed: set closed: true on it first")
    elif subnet.cidr in old.status.subnets_in_use:
        yield Problem(path, f"{subnet.cidr} is still in use; it may be removed once nothing in it is held")
