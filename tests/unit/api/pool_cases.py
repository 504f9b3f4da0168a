"""The part of the table about pools, Claims and allocation objects."""

from __future__ import annotations

from typing import Any

from unit.api.case import AT_ROOT, Case, Raw, thing

R0 = "spec.ranges[0]"
P0 = "spec.prefixes[0]"
BIG = 2**63 - 1


def indexes(*ranges: str, name: str = "asn", **spec: Any) -> Raw:
    return thing("IndexPool", name, ranges=list(ranges), **spec)


def addresses(*prefixes: str, name: str = "loopbacks", **spec: Any) -> Raw:
    return thing("IPAddressPool", name, prefixes=list(prefixes), **spec)


def prefixes(*listed: str, length: int | None = 26, name: str = "subnets", **spec: Any) -> Raw:
    wanted = {} if length is None else {"prefixLength": length}
    return thing("IPPrefixPool", name, prefixes=list(listed), **wanted, **spec)


def pool(name: str = "asn", kind: str = "IndexPool") -> Raw:
    return {"kind": kind, "name": name}


def claim(kind: str = "IndexPool", value: str | None = None, **spec: Any) -> Raw:
    wanted = {} if value is None else {"value": value}
    return thing("Claim", "leaf1", poolRef=pool("asn", kind), **wanted, **spec)


def index(value: int = 65001, name: str = "asn-65001", **spec: Any) -> Raw:
    return thing("Index", name, **{"poolRef": pool(), "index": value, **spec})


def address(value: str = "10.4.0.5", name: str = "web-10.4.0.5", **spec: Any) -> Raw:
    return thing("IPAddress", name, **{"poolRef": pool("web", "IPAddressPool"), "address": value, **spec})


def prefix(value: str = "10.4.0.0/26", name: str = "net.blue.v4-10.4.0.0-26", **spec: Any) -> Raw:
    return thing("IPPrefix", name, **{"poolRef": pool("net.blue.v4", "IPPrefixPool"), "prefix": value, **spec})


VM = {"namespace": "shop", "name": "db", "interface": "eth0"}
SOURCE = {"name": "launcher-1", "namespace": "shop", "uid": "u1"}
TARGET = {"name": "launcher-2", "namespace": "shop", "uid": "u2"}
POD = {"name": "web-0", "uid": "u1", "containerID": "c" * 64, "interface": "eth0"}

INDEX_POOLS = (
    Case("ranges of indexes", indexes("64512..65534", "4200000000..4294967294", reclaimPolicy="Retain")),
    Case("a range of one number", indexes("7", "8..8", "0")),
    Case("the highest index", indexes(f"0..{BIG}", cooldownSeconds=1200, allowedUses=["Claim"])),
    Case("an index that doesn't fit", indexes(f"{BIG + 1}"), ((R0, f"from 0 to {BIG}"),)),
    Case("an index of 20 digits", indexes("18446744073709551616"), ((R0, f"from 0 to {BIG}"),)),
    Case("a reversed range", indexes("9..7"), ((R0, "'9..7' is reversed; write '7..9'"),)),
    Case("a range with a dash", indexes("7-9"), ((R0, "'7-9' is not a range of numbers"),)),
    Case("an index with leading zeros", indexes("007"), ((R0, "without leading zeros"),)),
    Case("a range with an open end", indexes("7.."), ((R0, "without leading zeros"),)),
    Case("a negative index", indexes("-1"), ((R0, "write it like 7 or 64512..65534"),)),
    Case("an empty range", indexes(""), ((R0, "must not be empty"),)),
    Case("ranges overlap", indexes("1..10", "10..20"), (("spec.ranges[1]", "overlap"),)),
    Case("the same range twice", indexes("1..10", "1..10"), (("spec.ranges[1]", "overlap"),)),
    Case("neighbouring ranges", indexes("1..10", "11..20")),
    Case("no ranges", indexes(), (("spec.ranges", "at least 1"),)),
    Case("no list of ranges", thing("IndexPool", "asn"), (("spec.ranges", "required"),)),
    Case("64 ranges", indexes(*(f"{n}0..{n}9" for n in range(1, 65)))),
    Case("65 ranges", indexes(*(f"{n}0..{n}9" for n in range(1, 66))), (("spec.ranges", "at most 64"),)),
    Case("excluded indexes", indexes("1..10", "20..30", exclude=["5", "20..22"])),
    Case(
        "excluded across ranges", indexes("1..10", "11..20", exclude=["9..12"]), (("spec.exclude[0]", "9..12 is not"),)
    ),
    Case("excluded outside", indexes("1..10", exclude=["3", "11"]), (("spec.exclude[1]", "11 is not in any"),)),
    Case("excluded nonsense", indexes("1..10", exclude=["x"]), (("spec.exclude[0]", "'x' is not a range"),)),
    Case(
        "an unknown reclaim policy", indexes("1", reclaimPolicy="Delete"), (("spec.reclaimPolicy", "Recycle, Retain"),)
    ),
    Case("pool cooldown too long", indexes("1", cooldownSeconds=1201), (("spec.cooldownSeconds", "0 to 1200"),)),
    Case("pool uses twice", indexes("1", allowedUses=["Pod", "Pod"]), (("spec.allowedUses[1]", "twice"),)),
)

