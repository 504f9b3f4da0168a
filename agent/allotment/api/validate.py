"""What an object must say to make sense: the rules that one field alone can't state.

`validate` is for an object by itself, `validate_update` for what may change. Both return every problem, with its
place and the right form. They are the same rules that the CRDs carry in CEL, and one table of cases tests both;
where only the library has a rule (CEL can't see it, or it would stand at an object's root), the table says so.

A Network on L3 needs `hostPrefixLength` on every subnet, in standalone mode too (see `Subnet`).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from allotment.addressing.address import parse_prefix
from allotment.addressing.errors import ConfigError
from allotment.api.allocation import Allocation
from allotment.api.allocation_rules import allocation_problems, allocation_update_problems
from allotment.api.claim import Claim
from allotment.api.ipamconfig import CAP_WITHOUT_AFFINITY, CONFIG_NAME, NO_BLOCKS_AT_ALL, IPAMConfig, effective
from allotment.api.loadbalancer import Advertisement, Announcer, LoadBalancerClass
from allotment.api.loadbalancer_rules import advertisement_problems, advertisement_update_problems, class_problems
from allotment.api.names import is_subdomain
from allotment.api.network import Network
from allotment.api.network_rules import network_problems, network_update_problems
from allotment.api.numbered import Index, IPAddress, IPPrefix
from allotment.api.pool_rules import (
    claim_problems,
    claim_update_problems,
    numbered_problems,
    numbered_update_problems,
    pool_problems,
    pool_update_problems,
)
from allotment.api.pools import IndexPool, IPAddressPool, IPPrefixPool
from allotment.api.reservation import IPReservation
from allotment.api.shape import Problem, check_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from allotment.api.meta import ObjectMeta

__all__ = ["Resource", "rule_problems", "validate", "validate_update"]

Resource = (
    Network
    | Allocation
    | IndexPool
    | IPAddressPool
    | IPPrefixPool
    | Claim
    | Index
    | IPAddress
    | IPPrefix
    | IPReservation
    | LoadBalancerClass
    | Advertisement
    | Announcer
    | IPAMConfig
)
"""Any object of ours."""


def validate(resource: Resource) -> tuple[Problem, ...]:
    """Everything that is wrong with an object by itself, limits of single fields included."""
    faults, _ = check_shape(msgspec.to_builtins(resource), type(resource))
    return (*faults, *rule_problems(resource))


def rule_problems(resource: Resource) -> Iterator[Problem]:
    """As `validate`, for an object whose form was checked already."""
    yield from _metadata_problems(resource.metadata)
    if isinstance(resource, _NAMED_FREELY):
        yield from _name_problems(resource.metadata.name)
    rules = _RULES.get(type(resource))
    if rules is not None:
        yield from rules(resource)


def validate_update(old: Resource, new: Resource) -> tuple[Problem, ...]:
    """What of the change from `old` to `new` (same kind and name) is not allowed; `new` by itself is not looked at.

    Once deletion was asked for there is no way back: that is the API server's rule, and a source's to keep.
    """
    rules = _UPDATE_RULES.get(type(new))
    return tuple(rules(old, new)) if rules is not None and type(old) is type(new) else ()


def _name_problems(name: str) -> Iterator[Problem]:
    if not is_subdomain(name):
        form = "a-z, 0-9, inner dashes and dots, at most 253 characters"
        yield Problem(("metadata", "name"), f"{name!r} is no name for an object; use {form}")


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


def _reservation_problems(reservation: IPReservation) -> Iterator[Problem]:
    """Any valid spelling of a prefix will do: it is compared by value, not a key."""
    for index, text in enumerate(reservation.spec.reserved_cidrs):
        try:
            parse_prefix(text)
        except ConfigError as error:
            yield Problem(("spec", "reservedCIDRs", index), error.message)


def _config_problems(config: IPAMConfig) -> Iterator[Problem]:
    if config.metadata.name != CONFIG_NAME:
        message = f"there is one IPAMConfig, and its name is {CONFIG_NAME!r}, not {config.metadata.name!r}"
        yield Problem(("metadata", "name"), message)
    places = {NO_BLOCKS_AT_ALL: "autoAllocateBlocks", CAP_WITHOUT_AFFINITY: "maxBlocksPerHost"}
    for conflict in effective(config).conflicts:
        yield Problem(("spec", places[conflict]), conflict)


_NAMED_FREELY = (IPReservation, Claim, Advertisement, Announcer)
"""The kinds that have no rule of their own for the name."""

_RULES: dict[type[Any], Callable[[Any], Iterator[Problem]]] = {
    Network: network_problems,
    Allocation: allocation_problems,
    IndexPool: pool_problems,
    IPAddressPool: pool_problems,
    IPPrefixPool: pool_problems,
    Claim: claim_problems,
    Index: numbered_problems,
    IPAddress: numbered_problems,
    IPPrefix: numbered_problems,
    IPReservation: _reservation_problems,
    LoadBalancerClass: class_problems,
    Advertisement: advertisement_problems,
    IPAMConfig: _config_problems,
}

_UPDATE_RULES: dict[type[Any], Callable[[Any, Any], Iterator[Problem]]] = {
    Network: network_update_problems,
    Allocation: allocation_update_problems,
    IPPrefixPool: pool_update_problems,
    Claim: claim_update_problems,
    Index: numbered_update_problems,
    IPAddress: numbered_update_problems,
    IPPrefix: numbered_update_problems,
    Advertisement: advertisement_update_problems,
}
