"""The rules of Network, Allocation, IPReservation and IPAMConfig in CEL; see `network_rules` for what they say."""

from __future__ import annotations

from allotment.api.allocation import AllocationSpec, Block
from allotment.api.cel import (
    CANONICAL_PREFIX,
    EXCLUDED,
    IS_ADDRESS,
    NODE_NAME,
    PREFIX,
    Rule,
    Rules,
    fixed,
    fixed_once_set,
    inside,
    name_of,
    no_overlap,
)
from allotment.api.ipamconfig import CAP_WITHOUT_AFFINITY, NO_BLOCKS_AT_ALL, IPAMConfigSpec
from allotment.api.network import NetworkSpec, Requirement, Subnet
from allotment.api.reservation import IPReservationSpec

__all__ = ["NETWORK_RULES"]

_PREFIX = "cidr(self.cidr)"
_V4 = f"{_PREFIX}.ip().family() == 4"
_GATEWAY = "!has(self.gateway) || !isIP(self.gateway) || !isCIDR(self.cidr) || "
_IN_SUBNET = f"{_PREFIX}.containsIP(self.gateway)"
_OCTETS = " + ".join(f"int(self.gateway.split('.')[{place}]) * {1 << 24 - 8 * place}" for place in range(4))
_SIZES = ", ".join(str(1 << 32 - length) for length in range(31))
_IS_LAST = f"({_OCTETS} + 1) % [{_SIZES}][{_PREFIX}.prefixLength()] == 0"

_SUBNET = (
    Rule(
        f"!has(self.hostPrefixLength) || !isCIDR(self.cidr) || (self.hostPrefixLength >= {_PREFIX}.prefixLength()"
        f" && self.hostPrefixLength <= ({_V4} ? 32 : 128))",
        "must be from the prefix length of {self.cidr} to 32 (IPv4) or 128 (IPv6)",
        ".hostPrefixLength",
    ),
    Rule(
        "has(self.hostPrefixLength) == has(oldSelf.hostPrefixLength)"
        " && (!has(self.hostPrefixLength) || self.hostPrefixLength == oldSelf.hostPrefixLength)",
        "can't be changed; add a further subnet instead",
        ".hostPrefixLength",
    ),
    Rule(
        _GATEWAY + _IN_SUBNET,
        "{self.gateway} is not in {self.cidr}; a gateway is an address of its own subnet",
        ".gateway",
    ),
    Rule(
        f"{_GATEWAY}{_PREFIX}.prefixLength() > ({_V4} ? 30 : 126) || !(ip(self.gateway) == {_PREFIX}.masked().ip())",
        f"{{self.gateway}} is the {{({_V4} ? 'network' : 'subnet-router anycast')}} address of {{self.cidr}};"
        " choose an address that a router can have",
        ".gateway",
    ),
    Rule(
        f"{_GATEWAY}!({_V4}) || {_PREFIX}.prefixLength() > 30 || !{_IN_SUBNET} || !({_IS_LAST})",
        "{self.gateway} is the broadcast address of {self.cidr}; choose an address that a router can have",
        ".gateway",
    ),
    Rule(
        f"!has(self.exclude) || !isCIDR(self.cidr) || self.exclude.all(e, {inside('e', _PREFIX)})",
        f"{{self.exclude.filter(e, !{inside('e', _PREFIX)})[0]}} is not in {{self.cidr}};"
        " exclude only what lies inside",
        ".exclude",
    ),
)

_NETWORK = (
    Rule(
        "self.type != 'L3' || self.subnets.all(s, has(s.hostPrefixLength))",
        "hostPrefixLength is required on L3: the size of a node's block",
        ".subnets",
    ),
    Rule(
        "self.type != 'L3' || self.subnets.all(s, !has(s.gateway))",
        "only an L2 network has a gateway; on L3 each block's first address is its gateway",
        ".subnets",
    ),
    Rule(
        "self.type != 'L2' || self.subnets.all(s, !has(s.hostPrefixLength))",
        "only an L3 network is cut into blocks; leave hostPrefixLength out on L2",
        ".subnets",
    ),
    Rule(
        "!has(self.networkID) || !has(self.networkIDPool)",
        "give networkID or networkIDPool, not both: a number is chosen or drawn from a pool",
        ".networkIDPool",
    ),
    Rule(
        "!has(self.mtu) || self.mtu >= 1280 || !self.subnets.exists(s, s.cidr.contains(':'))",
        "must be 1280 or more with an IPv6 subnet (RFC 8200)",
        ".mtu",
    ),
    fixed_once_set("networkID"),
)

_REMOVAL = Rule(
    "!oldSelf.exists(o, !(has(o.closed) && o.closed) && !self.exists(n, n.cidr == o.cidr))",
    "a subnet may be removed only once it is closed: set closed: true on it first",
)

_LISTS_VALUES = "self.operator in ['In', 'NotIn']"
_REQUIREMENT = (
    Rule(
        f"!({_LISTS_VALUES}) || (has(self.values) && self.values.size() > 0)",
        "{self.operator} needs at least one value",
        ".values",
    ),
    Rule(
        f"{_LISTS_VALUES} || !has(self.values) || self.values.size() == 0",
        "{self.operator} takes no values; leave them out",
        ".values",
    ),
)

# That blocks don't overlap is not looked at: the API server runs the rules with every write of the status, and for 256
# blocks this one takes more than a second; the controller, which alone writes blocks, cuts them apart.
_ALLOCATION = (
    Rule(
        "self.type != 'L2' || !has(self.blocks) || self.blocks.size() == 0",
        "on an L2 network the Allocation is only a marker; leave the blocks out",
        ".blocks",
    ),
    fixed_once_set("networkUID", text=True),
)

_STRICT = "(has(self.strictAffinity) && self.strictAffinity)"
_CONFIG = (
    Rule(
        f"{_STRICT} || !has(self.autoAllocateBlocks) || self.autoAllocateBlocks",
        NO_BLOCKS_AT_ALL,
        ".autoAllocateBlocks",
    ),
    Rule(
        f"{_STRICT} || !has(self.maxBlocksPerHost) || self.maxBlocksPerHost == 0",
        CAP_WITHOUT_AFFINITY,
        ".maxBlocksPerHost",
    ),
)

NETWORK_RULES: Rules = {
    (NetworkSpec, ""): _NETWORK,
    (NetworkSpec, "type"): (fixed("network, or delete this one first"),),
    (NetworkSpec, "subnets"): (no_overlap(".cidr"), _REMOVAL),
    (Subnet, ""): _SUBNET,
    (Subnet, "cidr"): CANONICAL_PREFIX,
    (Subnet, "gateway"): (IS_ADDRESS,),
    (Subnet, "exclude[]"): EXCLUDED,
    (Requirement, ""): _REQUIREMENT,
    (AllocationSpec, ""): _ALLOCATION,
    (AllocationSpec, "network"): (name_of("network"), fixed("Allocation")),
    (AllocationSpec, "node"): (NODE_NAME, fixed("Allocation")),
    (AllocationSpec, "type"): (fixed("Allocation"),),
    (AllocationSpec, "cede[]"): (IS_ADDRESS,),
    (Block, "cidr"): CANONICAL_PREFIX,
    (IPReservationSpec, "reservedCIDRs[]"): PREFIX,
    (IPAMConfigSpec, ""): _CONFIG,
}
"""The rules, by where they stand."""
