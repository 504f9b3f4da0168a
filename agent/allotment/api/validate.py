"""What an object must say to make sense: the rules that one field alone can't state.

`validate` is for an object by itself, `validate_update` for what may change. Both return every problem, with its
place and the right form. They are the same rules that the CRDs carry in CEL, and one table of cases tests both;
where only the library has a rule (CEL can't see it, or it would stand at an object's root), the table says so.

A Network on L3 needs `hostPrefixLength` on every subnet, in standalone mode too (see `Subnet`).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from allotment.addressing.address import Prefix, parse_address, parse_prefix
from allotment.addressing.errors import ConfigError
from allotment.addressing.plan import Layer
from allotment.api.allocation import Allocation
from allotment.api.ipamconfig import CAP_WITHOUT_AFFINITY, CONFIG_NAME, NO_BLOCKS_AT_ALL, IPAMConfig, effective
from allotment.api.names import NETWORK_NAME_LIMIT, allocation_name, is_label, is_subdomain
from allotment.api.network import Network
from allotment.api.network_rules import canonical, network_problems, network_update_problems, overlaps
from allotment.api.reservation import IPReservation
from allotment.api.shape import Path, Problem, check_shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allotment.api.meta import ObjectMeta

__all__ = ["Resource", "rule_problems", "validate", "validate_update"]

Resource = Network | Allocation | IPReservation | IPAMConfig
"""Any object that a node reads."""


def validate(resource: Resource) -> tuple[Problem, ...]:
    """Everything that is wrong with an object by itself, limits of single fields included."""
    faults, _ = check_shape(msgspec.to_builtins(resource), type(resource))
    return (*faults, *rule_problems(resource))


def rule_problems(resource: Resource) -> Iterator[Problem]:
    """As `validate`, for an object whose form was checked already."""
    yield from _metadata_problems(resource.metadata)
    match resource:
        case Network():
            yield from _network_name_problems(resource.metadata.name, ("metadata", "name"))
            yield from network_problems(resource)
        case Allocation():
            yield from _allocation_problems(resource)
        case IPReservation():
            yield from _subdomain_problems(resource.metadata.name)
            for index, text in enumerate(resource.spec.reserved_cidrs):
                found = _prefix(text, ("spec", "reservedCIDRs", index))
                if isinstance(found, Problem):
                    yield found
        case IPAMConfig():
            yield from _config_problems(resource)


def validate_update(old: Resource, new: Resource) -> tuple[Problem, ...]:
    """What of the change from `old` to `new` (same kind and name) is not allowed; `new` by itself is not looked at.

    Once deletion was asked for there is no way back: that is the API server's rule, and a source's to keep.
    """
    if isinstance(old, Network) and isinstance(new, Network):
        return tuple(network_update_problems(old, new))
    if isinstance(old, Allocation) and isinstance(new, Allocation):
        fixed = (
            ("network", old.spec.network, new.spec.network),
            ("networkUID", old.spec.network_uid, new.spec.network_uid),
            ("node", old.spec.node, new.spec.node),
            ("type", old.spec.type, new.spec.type),
        )
        return tuple(
            Problem(("spec", name), f"is {before!s} and can't be changed; make a new Allocation")
            for name, before, after in fixed
            if before and before != after
        )
    return ()


def _metadata_problems(meta: ObjectMeta) -> Iterator[Problem]:
    for name, stamp in (("creationTimestamp", meta.creation_timestamp), ("deletionTimestamp", meta.deletion_timestamp)):
        if stamp and not _is_timestamp(stamp):
            message = f"{stamp!r} is not a time; write it like 2026-01-31T14:03:00Z"
            yield Problem(("metadata", name), message)


def _is_timestamp(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _network_name_problems(name: str, path: Path) -> Iterator[Problem]:
    if not is_label(name, NETWORK_NAME_LIMIT):
        form = f"a-z, 0-9 and inner dashes, at most {NETWORK_NAME_LIMIT} characters"
        yield Problem(path, f"{name!r} is no name for a network; use {form}")


def _subdomain_problems(name: str) -> Iterator[Problem]:
    if not is_subdomain(name):
        form = "a-z, 0-9, inner dashes and dots, at most 253 characters"
        yield Problem(("metadata", "name"), f"{name!r} is no name for an object; use {form}")


def _prefix(text: str, path: Path) -> Prefix | Problem:
    """A prefix in any valid spelling: it is compared by value, not a key."""
    try:
        return parse_prefix(text)
    except ConfigError as error:
        return Problem(path, error.message)


def _allocation_problems(allocation: Allocation) -> Iterator[Problem]:
    spec = allocation.spec
    yield from _network_name_problems(spec.network, ("spec", "network"))
    if not is_subdomain(spec.node):
        yield Problem(("spec", "node"), f"{spec.node!r} is no name of a node")
    right = allocation_name(spec.network, spec.node)
    if allocation.metadata.name != right:
        message = f"an Allocation is named after its network and node: {right!r}, not {allocation.metadata.name!r}"
        yield Problem(("metadata", "name"), message)
    if spec.type is Layer.L2 and spec.blocks:
        yield Problem(("spec", "blocks"), "on an L2 network the Allocation is only a marker; leave the blocks out")
    prefixes: list[tuple[Path, Prefix]] = []
    for index, block in enumerate(spec.blocks):
        path: Path = ("spec", "blocks", index, "cidr")
        found = canonical(block.cidr, path)
        if isinstance(found, Problem):
            yield found
        else:
            prefixes.append((path, found))
    yield from overlaps(prefixes)
    for index, text in enumerate(spec.cede):
        try:
            parse_address(text)
        except ConfigError as error:
            yield Problem(("spec", "cede", index), error.message)


def _config_problems(config: IPAMConfig) -> Iterator[Problem]:
    if config.metadata.name != CONFIG_NAME:
        message = f"there is one IPAMConfig, and its name is {CONFIG_NAME!r}, not {config.metadata.name!r}"
        yield Problem(("metadata", "name"), message)
    places = {NO_BLOCKS_AT_ALL: "autoAllocateBlocks", CAP_WITHOUT_AFFINITY: "maxBlocksPerHost"}
    for conflict in effective(config).conflicts:
        yield Problem(("spec", places[conflict]), conflict)