NAMES_OF_POOLS = (
    Case("a pool's name of 50", indexes("1", name="p" * 50)),
    Case("a pool's name of 51", indexes("1", name="p" * 51), (("metadata.name", "at most 50"),)),
    Case("a dotted pool name", addresses("10.4.0.0/24", name="my.pool"), (("metadata.name", "is no name for a pool"),)),
    Case("a network's pool", addresses("10.4.0.0/24", name=f"net.{'n' * 50}.v4")),
    Case(
        "a pool of too long a network",
        prefixes("fd00::/56", length=64, name=f"net.{'n' * 51}.v6"),
        (("metadata.name", "no name"),),
    ),
    Case(
        "a network's pool of no family", addresses("10.4.0.0/24", name="net.blue.v5"), (("metadata.name", "no name"),)
    ),
)

ADDRESS_POOLS = (
    Case("pool of both families", addresses("10.4.0.0/24", "fd00:4::/64", exclude=["10.4.0.1", "fd00:4::/80"])),
    Case("pool of everything", addresses("0.0.0.0/0", "::/0", name="vip")),
    Case("pool of no prefix", addresses(), (("spec.prefixes", "at least 1"),)),
    Case("pool host bits", addresses("10.4.0.1/24"), ((P0, "'10.4.0.0/24'"),)),
    Case("pool in capitals", addresses("FD00::/64"), ((P0, "write 'fd00::/64'"),)),
    Case("pool of an address", addresses("10.4.0.1"), ((P0, "no prefix length"),), server="is not a prefix"),
    Case(
        "pool overlap",
        addresses("10.4.0.0/16", "10.4.3.0/24"),
        (("spec.prefixes[1]", "10.4.3.0/24 overlaps 10.4.0.0/16"),),
    ),
    Case(
        "pool excludes outside",
        addresses("10.4.0.0/24", "10.6.0.0/24", exclude=["10.5.0.9"]),
        (("spec.exclude[0]", "not in any one"),),
    ),
    Case(
        "pool excludes both",
        addresses("10.4.0.0/24", "10.4.1.0/24", exclude=["10.4.0.0/23"]),
        (("spec.exclude[0]", "not in any one"),),
    ),
    Case(
        "pool excludes host bits",
        addresses("10.4.0.0/24", exclude=["10.4.0.1/25"]),
        (("spec.exclude[0]", "'10.4.0.0/25'"),),
    ),
    Case(
        "pool excludes a range",
        addresses("10.4.0.0/24", exclude=["10.4.0.2-10.4.0.3"]),
        (("spec.exclude[0]", "list prefixes and single addresses: 10.4.0.2/31"),),
        server="neither an address nor a prefix",
    ),
    Case(
        "pool with 64 prefixes and 256 exclusions",
        addresses(*(f"10.{n}.0.0/16" for n in range(64)), exclude=[f"10.63.1.{n}" for n in range(256)]),
    ),
    Case("prefix pool", prefixes("10.4.0.0/16", "10.5.0.0/16", exclude=["10.4.0.0/24"])),
    Case("prefix pool without length", prefixes("10.4.0.0/16", length=None), (("spec.prefixLength", "required"),)),
    Case("pieces as large as the prefix", prefixes("10.4.0.0/26")),
    Case(
        "pieces too large",
        prefixes("10.4.0.0/27"),
        (("spec.prefixLength", "from 27 to 32 in 10.4.0.0/27"),),
        server="doesn't fit 10.4.0.0/27",
    ),
    Case(
        "pieces too small",
        prefixes("fd00::/56", "10.4.0.0/16", length=64),
        (("spec.prefixLength", "not 64"),),
        server="doesn't fit 10.4.0.0/16",
    ),
    Case("pieces of 129", prefixes("fd00::/56", length=129), (("spec.prefixLength", "0 to 128"),)),
)

