"""The rules of an Allocation: its name, its blocks, and what may change once it exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.address import Prefix, parse_address
from allotment.addressing.errors import ConfigError
from allotment.addressing.plan import Layer
from allotment.api.names import allocation_name, is_subdomain
from allotment.api.network_rules import canonical, network_name_problems, overlaps
from allotment.api.shape import Path, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allotment.api.allocation import Allocation

__all__ = ["allocation_problems", "allocation_update_problems"]


def allocation_problems(allocation: Allocation) -> Iterator[Problem]:
    """What is wrong with an Allocation by itself."""
    spec = allocation.spec
    yield from network_name_problems(spec.network, ("spec", "network"))
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


def allocation_update_problems(old: Allocation, new: Allocation) -> Iterator[Problem]:
    """What of a change is not allowed: an Allocation is for one network and node for ever."""
    fixed = (
        ("network", old.spec.network, new.spec.network),
        ("networkUID", old.spec.network_uid, new.spec.network_uid),
        ("node", old.spec.node, new.spec.node),
        ("type", old.spec.type, new.spec.type),
    )
    for name, before, after in fixed:
        if before and before != after:
            yield Problem(("spec", name), f"is {before!s} and can't be changed; make a new Allocation")
