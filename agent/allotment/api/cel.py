"""Rules that a CRD carries in CEL, and the phrases that several kinds share.

A rule stands at a struct, at one of its fields, or at the entries of a list, never at an object's root: there it
would be looked at with every write, and block the status and the finalizers of a stored object that breaks a newer
rule. Below, the API server passes over what a write doesn't change. A rule that compares with the old value stands
at the parent of an optional field, since at the field itself it would be skipped when the field is taken out.

One mistake should give one message: what breaks a rule of its own (a prefix that is none) is left to that rule by the
others, which begin with `!isCIDR(…) ||` for that.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from allotment.api.names import NETWORK_NAME_LIMIT

__all__ = [
    "CANONICAL_ADDRESS",
    "CANONICAL_PREFIX",
    "EXCLUDED",
    "IS_ADDRESS",
    "NODE_NAME",
    "PREFIX",
    "Place",
    "Rule",
    "Rules",
    "fixed",
    "fixed_once_set",
    "inside",
    "name_of",
    "no_overlap",
    "set_to",
]

Place = tuple[type[Any], str]
"""Where rules stand: a struct and nothing, one of its fields (`subnets`), or the entries of that (`subnets[]`)."""


class Rule(msgspec.Struct, frozen=True):
    """`rule` must be true; otherwise `text` is told, of `field` where it is given (`.gateway`).

    In `text`, `{…}` is an expression in CEL that gives a string. It has to be a field that has a maxLength, or
    an entry of a list of such text: the budget takes what `string(…)` gives, or a field of an entry, for endless.
    """

    rule: str
    text: str
    field: str = ""

    @property
    def message(self) -> tuple[str, str]:
        """How a CRD spells the text: (`message`, words), or (`messageExpression`, CEL)."""
        literal, *rest = re.split(r"\{([^}]*)\}", self.text)
        if not rest:
            return "message", literal
        parts = [f'"{literal}"' if literal else ""]
        for expression, words in zip(rest[::2], rest[1::2], strict=True):
            parts += [expression, f'"{words}"' if words else ""]
        return "messageExpression", " + ".join(part for part in parts if part)


Rules = dict[Place, tuple[Rule, ...]]

PREFIX = (
    Rule(
        "isCIDR(self)",
        "'{self}' is not a prefix; write it like 10.4.0.0/16 or fd00:4::/56, IPv4 without leading zeros",
    ),
    Rule(
        "!isCIDR(self) || cidr(self) == cidr(self).masked()",
        "'{self}' has host bits set; write the block that holds it, with those bits zero",
    ),
)
"""For a prefix in any valid spelling."""
CANONICAL_PREFIX = (
    *PREFIX,
    Rule(
        "!isCIDR(self) || !(cidr(self) == cidr(self).masked()) || string(cidr(self)) == self",
        "'{self}' is not the usual form; write IPv6 in small letters, with its zeros cut (RFC 5952)",
    ),
)
"""For a prefix that is a key, and so has one spelling."""
IS_ADDRESS = Rule(
    "isIP(self)", "'{self}' is not an IP address; write it like 10.1.2.3 or fd00::5, without a prefix length"
)
CANONICAL_ADDRESS = (
    IS_ADDRESS,
    Rule(
        "!isIP(self) || string(ip(self)) == self",
        "'{self}' is not the usual form; write IPv6 in small letters, with its zeros cut (RFC 5952)",
    ),
)
EXCLUDED = (
    Rule(
        "isCIDR(self) || isIP(self)",
        "'{self}' is neither an address nor a prefix; list a range as several of these",
    ),
    PREFIX[1],
)
"""For an entry of `exclude`."""
NODE_NAME = Rule("!format.dns1123Subdomain().validate(self).hasValue()", "'{self}' is no name of a node")


def name_of(what: str) -> Rule:
    """For the name of a network, or of something that is named by the same rule."""
    return Rule(
        f"self.size() <= {NETWORK_NAME_LIMIT} && !format.dns1123Label().validate(self).hasValue()",
        f"'{{self}}' is no name for a {what}; use a-z, 0-9 and inner dashes, at most {NETWORK_NAME_LIMIT} characters",
    )


def fixed(kind: str) -> Rule:
    """For a required field that can't be changed."""
    return Rule("self == oldSelf", f"can't be changed; make a new {kind}")


def fixed_once_set(field: str, *, text: bool = False) -> Rule:
    """For an optional field that can't be changed once it is set (as text: is not empty); stands at the parent."""
    empty = f" || oldSelf.{field} == ''" if text else ""
    return Rule(
        f"!has(oldSelf.{field}){empty} || (has(self.{field}) && self.{field} == oldSelf.{field})",
        "can't be changed once it is set",
        f".{field}",
    )


def set_to(path: str, *values: str) -> str:
    """Whether a field is there and has one of some values."""
    return f"(has({path}) && {path} in [{', '.join(map(repr, values))}])"


def no_overlap(cidr: str = "") -> Rule:
    """For a list: no two of its prefixes share an address. `cidr` is how an entry names its prefix (`.cidr`)."""
    alone = f"self.exists_one(b, cidr(a{cidr}).containsCIDR(b{cidr}))"
    which = "two entries overlap" if cidr else f"{{self.filter(a, !{alone})[0]}} overlaps another one"
    return Rule(f"!self.all(a, isCIDR(a{cidr})) || self.all(a, {alone})", f"{which}; no two may share an address")


def inside(entry: str, prefix: str) -> str:
    """Whether an address or prefix lies in another; what is neither counts as inside."""
    return f"(isCIDR({entry}) ? {prefix}.containsCIDR({entry}) : !isIP({entry}) || {prefix}.containsIP({entry}))"
