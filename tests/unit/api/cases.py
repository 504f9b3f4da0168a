"""One table of objects, valid and not, for whoever judges objects: the library, and an API server with the CRDs."""

from __future__ import annotations

from typing import Any

from unit.api.case import AT_ROOT, Case, Raw, thing
from unit.api.loadbalancer_cases import LOADBALANCER_CASES
from unit.api.pool_cases import POOL_CASES


def l3(*subnets: Raw | str, name: str = "blue", **spec: Any) -> Raw:
    listed = [{"cidr": s, "hostPrefixLength": 64 if ":" in s else 26} if isinstance(s, str) else s for s in subnets]
    return thing("Network", name, type="L3", subnets=listed, **spec)


def l2(*subnets: Raw | str, name: str = "flat", **spec: Any) -> Raw:
    listed = [{"cidr": s} if isinstance(s, str) else s for s in subnets]
    return thing("Network", name, type="L2", subnets=listed, **spec)


def sub(cidr: str, length: int | None = 26, **fields: Any) -> Raw:
    return {"cidr": cidr, **({"hostPrefixLength": length} if length is not None else {}), **fields}


def in_use(raw: Raw, *cidrs: str) -> Raw:
    return {**raw, "status": {"subnetsInUse": list(cidrs)}}


def alloc(name: str = "blue.n1", **fields: Any) -> Raw:
    return thing("Allocation", name, **{"network": "blue", "node": "n1", "type": "L3", **fields})


def block(cidr: str, state: str = "Confirmed") -> Raw:
    return {"cidr": cidr, "state": state}


S0 = "spec.subnets[0]"

NAMES = (
    Case("a name of 50", l3("10.4.0.0/24", name="a" * 50)),
    Case("a name of 51", l3("10.4.0.0/24", name="a" * 51), (("metadata.name", "at most 50"),)),
    Case("a dotted name", l3("10.4.0.0/24", name="net.v4"), (("metadata.name", "a-z, 0-9"),)),
    Case("a name in capitals", l3("10.4.0.0/24", name="Blue"), (("metadata.name", "a-z, 0-9"),)),
    Case("a name that ends in a dash", l3("10.4.0.0/24", name="blue-"), (("metadata.name", "a-z, 0-9"),)),
)

SUBNETS = (
    Case("dual-stack L3", l3("10.4.0.0/16", "fd00:4::/56")),
    Case("dual-stack L2", l2(sub("10.4.0.0/24", None, gateway="10.4.0.1"), "fd00:4::/64")),
    Case("no subnets", l3(), (("spec.subnets", "at least 1"),)),
    Case("64 subnets", l3(*(f"10.4.{n}.0/24" for n in range(64)))),
    Case("65 subnets", l3(*(f"10.4.{n}.0/24" for n in range(65))), (("spec.subnets", "at most 64"),)),
    Case("no cidr", l2({}), ((f"{S0}.cidr", "required"),)),
    Case("no prefix", l3("10.4.0.0"), ((f"{S0}.cidr", "no prefix length"),)),
    Case("host bits", l3("10.4.0.1/24"), ((f"{S0}.cidr", "'10.4.0.0/24'"),)),
    Case("IPv6 host bits", l3("fd00:4::1/56"), ((f"{S0}.cidr", "'fd00:4::/56'"),)),
    Case("leading zero", l3("10.04.0.0/24"), ((f"{S0}.cidr", "'10.4.0.0'"),)),
    Case("a length with a leading zero", l3("10.4.0.0/08"), ((f"{S0}.cidr", "prefix length"),)),
    Case("too long a length", l3("10.4.0.0/33"), ((f"{S0}.cidr", "0 to 32"),)),
    Case("IPv6 in capitals", l3("FD00:4::/56"), ((f"{S0}.cidr", "write 'fd00:4::/56'"),)),
    Case("IPv6 in full", l3("fd00:4:0:0:0:0:0:0/56"), ((f"{S0}.cidr", "write 'fd00:4::/56'"),)),
    Case("IPv4-mapped", l3("::ffff:10.4.0.0/120"), ((f"{S0}.cidr", "IPv4-mapped"),)),
    Case("a zone", l3("fe80::%eth0/64"), ((f"{S0}.cidr", "zone"),)),
    Case("not a CIDR", l3("blue"), ((f"{S0}.cidr", "no prefix length"),)),
    Case("overlap, large first", l3("10.4.0.0/16", "10.4.3.0/24"), (("spec.subnets[1].cidr", "overlaps 10.4.0.0/16"),)),
    Case("overlap, small first", l3("10.4.3.0/24", "10.4.0.0/16"), ((f"{S0}.cidr", "overlaps 10.4.0.0/16"),)),
    Case("the same twice", l3("10.4.0.0/24", "10.4.0.0/24"), (("spec.subnets[1].cidr", "twice"),)),
    Case("neighbours", l3("10.4.0.0/24", "10.4.1.0/24")),
)

