"""Whether a node can have addresses enough for the pods that its kubelet takes. Pure.

What a network can have is counted in its favour: further blocks are taken for the largest that its subnets are cut
into, and a node is supposed to get all that its cap allows. What is too little then, is too little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.address import Prefix
from allotment.addressing.edges import block_gateway, unusable
from allotment.addressing.intervals import IntervalSet
from allotment.addressing.plan import Layer
from allotment.node.growth import block_limit
from allotment.node.plans import draining

if TYPE_CHECKING:
    from collections.abc import Iterable

    from allotment.addressing.address import Family
    from allotment.api.allocation import Allocation
    from allotment.api.network import Network
    from allotment.node.view import View

__all__ = ["addresses_at_most", "too_few"]


def too_few(view: View) -> str:
    """Why no network can have an address for each pod of this node, for a person; empty if one can, or nobody knows.

    A pod has addresses of one network at least, and which one that is, the node doesn't know: so it is about the one
    that can have most.
    """
    most = {
        name: min(by_family.values())
        for name in sorted(view.allocations)
        if (by_family := addresses_at_most(view, name))
    }
    if view.pod_limit is None or not most or max(most.values()) >= view.pod_limit:
        return ""
    each = ", ".join(f"{name} {count}" for name, count in most.items())
    return (
        f"the kubelet takes {view.pod_limit} pods here, and no network can have so many addresses on this node "
        f"(at most: {each}). Pods in the node's own network need none. Let nodes have more blocks or larger ones, or "
        "lower the kubelet's maxPods"
    )


def addresses_at_most(view: View, name: str) -> dict[Family, int]:
    """How many pods of this node a network can have addresses for, by family; empty where it gives none here."""
    network, allocation = view.networks.get(name), view.allocations.get(name)
    if network is None or allocation is None or allocation.spec.closed or draining(allocation, view):
        return {}
    withheld = IntervalSet.of(
        *(prefix for subnet in network.spec.subnets for prefix in subnet.excluded),
        *(prefix for item in view.reservations.values() for prefix in item.spec.prefixes),
    )
    families = sorted({subnet.prefix.family for subnet in network.spec.subnets})
    return {family: _at_most(view, network, allocation, family, withheld) for family in families}


def _at_most(view: View, network: Network, allocation: Allocation, family: Family, withheld: IntervalSet) -> int:
    subnets = [each for each in network.spec.subnets if each.prefix.family is family]
    if network.spec.type is Layer.L2:
        routers = [each.gateway_address for each in subnets if each.gateway_address is not None]
        return (_usable(each.prefix for each in subnets) - IntervalSet.of(*routers) - withheld).count()
    own = [block.prefix for block in allocation.spec.blocks if block.prefix.family is family]
    gateways = [gateway for gateway in map(block_gateway, own) if gateway is not None]
    have = (_usable(own) - IntervalSet.of(*gateways) - withheld).count()
    limit, why_not = block_limit(view, network, allocation, family)
    further = 0 if why_not else limit - len(own)
    sizes = sorted(
        (_of_one(each.prefix, each.host_prefix_length), _left(each.prefix, each.host_prefix_length, own))
        for each in subnets
        if each.host_prefix_length is not None and not each.closed
    )
    for size, left in reversed(sizes):
        taken = min(further, left)
        have += taken * size
        further -= taken
    return have


def _usable(prefixes: Iterable[Prefix]) -> IntervalSet:
    prefixes = tuple(prefixes)
    return IntervalSet.of(*prefixes) - IntervalSet.of(*map(unusable, prefixes))


def _of_one(subnet: Prefix, length: int) -> int:
    """The addresses that one block of a subnet has to give."""
    block = Prefix(subnet.family, subnet.value, length)
    return block.size - unusable(block).count() - (block_gateway(block) is not None)


def _left(subnet: Prefix, length: int, own: Iterable[Prefix]) -> int:
    """How many blocks of a subnet the node does not have already."""
    return max(0, (1 << (length - subnet.length)) - sum(block in subnet for block in own))
