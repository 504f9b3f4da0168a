"""Allocation: admits one node to one Network and lists the node's blocks."""

# No postponed annotations here: msgspec reads the types when a class is made.
from typing import Annotated, Literal

import msgspec

from allotment.addressing.address import Prefix, parse_prefix
from allotment.addressing.plan import Layer
from allotment.api.meta import API_VERSION, UID, APIObject, Conditions, Decimal, Name, Record, limits
from allotment.api.network import CIDR, IP, NetworkID

__all__ = [
    "Allocation",
    "AllocationSpec",
    "AllocationStatus",
    "Block",
    "BlockUse",
    "TunnelStatus",
    "WantBlocks",
]

Items = limits(maxItems=256)
KeyedItems = limits(maxItems=256, key="cidr")
Count = Annotated[int, limits(minimum=0, maximum=(1 << 31) - 1)]


class Block(Record, frozen=True):
    """A prefix that belongs to the node. Only a Confirmed one may give addresses (I4)."""

    cidr: CIDR
    state: Literal["Pending", "Confirmed"]

    @property
    def prefix(self) -> Prefix:
        """`cidr`, parsed. Raises ConfigError where the object was not validated."""
        return parse_prefix(self.cidr)


class AllocationSpec(Record, frozen=True):
    """What the controller (or, in standalone mode, a file or the agent itself) gives the node.

    `cede` names the addresses that the node is asked to lend (borrowing). On an L2 network there are no blocks: the
    object is the marker that the node takes part.
    """

    network: Name
    node: Name
    type: Layer
    network_uid: UID = ""
    node_uid: UID = ""
    network_id: NetworkID | None = None
    closed: bool = False
    blocks: Annotated[tuple[Block, ...], KeyedItems] = ()
    cede: Annotated[tuple[IP, ...], Items] = ()


class BlockUse(Record, frozen=True):
    """How much of a block is used; decimal text, because a /64 passes 2^63."""

    cidr: CIDR
    capacity: Decimal = "0"
    in_use: Decimal = "0"
    reserved: Decimal = "0"
    cooling: Decimal = "0"
    available: Decimal = "0"


class WantBlocks(Record, frozen=True):
    """How many blocks the agent wants of each family, all in all."""

    v4: Count = 0
    v6: Count = 0


class TunnelStatus(Record, frozen=True):
    """The node's end of a VXLAN network: underlay addresses, and the MAC and addresses of its tunnel device."""

    underlay: Annotated[tuple[IP, ...], limits(maxItems=16)] = ()
    mac: Annotated[str, limits(maxLength=17)] = ""
    addresses: Annotated[tuple[IP, ...], limits(maxItems=16)] = ()


class AllocationStatus(Record, frozen=True):
    """What the agent says of it. `ledger_id` tells one ledger of a node from another."""

    ledger_id: UID = ""
    blocks: Annotated[tuple[BlockUse, ...], KeyedItems] = ()
    want_blocks: WantBlocks | None = None
    relinquished: Annotated[tuple[CIDR, ...], Items] = ()
    ceded: Annotated[tuple[IP, ...], Items] = ()
    tunnel: TunnelStatus | None = None
    conditions: Conditions = ()


class Allocation(APIObject, frozen=True):
    """The object for one (network, node), named `<network>.<node>`: it admits the node and lists its blocks."""

    spec: AllocationSpec
    status: AllocationStatus = AllocationStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "Allocation")