CLAIMS = (
    Case("claim", claim()),
    Case(
        "claim with the version of its pool",
        thing("Claim", "leaf1", poolRef={**pool(), "apiVersion": "allotment.dev/v1alpha1"}),
    ),
    Case(
        "claim with another version",
        thing("Claim", "leaf1", poolRef={**pool(), "apiVersion": "v1"}),
        (("spec.poolRef.apiVersion", "allotment.dev/v1alpha1"),),
    ),
    Case("claim of nothing", thing("Claim", "leaf1"), (("spec.poolRef", "required"),)),
    Case("claim of an unknown kind", claim("StorageClass"), (("spec.poolRef.kind", "one of"),)),
    Case("claim of no pool", thing("Claim", "leaf1", poolRef=pool("")), (("spec.poolRef.name", "empty"),)),
    Case("claim of a number", claim(value="65001")),
    Case("claim of the highest number", claim(value=f"{BIG}")),
    Case("claim of too high a number", claim(value=f"{BIG + 1}"), (("spec.value", f"from 0 to {BIG}"),)),
    Case("claim of a range", claim(value="1..2"), (("spec.value", "'1..2' is not a number"),)),
    Case("claim of an address", claim("IPAddressPool", "10.4.0.5")),
    Case("claim of no address", claim("IPAddressPool", "10.4.0"), (("spec.value", "'10.4.0' is not an IP address"),)),
    Case("claim of a VIP", claim("LoadBalancerClass", "fd00::5")),
    Case("claim of a number as VIP", claim("LoadBalancerClass", "5"), (("spec.value", "is not an IP address"),)),
    Case("claim of a prefix", claim("IPPrefixPool", "10.4.0.0/26")),
    Case("claim of a prefix with host bits", claim("IPPrefixPool", "10.4.0.1/26"), (("spec.value", "'10.4.0.0/26'"),)),
    Case(
        "claim of no prefix",
        claim("IPPrefixPool", "10.4.0.0"),
        (("spec.value", "no prefix length"),),
        server="is not a prefix",
    ),
    Case("claim of a pod", claim("IPAddressPool", node="n1", pod=POD)),
    Case("claim of a pod without a node", claim(pod=POD), (("spec.node", "required with pod"),)),
    Case(
        "claim of a pod without a sandbox",
        claim(node="n1", pod={"name": "a", "uid": "u", "interface": "eth0"}),
        (("spec.pod.containerID", "required"),),
    ),
    Case(
        "claim of a pod's long interface",
        claim(node="n1", pod={**POD, "interface": "e" * 16}),
        (("spec.pod.interface", "at most 15"),),
    ),
    Case("claim of a VM's pod", claim("IPAddressPool", node="n1", pod=POD, vm="db")),
    Case("claim of a VM without a pod", claim("IPAddressPool", vm="db"), (("spec.pod", "required with vm"),)),
    Case(
        "claim of another VM",
        claim("IPAddressPool", node="n1", pod=POD, vm="cart"),
        (("spec", "can't be changed"),),
        old=claim("IPAddressPool", node="n1", pod=POD, vm="db"),
    ),
    Case("claim as it was", claim(value="7"), old=claim(value="7")),
    Case("claim of another value", claim(value="8"), (("spec", "can't be changed"),), old=claim(value="7")),
    Case("claim that loses its value", claim(), (("spec", "can't be changed"),), old=claim(value="7")),
    Case("claim of another pool", claim("IPAddressPool"), (("spec", "can't be changed"),), old=claim()),
)

