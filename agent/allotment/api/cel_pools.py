"""The rules of pools, Claims and allocation objects in CEL; see `pool_rules` for what they say."""

from __future__ import annotations

from allotment.api.cel import (
    CANONICAL_ADDRESS,
    CANONICAL_PREFIX,
    EXCLUDED,
    IS_ADDRESS,
    PREFIX,
    Rule,
    Rules,
    fixed,
    fixed_once_set,
    inside,
    no_overlap,
    set_to,
)
from allotment.api.claim import ClaimSpec
from allotment.api.indexes import INDEX_LIMIT
from allotment.api.numbered import ClaimRef, IndexSpec, IPAddressSpec, IPPrefixSpec
from allotment.api.pools import IndexPoolSpec, IPAddressPoolSpec, IPPrefixPoolSpec

__all__ = ["POOL_RULES"]

_NUMBER = "(0|[1-9][0-9]{0,18})"


def _fits(number: str) -> str:
    """Whether digits are a number of 63 bits: 19 of them are compared as text, since int() has no room for more."""
    return f"({number}.size() < 19 || {number} <= '{INDEX_LIMIT}')"


def _is_range(entry: str) -> str:
    """Whether text is `7` or `64512..65534`, in whatever order."""
    return rf"({entry}.matches('^{_NUMBER}(\\.\\.{_NUMBER})?$') && {entry}.split('..').all(n, {_fits('n')}))"


def _first(entry: str) -> str:
    return f"int({entry}.split('.')[0])"


def _last(entry: str) -> str:
    return f"int({entry}.substring({entry}.lastIndexOf('.') + 1))"


def _covers(run: str, entry: str) -> str:
    return f"({_first(run)} <= {_first(entry)} && {_last(entry)} <= {_last(run)})"


_INDEXES = (
    Rule(
        _is_range("self"),
        f"'{{self}}' is not a range of numbers from 0 to {INDEX_LIMIT}; write it like 7 or 64512..65534,"
        " without leading zeros",
    ),
    Rule(
        f"!{_is_range('self')} || {_first('self')} <= {_last('self')}",
        "'{self}' is reversed; write the lower number first",
    ),
)
_INDEX_OVERLAP = Rule(
    f"!self.all(r, {_is_range('r')}) || self.all(a, self.exists_one(b,"
    f" {_first('b')} <= {_last('a')} && {_first('a')} <= {_last('b')}))",
    "two ranges overlap; no two may share a number",
)
_ANY_COVERS = f"self.ranges.exists(r, {_covers('r', 'e')})"
_INDEX_EXCLUDE = Rule(
    f"!has(self.exclude) || !self.ranges.all(r, {_is_range('r')}) || !self.exclude.all(e, {_is_range('e')})"
    f" || self.exclude.all(e, {_ANY_COVERS})",
    f"{{self.exclude.filter(e, !{_ANY_COVERS})[0]}} is not in any one of the ranges; exclude only what lies inside",
    ".exclude",
)

_ANY_PREFIX = f"self.prefixes.exists(p, {inside('e', 'cidr(p)')})"
_EXCLUDE = Rule(
    f"!has(self.exclude) || !self.prefixes.all(p, isCIDR(p)) || self.exclude.all(e, {_ANY_PREFIX})",
    f"{{self.exclude.filter(e, !{_ANY_PREFIX})[0]}} is not in any one of the prefixes; exclude only what lies inside",
    ".exclude",
)
_LENGTH_FITS = (
    "(self.prefixLength >= cidr(p).prefixLength() && self.prefixLength <= (cidr(p).ip().family() == 4 ? 32 : 128))"
)
_LENGTH = Rule(
    f"self.prefixes.all(p, !isCIDR(p) || {_LENGTH_FITS})",
    f"doesn't fit {{self.prefixes.filter(p, isCIDR(p) && !{_LENGTH_FITS})[0]}};"
    " it must be from the prefix's own length to 32 (IPv4) or 128 (IPv6)",
    ".prefixLength",
)


def _value(rule: str, text: str, *kinds: str) -> Rule:
    """For a Claim's `value`, where its pool is of one of `kinds`; `self` in rule and text is the value."""
    value = rule.replace("self", "self.value")
    return Rule(
        f"!has(self.value) || !(self.poolRef.kind in [{', '.join(map(repr, kinds))}]) || ({value})",
        text.replace("{self}", "{self.value}"),
        ".value",
    )


