"""The rules of LoadBalancerClass and Advertisement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.address import Family, parse_prefix
from allotment.addressing.errors import ConfigError
from allotment.addressing.intervals import IntervalSet, parse_range
from allotment.api.network_rules import canonical_address, network_name_problems, selector_problems
from allotment.api.shape import Path, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allotment.api.loadbalancer import AddressRanges, Advertisement, LoadBalancerClass

__all__ = ["advertisement_problems", "advertisement_update_problems", "class_problems"]

_SPEC: Path = ("spec",)


def class_problems(found: LoadBalancerClass) -> Iterator[Problem]:
    """What is wrong with a LoadBalancerClass by itself."""
    spec = found.spec
    yield from network_name_problems(found.name, ("metadata", "name"), "class")
    if spec.pools.v4 is None and spec.pools.v6 is None:
        yield Problem((*_SPEC, "pools"), "names no addresses: give v4, v6 or both")
    for family, ranges in ((Family.V4, spec.pools.v4), (Family.V6, spec.pools.v6)):
        if ranges is not None:
            yield from _ranges_problems(ranges, family, (*_SPEC, "pools", f"v{family.value}"))
    yield from selector_problems(spec.node_selector, (*_SPEC, "nodeSelector"))
    yield from selector_problems(spec.service_selector, (*_SPEC, "serviceSelector"))
    yield from _interface_problems(spec.interfaces)


def _ranges_problems(ranges: AddressRanges, family: Family, path: Path) -> Iterator[Problem]:
    if not ranges.cidrs and not ranges.ranges:
        yield Problem(path, "names no addresses: give cidrs, ranges or both")
    for index, text in enumerate(ranges.cidrs):
        yield from _entry_problems(text, family, (*path, "cidrs", index))
    for index, text in enumerate(ranges.ranges):
        at: Path = (*path, "ranges", index)
        if "-" in text:
            yield from _entry_problems(text, family, at)
        else:
            yield Problem(at, f"{text!r} is not a range; write it like 10.1.2.3-10.1.2.9, or list it under cidrs")


def _entry_problems(text: str, family: Family, path: Path) -> Iterator[Problem]:
    try:
        covered = parse_range(text) if "-" in text else IntervalSet.of(parse_prefix(text))
    except ConfigError as error:
        yield Problem(path, error.message)
        return
    first, _ = next(iter(covered))
    if first.family is not family:
        yield Problem(path, f"{text} is {first.family}; list it under v{first.family.value}")


def _interface_problems(interfaces: tuple[str, ...] | None) -> Iterator[Problem]:
    for index, name in enumerate(interfaces or ()):
        if name in {".", ".."} or any(sign in "/:" or sign.isspace() for sign in name):
            message = f"{name!r} is no name of an interface; it has no slash, colon or blank"
            yield Problem((*_SPEC, "interfaces", index), message)


def advertisement_problems(found: Advertisement) -> Iterator[Problem]:
    """What is wrong with an Advertisement by itself."""
    spec = found.spec
    yield from network_name_problems(spec.class_, (*_SPEC, "class"), "class")
    for index, text in enumerate(spec.addresses):
        address = canonical_address(text, (*_SPEC, "addresses", index))
        if isinstance(address, Problem):
            yield address
    yield from selector_problems(spec.node_selector, (*_SPEC, "nodeSelector"))
    yield from _interface_problems(spec.interfaces)


def advertisement_update_problems(old: Advertisement, new: Advertisement) -> Iterator[Problem]:
    """What of a change is not allowed: an Advertisement is for one Service for ever."""
    before = old.spec.service_uid
    if before != new.spec.service_uid:
        yield Problem((*_SPEC, "serviceUID"), f"is {before} and can't be changed; make a new Advertisement")
