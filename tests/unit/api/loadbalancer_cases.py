"""The part of the table about LoadBalancerClass, Advertisement and Announcer."""

from __future__ import annotations

from typing import Any

from unit.api.case import Case, Raw, thing


def lbc(name: str = "public", v4: Raw | None = None, v6: Raw | None = None, **spec: Any) -> Raw:
    pools = {family: ranges for family, ranges in (("v4", v4), ("v6", v6)) if ranges is not None}
    return thing("LoadBalancerClass", name, **{"pools": pools, "mode": "ARP", **spec})


def four(*ranges: str, **spec: Any) -> Raw:
    return lbc(v4={"ranges": list(ranges)}, **spec)


def adv(*addresses: str, **spec: Any) -> Raw:
    fields = {"serviceUID": "u1", "class": "public", "mode": "Route", "addresses": list(addresses)}
    return thing("Advertisement", "web", **{**fields, **spec})


V4, V6 = {"cidrs": ["192.0.2.0/24"]}, {"cidrs": ["2001:db8::/112"]}
RANGE = "spec.pools.v4.ranges[0]"

CLASSES = (
    Case("class of both families", lbc(v4=V4, v6=V6, default=True, interfaces=["eth0", "bond0.7"])),
    Case("class of ranges", lbc(v4={"ranges": ["192.0.2.10-192.0.2.20"], "cidrs": ["192.0.2.0/28"]}, mode="Route")),
    Case("class of IPv6 ranges", lbc(v6={"ranges": ["2001:db8::1-2001:db8::9"]})),
    Case("class without pools", thing("LoadBalancerClass", "public", mode="ARP"), (("spec.pools", "required"),)),
    Case("class of no family", lbc(), (("spec.pools", "names no addresses: give v4"),)),
    Case("class of an empty family", lbc(v4={}), (("spec.pools.v4", "names no addresses: give cidrs"),)),
    Case("class without mode", thing("LoadBalancerClass", "public", pools={"v4": V4}), (("spec.mode", "required"),)),
    Case("class of an unknown mode", lbc(v4=V4, mode="BGP"), (("spec.mode", "ARP, Route"),)),
    Case("class of IPv6 under v4", lbc(v4=V6), (("spec.pools.v4.cidrs[0]", "is IPv6; list it under v6"),)),
    Case("class of IPv4 under v6", lbc(v6=V4), (("spec.pools.v6.cidrs[0]", "is IPv4; list it under v4"),)),
    Case("class of an IPv6 range under v4", four("fd00::1-fd00::2"), ((RANGE, "is IPv6; list it under v6"),)),
    Case("class of host bits", lbc(v4={"cidrs": ["192.0.2.1/24"]}), (("spec.pools.v4.cidrs[0]", "'192.0.2.0/24'"),)),
    Case(
        "class of a reversed range",
        four("192.0.2.9-192.0.2.10", "10.0.0.9-9.255.255.255"),
        (("spec.pools.v4.ranges[1]", "reversed; write '9.255.255.255-10.0.0.9'"),),
    ),
    Case("class of a range of one", four("192.0.2.9-192.0.2.9")),
    Case(
        "class of a reversed IPv6 range",
        lbc(v6={"ranges": ["2001:db8::9-2001:db8::1"]}),
        (("spec.pools.v6.ranges[0]", "is reversed"),),
        library_only="CEL can't compare IPv6 addresses by order; the controller tells it by a condition",
    ),
    Case("class of a range of two families", four("192.0.2.9-2001:db8::1"), ((RANGE, "begins in"),)),
    Case(
        "class of a range cut short",
        four("192.0.2.9-20"),
        ((RANGE, "'192.0.2.9-192.0.2.20'"),),
        server="is not a range",
    ),
    Case("class of no range", four("192.0.2.9"), ((RANGE, "'192.0.2.9' is not a range"),)),
    Case(
        "class of an interface with a slash",
        lbc(v4=V4, interfaces=["a/b"]),
        (("spec.interfaces[0]", "is no name of an"),),
    ),
    Case("class of an interface twice", lbc(v4=V4, interfaces=["a", "a"]), (("spec.interfaces[1]", "twice"),)),
    Case("class of a long interface", lbc(v4=V4, interfaces=["e" * 16]), (("spec.interfaces[0]", "at most 15"),)),
    Case(
        "class of a selector with values too many",
        lbc(v4=V4, serviceSelector={"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
        (("spec.serviceSelector.matchExpressions[0].values", "Exists takes no values"),),
    ),
    Case("class with a dotted name", lbc("a.b", v4=V4), (("metadata.name", "is no name for a class"),)),
    Case("class that becomes another mode", lbc(v4=V4, mode="Route"), old=lbc(v4=V4)),
)

ADVERTISEMENTS = (
    Case("advertisement", adv("192.0.2.9", "2001:db8::9", interfaces=["eth0"])),
    Case("advertisement of nothing", adv(), (("spec.addresses", "at least 1"),)),
    Case("advertisement of an address twice", adv("192.0.2.9", "192.0.2.9"), (("spec.addresses[1]", "twice"),)),
    Case("advertisement in another spelling", adv("2001:DB8::9"), (("spec.addresses[0]", "write '2001:db8::9'"),)),
    Case(
        "advertisement of a prefix", adv("192.0.2.9/32"), (("spec.addresses[0]", "'192.0.2.9'"),), server="is not an IP"
    ),
    Case("advertisement of no class", adv("192.0.2.9", **{"class": "A"}), (("spec.class", "is no name for a class"),)),
    Case("advertisement of no Service", adv("192.0.2.9", serviceUID=""), (("spec.serviceUID", "empty"),)),
    Case("advertisement of a further address", adv("192.0.2.9", "2001:db8::9"), old=adv("192.0.2.9")),
    Case(
        "advertisement of another Service",
        adv("192.0.2.9", serviceUID="u2"),
        (("spec.serviceUID", "can't be changed"),),
        old=adv("192.0.2.9"),
    ),
)

ANNOUNCERS = (Case("announcer", {key: value for key, value in thing("Announcer", "n1").items() if key != "spec"}),)

LOADBALANCER_CASES = (*CLASSES, *ADVERTISEMENTS, *ANNOUNCERS)
