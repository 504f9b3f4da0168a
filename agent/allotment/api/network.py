"""Network: one address space that pods attach to."""

# No postponed annotations here: msgspec reads the types when a class is made.
from typing import Annotated, Literal

import msgspec

from allotment.addressing.address import Address, Prefix, parse_address, parse_prefix
from allotment.addressing.intervals import IntervalSet, parse_range
from allotment.addressing.plan import Layer
from allotment.api.meta import API_VERSION, APIObject, Conditions, Decimal, Labels, Name, Record, limits

__all__ = [
    "CIDR",
    "COOLDOWN_LIMIT",
    "IP",
    "AllowedUses",
    "LabelSelector",
    "Network",
    "NetworkID",
    "NetworkSpec",
    "NetworkStatus",
    "Requirement",
    "Subnet",
    "Use",
]

CIDR = Annotated[str, limits(maxLength=43)]
"""A prefix as text; 43 characters are the longest IPv6 address with its length."""
IP = Annotated[str, limits(maxLength=43)]
"""An address as text; it has room for a length, so that a prefix by mistake is told as what it is."""
NetworkID = Annotated[int, limits(minimum=1, maximum=(1 << 24) - 1)]
"""A VNI or VLAN."""
COOLDOWN_LIMIT = 1200
"""Longest cooldown, in seconds."""

Use = Literal["Pod", "Tunnel", "LoadBalancer", "Claim"]
AllowedUses = Annotated[tuple[Use, ...] | None, limits(minItems=1, maxItems=4, unique=True)]
"""What addresses may be taken for; missing means anything."""


class Subnet(Record, frozen=True):
    """One address range of a Network, known by its `cidr`.

    `host_prefix_length` (L3) is the size of the blocks it is cut into for the nodes. It is needed on every L3
    subnet, also in standalone mode, where one node gets the whole subnet and nothing is cut: a manifest is the
    same object in both, so that a file which works on one host is accepted by a cluster. `gateway` (L2) is the
    router of the flat subnet. `exclude` holds addresses and prefixes inside the subnet that are never handed out.
    `closed` gives nothing new and keeps what is held.
    """

    cidr: CIDR
    host_prefix_length: Annotated[int | None, limits(minimum=0, maximum=128)] = None
    gateway: IP | None = None
    exclude: Annotated[tuple[CIDR, ...], limits(maxItems=256)] = ()
    closed: bool = False

    @property
    def prefix(self) -> Prefix:
        """`cidr`, parsed. Raises ConfigError where the object was not validated."""
        return parse_prefix(self.cidr)

    @property
    def gateway_address(self) -> Address | None:
        """`gateway`, parsed. Raises ConfigError where the object was not validated."""
        return None if self.gateway is None else parse_address(self.gateway)

    @property
    def excluded(self) -> IntervalSet:
        """`exclude`, parsed, as one set. Raises ConfigError where the object was not validated."""
        return IntervalSet.of(*(parse_range(text) for text in self.exclude))


class Requirement(Record, frozen=True):
    """metav1.LabelSelectorRequirement."""

    key: Annotated[str, limits(maxLength=317, minLength=1)]
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[tuple[Annotated[str, limits(maxLength=63)], ...], limits(maxItems=256)] = ()


class LabelSelector(Record, frozen=True):
    """metav1.LabelSelector; an empty one selects everything."""

    match_labels: Annotated[Labels, limits(maxProperties=64)] = msgspec.field(default_factory=dict)
    match_expressions: Annotated[tuple[Requirement, ...], limits(maxItems=64)] = ()


class NetworkSpec(Record, frozen=True):
    """What a person asks of a Network.

    `cooldown_seconds`, `max_blocks_per_node` and `auto_allocate_blocks` fall back to the IPAMConfig where they are
    missing. `allowed_uses` missing means all of them. `network_id` is the
    number on the wire (VNI or VLAN) where a person chooses it; `network_id_pool` the IndexPool to draw it from.
    """

    type: Layer
    subnets: Annotated[tuple[Subnet, ...], limits(minItems=1, maxItems=64, key="cidr")]
    node_selector: LabelSelector | None = None
    network_id: NetworkID | None = None
    network_id_pool: Name | None = None
    transport: Literal["None", "Direct", "VXLAN"] | None = None
    mtu: Annotated[int | None, limits(minimum=68, maximum=65535)] = None
    cooldown_seconds: Annotated[int | None, limits(minimum=0, maximum=COOLDOWN_LIMIT)] = None
    max_blocks_per_node: Annotated[int | None, limits(minimum=0, maximum=(1 << 31) - 1)] = None
    auto_allocate_blocks: bool | None = None
    allowed_uses: AllowedUses = None
    node_pod_cidrs: Literal["Ignore", "Adopt", "Publish"] = "Ignore"


class NetworkStatus(Record, frozen=True):
    """What the controller found; counts are decimal text, because an IPv6 network passes 2^63.

    `subnets_in_use` names (by `cidr`) the subnets that hold a lease, a cooling address or a block.
    """

    phase: Literal["", "Pending", "Ready", "Draining"] = ""
    network_id: NetworkID | None = None
    capacity: Decimal = ""
    in_use: Decimal = ""
    reserved: Decimal = ""
    cooling: Decimal = ""
    available: Decimal = ""
    subnets_in_use: Annotated[tuple[CIDR, ...], limits(maxItems=256)] = ()
    conditions: Conditions = ()


class Network(APIObject, frozen=True):
    """One address space that pods attach to: routed with blocks per node (L3), or one flat subnet (L2)."""

    spec: NetworkSpec
    status: NetworkStatus = NetworkStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "Network")
