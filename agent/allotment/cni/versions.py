"""The CNI specification versions we speak, and what a configuration of each may ask for.

Sources: CNI spec 0.3.0, 0.3.1, 0.4.0, 1.0.0 and 1.1.0. CHECK came with 0.4.0, GC and STATUS with 1.1.0; the
`version` of an address in a result went with 1.0.0; routes got `mtu`, `advmss`, `priority`, `table` and `scope`
with 1.1.0.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from allotment.addressing.errors import VersionError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NEWEST", "SUPPORTED", "Verb", "asked_version", "at_least", "require", "told_version", "version_result"]

SUPPORTED: Final = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""Oldest first."""

NEWEST: Final = SUPPORTED[-1]


class Verb(enum.StrEnum):
    """What a runtime asks for; the value is that of CNI_COMMAND."""

    ADD = "ADD"
    DEL = "DEL"
    CHECK = "CHECK"
    GC = "GC"
    STATUS = "STATUS"
    VERSION = "VERSION"


_SINCE: Final[Mapping[Verb, str]] = MappingProxyType({Verb.CHECK: "0.4.0", Verb.GC: "1.1.0", Verb.STATUS: "1.1.0"})
_RANK: Final[Mapping[str, int]] = MappingProxyType({version: rank for rank, version in enumerate(SUPPORTED)})


class _Versioned(msgspec.Struct, rename="camel"):
    cni_version: str = ""


_DECODER: Final = msgspec.json.Decoder(_Versioned)


def require(version: str, verb: Verb) -> None:
    """See that a configuration of this version may be used with this verb.

    Raises:
        VersionError: we do not speak the version, or it does not have the verb.
    """
    rank = _RANK.get(version)
    if rank is None:
        raise VersionError(_unspoken(version), details=f"supported: {', '.join(SUPPORTED)}")
    since = _SINCE.get(verb)
    if since is not None and rank < _RANK[since]:
        raise VersionError(
            f"{verb} came with CNI {since}, and the configuration says {version}",
            details=f'set "cniVersion" to {since} or newer',
        )


def at_least(version: str, other: str) -> bool:
    """Whether `version` is `other` or newer; both must be among `SUPPORTED`."""
    return _RANK[version] >= _RANK[other]


def asked_version(body: bytes) -> str:
    """The version that a configuration says, cut to a bearable length; our newest if it can't be read or says none."""
    try:
        return _DECODER.decode(body).cni_version[:64] or NEWEST
    except (msgspec.MsgspecError, RecursionError):
        return NEWEST


def told_version(body: bytes) -> str:
    """The version to answer in when a request could not be read: its own if we speak that, else our newest."""
    version = asked_version(body)
    return version if version in _RANK else NEWEST


def version_result(version: str) -> bytes:
    """The answer to VERSION (CNI spec 1.1.0, "VERSION Success"): the version asked in comes back unchanged."""
    return msgspec.json.encode({"cniVersion": version, "supportedVersions": SUPPORTED})


def _unspoken(version: str) -> str:
    if not version:
        # CNI spec 0.2.0 and older: a configuration without the field is one of version 0.1.0.
        return 'the configuration has no "cniVersion", which means 0.1.0; set it to one that allotment speaks'
    return f'allotment does not speak CNI {version[:64]!r}; set "cniVersion" to one that it does'