BLOCKS = (
    Case("L3 without hostPrefixLength", l3(sub("10.4.0.0/24", None)), ((f"{S0}.hostPrefixLength", "from 24 to 32"),)),
    Case("block of the whole subnet", l3(sub("10.4.0.0/24", 24))),
    Case("block of one address", l3(sub("10.4.0.0/24", 32))),
    Case("block larger than the subnet", l3(sub("10.4.0.0/24", 23)), ((f"{S0}.hostPrefixLength", "24 to 32"),)),
    Case("IPv4 block of 33", l3(sub("10.4.0.0/24", 33)), ((f"{S0}.hostPrefixLength", "24 to 32"),)),
    Case("IPv6 block of 128", l3(sub("fd00::/64", 128))),
    Case("IPv6 block of 129", l3(sub("fd00::/64", 129)), ((f"{S0}.hostPrefixLength", "0 to 128"),)),
    Case("L2 with hostPrefixLength", l2(sub("10.4.0.0/24", 26)), ((f"{S0}.hostPrefixLength", "only an L3"),)),
)

GATEWAYS = (
    Case("gateway on L3", l3(sub("10.4.0.0/24", gateway="10.4.0.1")), ((f"{S0}.gateway", "only an L2"),)),
    Case(
        "gateway outside", l2(sub("10.4.0.0/24", None, gateway="10.5.0.1")), ((f"{S0}.gateway", "not in 10.4.0.0/24"),)
    ),
    Case(
        "gateway of the other family", l2(sub("10.4.0.0/24", None, gateway="fd00::1")), ((f"{S0}.gateway", "not in"),)
    ),
    Case("gateway 0", l2(sub("10.4.0.0/24", None, gateway="10.4.0.0")), ((f"{S0}.gateway", "network address"),)),
    Case("gateway 255", l2(sub("10.4.0.0/24", None, gateway="10.4.0.255")), ((f"{S0}.gateway", "broadcast"),)),
    Case("gateway anycast", l2(sub("fd00::/64", None, gateway="fd00::")), ((f"{S0}.gateway", "anycast"),)),
    Case("gateway at the top of IPv6", l2(sub("fd00::/64", None, gateway="fd00::ffff:ffff:ffff:ffff"))),
    Case("gateway in a /31", l2(sub("10.4.0.0/31", None, gateway="10.4.0.0"))),
    Case("gateway in a /127", l2(sub("fd00::/127", None, gateway="fd00::"))),
    Case("gateway in another spelling", l2(sub("fd00::/64", None, gateway="fd00::0001"))),
    Case(
        "gateway as a prefix", l2(sub("10.4.0.0/24", None, gateway="10.4.0.1/24")), ((f"{S0}.gateway", "'10.4.0.1'"),)
    ),
)

EXCLUDES = (
    Case("exclude address and prefix", l3(sub("10.4.0.0/24", exclude=["10.4.0.9", "10.4.0.64/26"]))),
    Case("exclude the whole", l3(sub("10.4.0.0/24", exclude=["10.4.0.0/24"]))),
    Case(
        "exclude outside", l3(sub("10.4.0.0/24", exclude=["10.5.0.9"])), ((f"{S0}.exclude[0]", "not in 10.4.0.0/24"),)
    ),
    Case("exclude more than all", l3(sub("10.4.0.0/24", exclude=["10.4.0.0/23"])), ((f"{S0}.exclude[0]", "not in"),)),
    Case("exclude host bits", l3(sub("10.4.0.0/24", exclude=["10.4.0.9/30"])), ((f"{S0}.exclude[0]", "10.4.0.8/30"),)),
    Case("exclude other family", l3(sub("10.4.0.0/24", exclude=["fd00::1"])), ((f"{S0}.exclude[0]", "not in"),)),
    Case(
        "exclude a range",
        l3(sub("10.4.0.0/24", exclude=["10.4.0.3-10.4.0.9"])),
        ((f"{S0}.exclude[0]", "10.4.0.3, 10.4.0.4/30, 10.4.0.8/31"),),
        server="neither an address nor a prefix",
    ),
    Case("exclude 256", l3(sub("10.4.0.0/16", exclude=[f"10.4.1.{n}" for n in range(256)]))),
    Case("exclude 257", l3(sub("10.4.0.0/16", exclude=["10.4.1.1"] * 257)), ((f"{S0}.exclude", "at most 256"),)),
)

