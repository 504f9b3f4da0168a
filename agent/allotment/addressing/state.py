"""What an address is at a moment, and why it can't be had: one judgement for allocation, `explain` and the page."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allotment.addressing.edges import edge_name
from allotment.addressing.lease import LeaseKind

if TYPE_CHECKING:
    from allotment.addressing.address import Address, Prefix
    from allotment.addressing.lease import Lease, Owner

__all__ = ["AddressState", "StateKind", "whom"]


class StateKind(enum.StrEnum):
    """What an address is; the first that applies, in this order."""

    LEASED = "leased"
    BEING_GIVEN = "being given"  # picked for a request whose lease is not on disk yet
    UNKNOWN_NETWORK = "unknown network"
    FOREIGN = "foreign"  # outside the network's subnets
    UNASSIGNED = "unassigned"  # in a subnet, but in no block of this node
    EDGE = "edge"  # network, broadcast or anycast address
    GATEWAY = "gateway"
    RESERVED = "reserved"
    EXCLUDED = "excluded"
    COOLING = "cooling"
    CLOSED = "closed"  # free, in a block that gives nothing new
    CLAIMED = "by claim"  # nobody's on this node; whether it is free is not for this node to say
    IDLE = "idle"  # free, was used before
    NEVER_USED = "never used"  # free


@dataclass(frozen=True, slots=True)
class AddressState:
    """The state of an address of a network on a node.

    `block` is this node's block that holds it; `lease` its lease, on disk or about to be. `rested` says for how many
    seconds it has rested, `released` at which Unix time it was released, `remaining` how many seconds its cooldown
    still lasts; all three are None for an address that isn't resting. `subnets` are the network's.
    """

    network: str
    node: str
    address: Address
    kind: StateKind
    block: Prefix | None = None
    lease: Lease | None = None
    rested: float | None = None
    released: float | None = None
    remaining: float | None = None
    subnets: tuple[Prefix, ...] = ()

    @property
    def available(self) -> bool:
        """Whether it could be handed out now."""
        return self.kind in {StateKind.IDLE, StateKind.NEVER_USED}

    def __str__(self) -> str:
        """The state as a sentence, without a full stop."""
        return f"{self.address} {self._predicate()}"

    def _predicate(self) -> str:
        match self.kind:
            case StateKind.LEASED | StateKind.BEING_GIVEN:
                verb = "is held by" if self.kind is StateKind.LEASED else "is just being given to"
                return f"{verb} {whom(self.lease.owner)}" if self.lease else verb
            case StateKind.FOREIGN:
                subnets = ", ".join(map(str, self.subnets)) or "none"
                return f"does not belong to network {self.network} (its subnets: {subnets})"
            case StateKind.UNASSIGNED:
                return f"belongs to network {self.network}, but lies in no block of {self.node}"
            case StateKind.EDGE if self.block is not None:
                return f"is the {edge_name(self.block, self.address)} of block {self.block}"
            case StateKind.COOLING:
                rested, remaining = math.floor(self.rested or 0), math.ceil(self.remaining or 0)
                return f"is cooling: released {rested} s ago, it may be given again in {remaining} s"
            case StateKind.CLOSED:
                return f"lies in block {self.block}, which gives nothing new"
            case _:
                return _PREDICATES[self.kind].format(network=self.network, block=self.block, node=self.node)


_PREDICATES = {
    StateKind.UNKNOWN_NETWORK: "is unknown here: there is no network {network} on {node}",
    StateKind.EDGE: "is an edge of its block",
    StateKind.GATEWAY: "is the gateway of block {block}",
    StateKind.RESERVED: "is covered by an IPReservation",
    StateKind.EXCLUDED: "is excluded by network {network}",
    StateKind.CLAIMED: "is held by nobody on {node}; addresses of network {network} are given by Claim, so a pod of "
    "another node may hold it",
    StateKind.IDLE: "is free in block {block}; it was used before",
    StateKind.NEVER_USED: "is free in block {block}; it was never used",
}


def whom(owner: Owner) -> str:
    """An owner as a person would look for it."""
    if owner.kind is LeaseKind.VM:
        return f"virtual machine {owner.machine} (kept for its interface {owner.interface}; no pod runs it here)"
    container = f"container {owner.container_id[:12]}, interface {owner.interface}"
    if owner.pod_name:
        runs = f" of virtual machine {owner.machine}" if owner.vm else ""
        return f"pod {owner.pod_namespace}/{owner.pod_name}{runs} ({container})"
    return f"{owner.kind} ({container})"
