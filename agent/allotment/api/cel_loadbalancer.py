"""The rules of LoadBalancerClass and Advertisement in CEL; see `loadbalancer_rules` for what they say."""

from __future__ import annotations

from allotment.api.cel import CANONICAL_ADDRESS, PREFIX, Rule, Rules, fixed, name_of
from allotment.api.loadbalancer import AddressRanges, AdvertisementSpec, ClassPools, LoadBalancerClassSpec

__all__ = ["LOADBALANCER_RULES"]

_IS_RANGE = "(self.split('-').size() == 2 && self.split('-').all(a, isIP(a)))"
_FIRST, _LAST = "self.split('-')[0]", "self.split('-')[1]"


def _number(address: str) -> str:
    """An IPv4 address as a number: CEL can't compare addresses by order, and IPv6 ones not by any means."""
    return " + ".join(f"int({address}.split('.')[{place}]) * {1 << 24 - 8 * place}" for place in range(4))


_RANGE = (
    Rule(_IS_RANGE, "'{self}' is not a range; write it like 10.1.2.3-10.1.2.9, or list it under cidrs"),
    Rule(
        f"!{_IS_RANGE} || ip({_FIRST}).family() == ip({_LAST}).family()",
        "'{self}' begins in one family and ends in the other; write one range for each family",
    ),
    Rule(
        f"!{_IS_RANGE} || self.contains(':') || {_number(_FIRST)} <= {_number(_LAST)}",
        "'{self}' is reversed; write the lower address first",
    ),
)


def _of_family(version: int) -> tuple[Rule, ...]:
    """For the pools of a class: what is listed under v4 is IPv4, and the same for v6."""
    other = 10 - version
    text = f"is IPv{other}; list it under v{other}"
    cidrs, ranges = f"self.v{version}.cidrs", f"self.v{version}.ranges"
    wrong_cidr = f"isCIDR(c) && cidr(c).ip().family() != {version}"
    wrong_range = f"r.contains(':') != {'true' if version == 6 else 'false'}"
    return (
        Rule(
            f"!has(self.v{version}) || !has({cidrs}) || !{cidrs}.exists(c, {wrong_cidr})",
            f"{{{cidrs}.filter(c, {wrong_cidr})[0]}} {text}",
            f".v{version}.cidrs",
        ),
        Rule(
            f"!has(self.v{version}) || !has({ranges}) || !{ranges}.exists(r, {wrong_range})",
            f"{{{ranges}.filter(r, {wrong_range})[0]}} {text}",
            f".v{version}.ranges",
        ),
    )


_POOLS = (
    Rule("has(self.v4) || has(self.v6)", "names no addresses: give v4, v6 or both"),
    *_of_family(4),
    *_of_family(6),
)
_NOT_EMPTY = Rule(
    "(has(self.cidrs) && self.cidrs.size() > 0) || (has(self.ranges) && self.ranges.size() > 0)",
    "names no addresses: give cidrs, ranges or both",
)
_INTERFACE = Rule(
    r"!(self in ['.', '..']) && self.matches('^[^/:\\s]+$')",
    "'{self}' is no name of an interface; it has no slash, colon or blank",
)

LOADBALANCER_RULES: Rules = {
    (LoadBalancerClassSpec, "interfaces[]"): (_INTERFACE,),
    (ClassPools, ""): _POOLS,
    (AddressRanges, ""): (_NOT_EMPTY,),
    (AddressRanges, "cidrs[]"): PREFIX,
    (AddressRanges, "ranges[]"): _RANGE,
    (AdvertisementSpec, "interfaces[]"): (_INTERFACE,),
    (AdvertisementSpec, "class"): (name_of("class"),),
    (AdvertisementSpec, "serviceUID"): (fixed("Advertisement"),),
    (AdvertisementSpec, "addresses[]"): CANONICAL_ADDRESS,
}
"""The rules, by where they stand."""