FIELDS = (
    Case("cooldown 0", l3("10.4.0.0/24", cooldownSeconds=0)),
    Case("cooldown 1200", l3("10.4.0.0/24", cooldownSeconds=1200)),
    Case("cooldown 1201", l3("10.4.0.0/24", cooldownSeconds=1201), (("spec.cooldownSeconds", "0 to 1200"),)),
    Case("cooldown below 0", l3("10.4.0.0/24", cooldownSeconds=-1), (("spec.cooldownSeconds", "0 to 1200"),)),
    Case("cooldown as text", l3("10.4.0.0/24", cooldownSeconds="30"), (("spec.cooldownSeconds", "whole number"),)),
    Case("cooldown true", l3("10.4.0.0/24", cooldownSeconds=True), (("spec.cooldownSeconds", "whole number"),)),
    Case("unknown type", thing("Network", "x", type="L4", subnets=[sub("10.4.0.0/24")]), (("spec.type", "L3, L2"),)),
    Case(
        "type in small letters",
        thing("Network", "x", type="l3", subnets=[sub("10.4.0.0/24")]),
        (("spec.type", "be L3"),),
    ),
    Case("no type", thing("Network", "x", subnets=[sub("10.4.0.0/24")]), (("spec.type", "required"),)),
    Case("all uses", l3("10.4.0.0/24", allowedUses=["Pod", "Tunnel", "LoadBalancer", "Claim"])),
    Case("no uses", l3("10.4.0.0/24", allowedUses=[]), (("spec.allowedUses", "at least 1"),)),
    Case("a use twice", l3("10.4.0.0/24", allowedUses=["Pod", "Pod"]), (("spec.allowedUses[1]", "twice"),)),
    Case(
        "an unknown use",
        l3("10.4.0.0/24", allowedUses=["Host"]),
        (("spec.allowedUses[0]", "one of Claim, LoadBalancer, Pod, Tunnel"),),
    ),
    Case("network ID", l3("10.4.0.0/24", networkID=16777215)),
    Case("network ID 0", l3("10.4.0.0/24", networkID=0), (("spec.networkID", "1 to"),)),
    Case("network ID too large", l3("10.4.0.0/24", networkID=16777216), (("spec.networkID", "1 to"),)),
    Case("ID and pool", l3("10.4.0.0/24", networkID=7, networkIDPool="vni"), (("spec.networkIDPool", "not both"),)),
    Case("mtu for IPv6", l3("fd00::/56", mtu=1279), (("spec.mtu", "1280"),)),
    Case("a small mtu for IPv4", l3("10.4.0.0/24", mtu=576)),
    Case("transport", l3("10.4.0.0/24", transport="Geneve"), (("spec.transport", "one of Direct, None, VXLAN"),)),
    Case("closed as a word", l3(sub("10.4.0.0/24", closed="yes")), ((f"{S0}.closed", "true or false"),)),
    Case(
        "selector",
        l3("10.4.0.0/24", nodeSelector={"matchExpressions": [{"key": "a", "operator": "In"}]}),
        (("spec.nodeSelector.matchExpressions[0].values", "at least one"),),
    ),
)

UPDATES = (
    Case("a further subnet", l3("10.4.0.0/24", "10.4.1.0/24"), old=l3("10.4.0.0/24")),
    Case("another order", l3("10.4.1.0/24", "10.4.0.0/24"), old=l3("10.4.0.0/24", "10.4.1.0/24")),
    Case("closed and opened", l3("10.4.0.0/24"), old=l3(sub("10.4.0.0/24", closed=True))),
    Case("another type", l2("10.4.0.0/24", name="blue"), (("spec.type", "can't be changed"),), old=l3("10.4.0.0/24")),
    Case(
        "another block size",
        l3(sub("10.4.0.0/24", 27)),
        ((f"{S0}.hostPrefixLength", "can't be changed"),),
        old=l3(sub("10.4.0.0/24", 26)),
    ),
    Case(
        "an open subnet removed",
        l3("10.4.0.0/24"),
        (("spec.subnets", "closed: true"),),
        old=l3("10.4.0.0/24", "10.5.0.0/24"),
    ),
    Case("a closed subnet removed", l3("10.4.0.0/24"), old=l3("10.4.0.0/24", sub("10.5.0.0/24", closed=True))),
    Case(
        "a used subnet removed",
        l3("10.4.0.0/24"),
        (("spec.subnets", "still in use"),),
        old=in_use(l3("10.4.0.0/24", sub("10.5.0.0/24", closed=True)), "10.5.0.0/24"),
        library_only="a rule on spec can't see the status; the controller looks",
    ),
    Case("a network ID set", l3("10.4.0.0/24", networkID=7), old=l3("10.4.0.0/24")),
    Case(
        "another network ID",
        l3("10.4.0.0/24", networkID=8),
        (("spec.networkID", "set"),),
        old=l3("10.4.0.0/24", networkID=7),
    ),
    Case("a network ID taken out", l3("10.4.0.0/24"), (("spec.networkID", "set"),), old=l3("10.4.0.0/24", networkID=7)),
    Case(
        "an Allocation of another Network of that name",
        alloc(networkUID="u2"),
        (("spec.networkUID", "can't be changed"),),
        old=alloc(networkUID="u1"),
    ),
    Case("an Allocation's node", alloc(node="n2"), (("spec.node", "can't be changed"),), old=alloc(node="n1")),
)