NUMBERED = (
    Case("index", index(claimRef={"name": "leaf1", "uid": "u1"})),
    Case("index kept back", index()),
    Case("index 0", index(0, "asn-0")),
    Case("index below 0", index(-1, "asn--1"), (("spec.index", "0 or more"),)),
    Case("index as text", index("7", "asn-7"), (("spec.index", "whole number"),)),
    Case("the highest index itself", index(BIG, f"asn-{BIG}")),
    Case("index misnamed", index(name="asn-65002"), (("metadata.name", "'asn-65001'"),), library_only=AT_ROOT),
    Case(
        "index of another pool",
        index(poolRef=pool(kind="IPAddressPool")),
        (("spec.poolRef.kind", "must be IndexPool"),),
    ),
    Case("index of no holder's name", index(claimRef={"uid": "u1"}), (("spec.claimRef.name", "required"),)),
    Case(
        "index of an unknown holder", index(claimRef={"kind": "Pod", "name": "a"}), (("spec.claimRef.kind", "one of"),)
    ),
    Case("index of a Network", index(claimRef={"kind": "Network", "name": "blue", "uid": "u1"}, networkUID="u1")),
    Case(
        "index of a Network in a namespace",
        index(claimRef={"kind": "Network", "name": "blue", "namespace": "default"}),
        (("spec.claimRef.namespace", "Network objects belong to no namespace"),),
    ),
    Case(
        "index of a Claim in no namespace",
        index(claimRef={"name": "a", "namespace": "A b"}),
        (("spec.claimRef.namespace", "'A b' is no name of a namespace"),),
    ),
    Case("address", address(claimRef={"name": "a", "namespace": "web", "uid": "u1"}, handle="lb-12ab")),
    Case("address of IPv6", address("fd00::", "web-fd00-0000-0000-0000-0000-0000-0000-0000")),
    Case("address in another spelling", address("fd00:0::5", "web-x"), (("spec.address", "write 'fd00::5'"),)),
    Case("address as prefix", address("10.4.0.5/32"), (("spec.address", "'10.4.0.5'"),), server="is not an IP address"),
    Case(
        "address of a prefix pool",
        address(poolRef=pool("web", "IPPrefixPool")),
        (("spec.poolRef.kind", "for an IPAddress"),),
    ),
    Case(
        "address shared",
        address(claimRef={"kind": "Service", "name": "a", "uid": "u"}, sharers=[{"kind": "Service", "name": "b"}]),
    ),
    Case(
        "address shared with a Claim", address(sharers=[{"name": "b"}]), (("spec.sharers[0].kind", "must be Service"),)
    ),
    Case("address of a VM", address(claimRef=SOURCE, standbyRef=TARGET, vm=VM, handle="blue.shop-db")),
    Case("address kept for a VM", address(vm=VM), old=address(claimRef=SOURCE, vm=VM)),
    Case("address that its standby takes over", address(claimRef=TARGET, vm=VM), old=address(claimRef=SOURCE, vm=VM)),
    Case(
        "address with a standby for nobody",
        address(standbyRef=TARGET, vm=VM),
        (("spec.standbyRef", "an active Claim"),),
    ),
    Case(
        "address with a standby and no VM",
        address(claimRef=SOURCE, standbyRef=TARGET),
        (("spec.standbyRef", "needs vm"),),
    ),
    Case(
        "address with a Service standing by",
        address(claimRef=SOURCE, standbyRef={"kind": "Service", "name": "a"}, vm=VM),
        (("spec.standbyRef.kind", "must be Claim"),),
    ),
    Case(
        "address of another VM",
        address(claimRef=SOURCE, vm={**VM, "name": "cart"}),
        (("spec.vm", "once it is set"),),
        old=address(claimRef=SOURCE, vm=VM),
    ),
    Case("prefix", prefix(claimRef={"kind": "Allocation", "name": "blue.n1", "uid": "u1"})),
    Case("prefix of IPv6", prefix("fd00::/64", "net.blue.v4-fd00-0000-0000-0000-0000-0000-0000-0000-64")),
    Case("prefix with host bits", prefix("10.4.0.1/26"), (("spec.prefix", "'10.4.0.0/26'"),)),
    Case(
        "prefix misnamed",
        prefix(name="net.blue.v4-10.4.0.0"),
        (("metadata.name", "10.4.0.0-26'"),),
        library_only=AT_ROOT,
    ),
    Case(
        "prefix without value",
        thing("IPPrefix", "p", poolRef=pool("a", "IPPrefixPool")),
        (("spec.prefix", "required"),),
    ),
    Case("index bound", index(claimRef={"name": "leaf1", "uid": "u2"}), old=index(claimRef={"name": "leaf1"})),
    Case("index given up", index(), old=index(claimRef={"name": "leaf1", "uid": "u2"})),
    Case("another index", index(7), (("spec.index", "can't be changed"),), old=index()),
    Case("index moved", index(poolRef=pool("vni")), (("spec.poolRef", "can't be changed"),), old=index()),
    Case("another address", address("10.4.0.6"), (("spec.address", "can't be changed"),), old=address()),
    Case("another prefix", prefix("10.4.0.64/26"), (("spec.prefix", "can't be changed"),), old=prefix()),
    Case("network UID set", address(networkUID="u1"), old=address()),
    Case(
        "another network UID",
        address(networkUID="u2"),
        (("spec.networkUID", "once it is set"),),
        old=address(networkUID="u1"),
    ),
    Case("network UID lost", prefix(), (("spec.networkUID", "once it is set"),), old=prefix(networkUID="u1")),
    Case(
        "another length of pieces",
        prefixes("10.4.0.0/16", length=27),
        (("spec.prefixLength", "can't be changed"),),
        old=prefixes("10.4.0.0/16"),
    ),
    Case("another list of prefixes", prefixes("10.5.0.0/16"), old=prefixes("10.4.0.0/16")),
)

POOL_CASES = (*INDEX_POOLS, *NAMES_OF_POOLS, *ADDRESS_POOLS, *CLAIMS, *NUMBERED)
