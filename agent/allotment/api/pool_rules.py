"""The rules of pools, Claims and allocation objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.address import Prefix, parse_address, parse_prefix
from allotment.addressing.errors import ConfigError
from allotment.api.indexes import INDEX_LIMIT, IndexRun, parse_index, parse_indexes
from allotment.api.names import NETWORK_NAME_LIMIT, address_name, index_name, is_label, is_pool_name, prefix_name
from allotment.api.network_rules import canonical, canonical_address, exclude_problems, overlaps
from allotment.api.numbered import Index, IPAddress
from allotment.api.pools import IndexPool, IPPrefixPool
from allotment.api.shape import Path, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from allotment.api.claim import Claim
    from allotment.api.numbered import ClaimRef, IPAddressSpec, IPPrefix, Numbered
    from allotment.api.pools import IPAddressPool, Pool

__all__ = [
    "claim_problems",
    "claim_update_problems",
    "numbered_problems",
    "numbered_update_problems",
    "pool_problems",
    "pool_update_problems",
]

_SPEC: Path = ("spec",)
_PARSERS: dict[str, Callable[[str], object]] = {
    "IndexPool": parse_index,
    "IPAddressPool": parse_address,
    "IPPrefixPool": parse_prefix,
    "LoadBalancerClass": parse_address,
}


def pool_problems(pool: Pool) -> Iterator[Problem]:
    """What is wrong with a pool by itself."""
    if not is_pool_name(pool.name):
        form = f"a-z, 0-9 and inner dashes, at most {NETWORK_NAME_LIMIT} characters"
        yield Problem(("metadata", "name"), f"{pool.name!r} is no name for a pool; use {form}")
    if isinstance(pool, IndexPool):
        yield from _index_pool_problems(pool)
    else:
        yield from _address_pool_problems(pool)


def pool_update_problems(old: Pool, new: Pool) -> Iterator[Problem]:
    """What of a change is not allowed. Ranges may come and go: a held value outside them is told by its `Valid`."""
    if not isinstance(old, IPPrefixPool) or not isinstance(new, IPPrefixPool):
        return
    before, after = old.spec.prefix_length, new.spec.prefix_length
    if before != after:
        yield Problem((*_SPEC, "prefixLength"), f"is {before} and can't be changed; make a new pool")


def _index_pool_problems(pool: IndexPool) -> Iterator[Problem]:
    runs: list[tuple[int, IndexRun]] = []
    for index, text in enumerate(pool.spec.ranges):
        path: Path = (*_SPEC, "ranges", index)
        try:
            run = parse_indexes(text)
        except ConfigError as error:
            yield Problem(path, error.message)
            continue
        shared = next((other for _, other in runs if other.overlaps(run)), None)
        if shared is not None:
            yield Problem(path, f"{run} overlaps {shared}; no two may share a number")
        runs.append((index, run))
    for index, text in enumerate(pool.spec.exclude):
        path = (*_SPEC, "exclude", index)
        try:
            left_out = parse_indexes(text)
        except ConfigError as error:
            yield Problem(path, error.message)
            continue
        if not any(run.covers(left_out) for _, run in runs):
            yield Problem(path, f"{left_out} is not in any one of the ranges; exclude only what lies inside")


def _address_pool_problems(pool: IPAddressPool | IPPrefixPool) -> Iterator[Problem]:
    prefixes: list[tuple[Path, Prefix]] = []
    for index, text in enumerate(pool.spec.prefixes):
        path: Path = (*_SPEC, "prefixes", index)
        found = canonical(text, path)
        if isinstance(found, Problem):
            yield found
        else:
            prefixes.append((path, found))
    yield from overlaps(prefixes)
    plain = [prefix for _, prefix in prefixes]
    for index, text in enumerate(pool.spec.exclude):
        yield from exclude_problems(text, plain, (*_SPEC, "exclude", index))
    if isinstance(pool, IPPrefixPool):
        length = pool.spec.prefix_length
        for prefix in plain:
            low, high = prefix.length, prefix.family.bits
            if not low <= length <= high:
                message = f"must be from {low} to {high} in {prefix}, not {length}"
                yield Problem((*_SPEC, "prefixLength"), message)


def claim_problems(claim: Claim) -> Iterator[Problem]:
    """What is wrong with a Claim by itself."""
    spec = claim.spec
    if spec.value is not None:
        try:
            _PARSERS[spec.pool_ref.kind](spec.value)
        except ConfigError as error:
            yield Problem((*_SPEC, "value"), error.message)
    if spec.pod is not None and spec.node is None:
        yield Problem((*_SPEC, "node"), "is required with pod: the node whose agent holds the address")
    if spec.vm is not None and spec.pod is None:
        yield Problem((*_SPEC, "pod"), "is required with vm: the pod that runs the virtual machine")


def claim_update_problems(old: Claim, new: Claim) -> Iterator[Problem]:
    """What of a change is not allowed: all of it."""
    if old.spec != new.spec:
        yield Problem(_SPEC, "of a Claim can't be changed; delete it and make a new one")


def numbered_problems(item: Numbered) -> Iterator[Problem]:
    """What is wrong with an allocation object by itself."""
    spec, kind = item.spec, item.kind
    if spec.pool_ref.kind != f"{kind}Pool":
        message = f"must be {kind}Pool for an {kind}, not {spec.pool_ref.kind}"
        yield Problem((*_SPEC, "poolRef", "kind"), message)
    found = _value_name(item)
    if isinstance(found, Problem):
        yield found
    elif item.name != found:
        message = f"{kind} objects are named after pool and value: {found!r}, not {item.name!r}"
        yield Problem(("metadata", "name"), message)
    if spec.claim_ref is not None:
        yield from _claim_ref_problems(spec.claim_ref, (*_SPEC, "claimRef"))
    if isinstance(item, IPAddress):
        for index, sharer in enumerate(item.spec.sharers):
            path: Path = (*_SPEC, "sharers", index)
            yield from _claim_ref_problems(sharer, path)
            if sharer.kind != "Service":
                yield Problem((*path, "kind"), f"must be Service, not {sharer.kind}: only Services share an address")
        yield from _standby_problems(item.spec)


def numbered_update_problems(old: Numbered, new: Numbered) -> Iterator[Problem]:
    """What of a change is not allowed: the object is for one value for ever; only its holder changes."""
    if old.spec.pool_ref != new.spec.pool_ref:
        before = f"{old.spec.pool_ref.kind} {old.spec.pool_ref.name}"
        yield Problem((*_SPEC, "poolRef"), f"is {before} and can't be changed; make a new {old.kind}")
    (field, before), (_, after) = _value(old), _value(new)
    if before != after:
        yield Problem((*_SPEC, field), f"is {before} and can't be changed; make a new {old.kind}")
    before = old.spec.network_uid
    if before and before != new.spec.network_uid:
        yield Problem((*_SPEC, "networkUID"), f"is {before} and can't be changed once it is set")
    if isinstance(old, IPAddress) and isinstance(new, IPAddress) and old.spec.vm not in (None, new.spec.vm):
        yield Problem((*_SPEC, "vm"), "can't be changed once it is set")


def _value(item: Numbered) -> tuple[str, str]:
    """The field that holds the value, and the value as text."""
    if isinstance(item, Index):
        return "index", str(item.spec.index)
    if isinstance(item, IPAddress):
        return "address", item.spec.address
    return "prefix", item.spec.prefix


def _value_name(item: Index | IPAddress | IPPrefix) -> str | Problem:
    """The name that belongs to the value, or what is wrong with that."""
    pool = item.spec.pool_ref.name
    if isinstance(item, Index):
        if item.spec.index > INDEX_LIMIT:
            return Problem((*_SPEC, "index"), f"must be a number from 0 to {INDEX_LIMIT}, not {item.spec.index}")
        return index_name(pool, item.spec.index)
    if isinstance(item, IPAddress):
        address = canonical_address(item.spec.address, (*_SPEC, "address"))
        return address if isinstance(address, Problem) else address_name(pool, address)
    prefix = canonical(item.spec.prefix, (*_SPEC, "prefix"))
    return prefix if isinstance(prefix, Problem) else prefix_name(pool, prefix)


def _standby_problems(spec: IPAddressSpec) -> Iterator[Problem]:
    standby = spec.standby_ref
    if standby is None:
        return
    path: Path = (*_SPEC, "standbyRef")
    yield from _claim_ref_problems(standby, path)
    if standby.kind != "Claim":
        yield Problem((*path, "kind"), f"must be Claim, not {standby.kind}: only a pod's Claim stands by")
    if spec.claim_ref is None or spec.vm is None:
        yield Problem(path, "needs vm, and an active Claim in claimRef that it stands by for")


def _claim_ref_problems(ref: ClaimRef, path: Path) -> Iterator[Problem]:
    if not ref.namespace:
        return
    if not ref.home:
        message = f"is for a Claim or a Service; {ref.kind} objects belong to no namespace: leave it out"
        yield Problem((*path, "namespace"), message)
    elif not is_label(ref.namespace):
        message = f"{ref.namespace!r} is no name of a namespace; use a-z, 0-9 and inner dashes"
        yield Problem((*path, "namespace"), message)