ALLOCATIONS = (
    Case("two blocks", alloc(blocks=[block("10.4.0.0/26"), block("fd00::/64", "Pending")])),
    Case(
        "block state", alloc(blocks=[block("10.4.0.0/26", "Ready")]), (("spec.blocks[0].state", "Confirmed, Pending"),)
    ),
    Case("no block state", alloc(blocks=[{"cidr": "10.4.0.0/26"}]), (("spec.blocks[0].state", "required"),)),
    Case(
        "blocks overlap",
        alloc(blocks=[block("10.4.0.0/26"), block("10.4.0.16/28")]),
        (("spec.blocks[1].cidr", "overlaps 10.4.0.0/26"),),
        library_only="it would cost each write of the status too much; the controller alone writes blocks",
    ),
    Case("block with host bits", alloc(blocks=[block("10.4.0.1/26")]), (("spec.blocks[0].cidr", "host bits"),)),
    Case("block in capitals", alloc(blocks=[block("FD00::/64")]), (("spec.blocks[0].cidr", "write 'fd00::/64'"),)),
    Case("256 blocks", alloc(blocks=[block(f"10.4.{n}.0/24") for n in range(256)])),
    Case(
        "257 blocks",
        alloc(blocks=[block(f"10.{n >> 8}.{n & 255}.0/24") for n in range(257)]),
        (("spec.blocks", "at most 256"),),
    ),
    Case("L2 with blocks", alloc(type="L2", blocks=[block("10.4.0.0/26")]), (("spec.blocks", "only a marker"),)),
    Case("L2 marker", alloc(type="L2")),
    Case("misnamed", alloc("blue"), (("metadata.name", "'blue.n1'"),), library_only=AT_ROOT),
    Case("cede", alloc(cede=["10.4.0.9", "10.4.0.0/24"]), (("spec.cede[1]", "is a prefix"),)),
)

OTHERS = (
    Case("reservation", thing("IPReservation", "r.one", reservedCIDRs=["10.4.0.0/24", "10.4.0.0/25", "fd00::/64"])),
    Case("reservation of nothing", thing("IPReservation", "r", reservedCIDRs=[])),
    Case("reservation without list", thing("IPReservation", "r"), (("spec.reservedCIDRs", "required"),)),
    Case(
        "reservation host bits",
        thing("IPReservation", "r", reservedCIDRs=["10.4.0.1/24"]),
        (("spec.reservedCIDRs[0]", "host bits"),),
    ),
    Case(
        "reservation of a range",
        thing("IPReservation", "r", reservedCIDRs=["10.4.0.1-10.4.0.9"]),
        (("spec.reservedCIDRs[0]", "prefix length"),),
    ),
    Case("config", thing("IPAMConfig", "default", strictAffinity=True, maxBlocksPerHost=4, cooldownSeconds=0)),
    Case("empty config", thing("IPAMConfig", "default")),
    Case("second config", thing("IPAMConfig", "other"), (("metadata.name", "'default'"),)),
    Case(
        "no blocks at all",
        thing("IPAMConfig", "default", autoAllocateBlocks=False),
        (("spec.autoAllocateBlocks", "strictAffinity"),),
    ),
    Case("no automatic blocks", thing("IPAMConfig", "default", autoAllocateBlocks=False, strictAffinity=True)),
    Case(
        "a cap without affinity",
        thing("IPAMConfig", "default", maxBlocksPerHost=4),
        (("spec.maxBlocksPerHost", "strictAffinity"),),
    ),
    Case(
        "persistence",
        thing("IPAMConfig", "default", vmAddressPersistence="On"),
        (("spec.vmAddressPersistence", "Disabled, Enabled"),),
    ),
)

CASES = (
    *NAMES,
    *SUBNETS,
    *BLOCKS,
    *GATEWAYS,
    *EXCLUDES,
    *FIELDS,
    *UPDATES,
    *ALLOCATIONS,
    *OTHERS,
    *POOL_CASES,
    *LOADBALANCER_CASES,
)
