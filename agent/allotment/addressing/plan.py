"""What a node may do with a network, as the lease book is told it.

A plan is made from the API objects by a pure function (`allotment.node.plans`) and handed to the book whole; the
book works out the difference to what it had. A plan says nothing about leases: they stay whatever a plan says.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from allotment.addressing.intervals import IntervalSet

if TYPE_CHECKING:
    from allotment.addressing.address import Address, Family, Prefix
    from allotment.addressing.errors import AllotmentError
    from allotment.addressing.reasons import Reason

__all__ = ["BlockPlan", "Layer", "NetworkPlan", "Refusal"]


class Layer(enum.StrEnum):
    """How a network's addresses are cut: `L3` into blocks per node, `L2` not at all (one flat subnet)."""

    L3 = "L3"
    L2 = "L2"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a network gives nothing new here, as the error an ADD is answered with.

    `closer` is the reason where it says more than the error's own.
    """

    error: type[AllotmentError]
    message: str
    closer: Reason | None = None

    @property
    def reason(self) -> Reason:
        """Why, as one word."""
        return self.closer or self.error.reason

    def made(self) -> AllotmentError:
        """The error."""
        return self.error(self.message, reason=self.reason)


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """One block (on L2 in standalone mode: a subnet) that addresses may be given from.

    `length` is the prefix length told in results. `gateway` is told too, and reserved when it lies inside; None
    means the link-local gateway (169.254.1.1, fe80::1) of a block too small to hold one, or of a borrowed address.
    `gives` is false for a block that is kept for its leases only (Pending, closed, or offered back).
    """

    prefix: Prefix
    length: int
    gateway: Address | None
    gives: bool = True


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """All the lease book needs to know of one network on this node.

    `subnets` are the network's own, for telling a foreign address from a known one and for utilization.
    `excluded` comes from the Network, `reserved` from the IPReservations; neither is ever handed out.
    `refusal` set means that nothing new is given at all; releases and CHECK go on.
    `no_more` completes the message of exhaustion: why no further block can be had. `pending` are the blocks that are
    cut for this node, and not Confirmed yet. `claimed` says that somebody else picks the addresses (an L2 network in a
    cluster): the blocks only say where they lie. `may_grow` are the families of which a further block is to be had by
    asking. `shared` says that it is known for certain which blocks are this node's, and that others have the rest.
    `keeps` says that what a virtual machine's pod leaves is kept for the machine's next pod here.
    """

    name: str
    layer: Layer
    subnets: tuple[Prefix, ...]
    blocks: tuple[BlockPlan, ...]
    cooldown: float
    excluded: IntervalSet = field(default_factory=IntervalSet)
    reserved: IntervalSet = field(default_factory=IntervalSet)
    refusal: Refusal | None = None
    no_more: str = ""
    pending: tuple[Prefix, ...] = ()
    claimed: bool = False
    may_grow: tuple[Family, ...] = ()
    shared: bool = False
    keeps: bool = False
