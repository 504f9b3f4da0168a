"""What the objects mean for this node: pure functions from a View to the lease book's plans.

The agent gives an address only from a Confirmed block of an Allocation that is neither terminating nor closed and
carries the agent's finalizer (I4). All else here says, in words for a person, why not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.edges import block_gateway
from allotment.addressing.errors import NetworkClosed, NetworkDraining, NotAdmitted
from allotment.addressing.intervals import IntervalSet
from allotment.addressing.plan import BlockPlan, Layer, NetworkPlan, Refusal
from allotment.addressing.reasons import Reason
from allotment.api.ipamconfig import effective
from allotment.api.meta import NODE_FINALIZER
from allotment.node.growth import block_limit
from allotment.node.unseen import is_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from allotment.addressing.address import Family
    from allotment.api.allocation import Allocation
    from allotment.api.network import Network
    from allotment.node.view import View

__all__ = ["draining", "network_plans"]


def network_plans(view: View, node: str, closed: Collection[tuple[str, str]] = frozenset()) -> tuple[NetworkPlan, ...]:
    """The plans of every network that this node has heard of, by name: from a Network, an Allocation, or both.

    `closed` are the blocks (network, CIDR) that the ledger says are offered back.
    """
    reserved = IntervalSet.of(*(prefix for item in view.reservations.values() for prefix in item.spec.prefixes))
    names = sorted({*view.networks, *view.allocations})
    return tuple(
        _plan(
            name,
            view.networks.get(name),
            view.allocations.get(name),
            view,
            reserved,
            node,
            frozenset(cidr for network, cidr in closed if network == name),
        )
        for name in names
    )


def draining(allocation: Allocation, view: View) -> str:
    """Why a node's part of a network is on its way out, for a person; empty while it stays.

    A Network that is gone counts as draining: its guard can lose a race, and nothing may be admitted behind it (I9).
    One that has only not been seen yet says nothing.
    """
    network = view.networks.get(allocation.spec.network)
    if network is None or not is_of(allocation, network):
        gone = allocation.spec.network not in view.unseen
        another = ", and another one has its name now" if network is not None else ""
        return f"Network {allocation.spec.network} is gone{another}" if gone else ""
    if network.metadata.deleting:
        return f"Network {network.name} is being deleted"
    if allocation.metadata.deleting:
        return f"Allocation {allocation.name} is being deleted"
    return ""


def _plan(
    name: str,
    network: Network | None,
    allocation: Allocation | None,
    view: View,
    reserved: IntervalSet,
    node: str,
    closed: frozenset[str],
) -> NetworkPlan:
    excluded = (
        IntervalSet.of(*(prefix for subnet in network.spec.subnets for prefix in subnet.excluded)) if network else None
    )
    blocks = _blocks(network, allocation, closed)
    layer = network.spec.type if network else allocation.spec.type if allocation else Layer.L3
    refusal = _refusal(name, network, allocation, view, node) or _all_closed(name, network, blocks)
    merged = effective(view.config, network)
    return NetworkPlan(
        name=name,
        layer=layer,
        subnets=tuple(subnet.prefix for subnet in network.spec.subnets) if network else (),
        blocks=blocks,
        cooldown=float(merged.cooldown_seconds),
        excluded=excluded or IntervalSet(),
        reserved=reserved,
        refusal=refusal,
        no_more=_no_more(view, network, allocation, blocks),
        pending=tuple(block.prefix for block in allocation.spec.blocks if block.state == "Pending")
        if allocation
        else (),
        claimed=layer is Layer.L2 and not view.local_l2,
        may_grow=_may_grow(view, network, allocation, closed),
        shared=layer is Layer.L3 and view.controlled and view.synced and not view.doubted,
        keeps=layer is Layer.L3
        and view.controlled
        and merged.vm_address_persistence
        and (refusal is None or refusal.error is NotAdmitted),
    )


def _refusal(
    name: str, network: Network | None, allocation: Allocation | None, view: View, node: str
) -> Refusal | None:
    if allocation is None:
        if network is not None and network.metadata.deleting:
            return Refusal(NetworkDraining, f"network {name} is being deleted and gives nothing new")
        why = view.unadmitted.get(name) or "there is no Allocation for it yet"
        message = f"network {name} is known, but not admitted on node {node}: {why}"
        return Refusal(NotAdmitted, message, Reason.NOT_SELECTED if name in view.unselected else Reason.NO_ALLOCATION)
    reason = draining(allocation, view)
    if reason:
        return Refusal(
            NetworkDraining,
            f"network {name} is draining on node {node}: {reason}; it gives no new address, releases go on",
        )
    if name in view.unseen:
        return Refusal(
            NotAdmitted,
            f"network {name} is not served on node {node} yet: {view.unseen[name]}, though it has an Allocation; try "
            "again shortly",
        )
    if NODE_FINALIZER not in allocation.metadata.finalizers:
        return Refusal(
            NotAdmitted,
            f"network {name} is not served on node {node} yet: the agent's finalizer is not on Allocation "
            f"{allocation.name}",
        )
    if allocation.spec.closed:
        return Refusal(
            NetworkClosed, f"network {name} is closed on node {node}: it keeps what it has and gives no new address"
        )
    return None


def _all_closed(name: str, network: Network | None, blocks: tuple[BlockPlan, ...]) -> Refusal | None:
    """The refusal of a network of which a family has closed subnets alone: a pod gets all its families or none."""
    if network is None:
        return None
    giving = {block.prefix.family for block in blocks if block.gives}
    unclosed = {subnet.prefix.family for subnet in network.spec.subnets if not subnet.closed}
    families = {block.prefix.family for block in blocks}
    shut = sorted(families - giving - unclosed)
    if not shut:
        return None
    which = f"its {shut[0]} subnets all are, and a pod gets an address of each family or none"
    if len(shut) == len(families):
        which = "all its subnets are"
    return Refusal(
        NetworkClosed,
        f"network {name} is closed: {which}; it keeps what it has and gives no new address until one of them is "
        "opened or another is added",
    )


def _blocks(network: Network | None, allocation: Allocation | None, offered: frozenset[str]) -> tuple[BlockPlan, ...]:
    """The blocks in the order they are given from: the Allocation's, or on L2 the subnets themselves.

    Those of an L2 network that is going away are there without its marker: that went first, and pods hold addresses.
    """
    if allocation is None and (network is None or not network.metadata.deleting):
        return ()
    closed = [subnet.prefix for subnet in network.spec.subnets if subnet.closed] if network else []
    if network is not None and network.spec.type is Layer.L2:
        return tuple(
            BlockPlan(
                prefix=subnet.prefix,
                length=subnet.prefix.length,
                gateway=subnet.gateway_address,
                gives=not subnet.closed,
            )
            for subnet in network.spec.subnets
        )
    if allocation is None:
        return ()
    offered |= {*allocation.status.relinquished}
    return tuple(
        BlockPlan(
            prefix=block.prefix,
            length=block.prefix.length,
            gateway=block_gateway(block.prefix),
            gives=block.cidr not in offered and not any(block.prefix in subnet for subnet in closed),
        )
        for block in allocation.spec.blocks
        if block.state == "Confirmed"
    )


def _may_grow(
    view: View, network: Network | None, allocation: Allocation | None, closed: frozenset[str]
) -> tuple[Family, ...]:
    """The families of which the node gets more if it asks: a block that is on its way, a new one, or one it offered."""
    if network is None or allocation is None or not view.controlled or network.spec.type is Layer.L2:
        return ()
    coming = {
        block.prefix.family
        for block in allocation.spec.blocks
        if block.state == "Pending" or block.cidr in closed or block.cidr in allocation.status.relinquished
    }
    return tuple(
        family
        for family in sorted({subnet.prefix.family for subnet in network.spec.subnets})
        if family in coming or not block_limit(view, network, allocation, family)[1]
    )


def _no_more(view: View, network: Network | None, allocation: Allocation | None, blocks: tuple[BlockPlan, ...]) -> str:
    if network is None:
        return "its Network is gone"
    cut = IntervalSet.of(*(block.prefix for block in blocks))
    if not IntervalSet.of(*(subnet.prefix for subnet in network.spec.subnets)) - cut:
        return f"this node has all of it; add a subnet to Network {network.name}"
    families = sorted({subnet.prefix.family for subnet in network.spec.subnets})
    if view.controlled and allocation is not None:
        limits = (block_limit(view, network, allocation, family)[1] for family in families)
        if reasons := sorted(filter(None, limits)):
            return "; ".join(reasons)
    pools = " and ".join(f"net.{network.name}.v{family.value}" for family in families)
    return f"none was given to this node from {pools}"