_CLAIM = (
    Rule("self == oldSelf", "of a Claim can't be changed; delete it and make a new one"),
    Rule("!has(self.pod) || has(self.node)", "is required with pod: the node whose agent holds the address", ".node"),
    Rule("!has(self.vm) || has(self.pod)", "is required with vm: the pod that runs the virtual machine", ".pod"),
    _value(
        f"self.matches('^{_NUMBER}$') && {_fits('self')}",
        f"'{{self}}' is not a number from 0 to {INDEX_LIMIT}, written without leading zeros",
        "IndexPool",
    ),
    _value(IS_ADDRESS.rule, IS_ADDRESS.text, "IPAddressPool", "LoadBalancerClass"),
    _value(PREFIX[0].rule, PREFIX[0].text, "IPPrefixPool"),
    Rule(
        "!has(self.value) || !isCIDR(self.value) || cidr(self.value) == cidr(self.value).masked()",
        PREFIX[1].text.replace("{self}", "{self.value}"),
        ".value",
    ),
)

_NAMESPACE = Rule(
    "self == '' || !format.dns1123Label().validate(self).hasValue()",
    "'{self}' is no name of a namespace; use a-z, 0-9 and inner dashes",
)
_HAS_NAMESPACE = "!has(self.namespace) || self.namespace == '' || "
_CLAIM_REF = (
    Rule(
        f"{_HAS_NAMESPACE}!has(self.kind) || {set_to('self.kind', 'Claim', 'Service')}",
        "is for a Claim or a Service; {self.kind} objects belong to no namespace: leave it out",
        ".namespace",
    ),
)


def _numbered(kind: str) -> tuple[Rule, ...]:
    """For the spec of an allocation object."""
    return (
        Rule(
            f"self.poolRef.kind == '{kind}Pool'",
            f"must be {kind}Pool for an {kind}, not {{self.poolRef.kind}}",
            ".poolRef.kind",
        ),
        fixed_once_set("networkUID", text=True),
    )


_STANDBY = (
    Rule(
        "!has(self.standbyRef) || (has(self.vm) && has(self.claimRef))",
        "needs vm, and an active Claim in claimRef that it stands by for",
        ".standbyRef",
    ),
    fixed_once_set("vm"),
)

POOL_RULES: Rules = {
    (IndexPoolSpec, ""): (_INDEX_EXCLUDE,),
    (IndexPoolSpec, "ranges"): (_INDEX_OVERLAP,),
    (IndexPoolSpec, "ranges[]"): _INDEXES,
    (IndexPoolSpec, "exclude[]"): _INDEXES,
    (IPAddressPoolSpec, ""): (_EXCLUDE,),
    (IPAddressPoolSpec, "prefixes"): (no_overlap(),),
    (IPAddressPoolSpec, "prefixes[]"): CANONICAL_PREFIX,
    (IPAddressPoolSpec, "exclude[]"): EXCLUDED,
    (IPPrefixPoolSpec, ""): (_LENGTH,),
    (IPPrefixPoolSpec, "prefixLength"): (fixed("pool"),),
    (ClaimSpec, ""): _CLAIM,
    (ClaimRef, ""): _CLAIM_REF,
    (ClaimRef, "namespace"): (_NAMESPACE,),
    (IndexSpec, ""): _numbered("Index"),
    (IndexSpec, "poolRef"): (fixed("Index"),),
    (IndexSpec, "index"): (fixed("Index"),),
    (IPAddressSpec, ""): (*_numbered("IPAddress"), *_STANDBY),
    (IPAddressSpec, "poolRef"): (fixed("IPAddress"),),
    (IPAddressSpec, "address"): (*CANONICAL_ADDRESS, fixed("IPAddress")),
    (IPAddressSpec, "sharers[]"): (
        Rule(
            set_to("self.kind", "Service"),
            "must be Service: only Services share an address",
            ".kind",
        ),
    ),
    (IPAddressSpec, "standbyRef"): (
        Rule(
            set_to("self.kind", "Claim"),
            "must be Claim: only a pod's Claim stands by",
            ".kind",
        ),
    ),
    (IPPrefixSpec, ""): _numbered("IPPrefix"),
    (IPPrefixSpec, "poolRef"): (fixed("IPPrefix"),),
    (IPPrefixSpec, "prefix"): (*CANONICAL_PREFIX, fixed("IPPrefix")),
}
"""The rules, by where they stand."""
