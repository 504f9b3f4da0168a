"""The one list of our kinds: how each is called, where it lives, and what `kubectl get` shows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from allotment.api.allocation import Allocation
from allotment.api.claim import Claim
from allotment.api.ipamconfig import CONFIG_NAME, IPAMConfig
from allotment.api.loadbalancer import Advertisement, Announcer, LoadBalancerClass
from allotment.api.names import LABEL, NETWORK_NAME_LIMIT, POOL_NAME_LIMIT
from allotment.api.network import Network
from allotment.api.numbered import Index, IPAddress, IPPrefix
from allotment.api.pools import IndexPool, IPAddressPool, IPPrefixPool
from allotment.api.reservation import IPReservation

if TYPE_CHECKING:
    from allotment.api.validate import Resource

__all__ = ["KINDS", "KIND_OF", "Column", "Kind"]


class Column(msgspec.Struct, frozen=True):
    """A column of `kubectl get`; `wide` ones are shown with `-o wide` alone."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


class Kind(msgspec.Struct, frozen=True):
    """A kind of ours.

    `selectable` are the fields that a list or a watch may select by. `name_words` limit `metadata.name`, in OpenAPI's
    words: such a limit is not looked at where a stored object's name, which can't change, breaks it, so it never
    stands in the way of a finalizer, as a rule in CEL at the root would.
    """

    type: type[Resource]
    plural: str
    columns: tuple[Column, ...]
    short_names: tuple[str, ...] = ()
    namespaced: bool = False
    selectable: tuple[str, ...] = ()
    name_words: tuple[tuple[str, object], ...] = ()

    @property
    def name(self) -> str:
        """The kind as objects write it."""
        return self.type.__name__


def _condition(name: str, title: str = "", *, wide: bool = False) -> Column:
    return Column(title or name, f'.status.conditions[?(@.type=="{name}")].status', wide=wide)


_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_POOL_COLUMNS = (
    Column("Allocated", ".status.allocated", "integer"),
    _condition("Available"),
    Column("Cooling", ".status.cooling", "integer", wide=True),
    Column("Total", ".status.total", wide=True),
    _AGE,
)
_POOL = Column("Pool", ".spec.poolRef.name")
_CLAIM = Column("Claim", ".spec.claimRef.name")
_BY_POOL = (".spec.poolRef.name",)

_NETWORK_NAME = (("maxLength", NETWORK_NAME_LIMIT), ("pattern", f"^{LABEL}$"))
_INNER = f"[a-z0-9](?:[a-z0-9-]{{0,{NETWORK_NAME_LIMIT - 2}}}[a-z0-9])?"
_POOL_NAME = (("maxLength", POOL_NAME_LIMIT), ("pattern", rf"^({_INNER}|net\.{_INNER}\.v[46])$"))

KINDS = (
    Kind(
        Network,
        "networks",
        (
            Column("Type", ".spec.type"),
            Column("Phase", ".status.phase"),
            Column("ID", ".status.networkID", "integer"),
            Column("In use", ".status.inUse"),
            Column("Available", ".status.available"),
            Column("Capacity", ".status.capacity", wide=True),
            Column("Reserved", ".status.reserved", wide=True),
            Column("Cooling", ".status.cooling", wide=True),
            Column("Transport", ".spec.transport", wide=True),
            _AGE,
        ),
        short_names=("net",),
        name_words=_NETWORK_NAME,
    ),
    Kind(
        Allocation,
        "allocations",
        (
            Column("Network", ".spec.network"),
            Column("Node", ".spec.node"),
            Column("Type", ".spec.type"),
            _condition("Ready"),
            _condition("Draining", wide=True),
            _condition("Conflict", wide=True),
            _AGE,
        ),
        short_names=("alloc",),
        selectable=(".spec.node", ".spec.network"),
    ),
    Kind(IndexPool, "indexpools", _POOL_COLUMNS, short_names=("idxpool",), name_words=_POOL_NAME),
    Kind(IPAddressPool, "ipaddresspools", _POOL_COLUMNS, short_names=("ippool",), name_words=_POOL_NAME),
    Kind(IPPrefixPool, "ipprefixpools", _POOL_COLUMNS, short_names=("pfxpool",), name_words=_POOL_NAME),
    Kind(
        Claim,
        "claims",
        (
            Column("Value", ".status.value"),
            _condition("Allocated"),
            _POOL,
            Column("Node", ".spec.node", wide=True),
            Column("Pod", ".spec.pod.name", wide=True),
            _AGE,
        ),
        namespaced=True,
        selectable=(".spec.node",),
    ),
    Kind(
        Index,
        "indices",
        (_POOL, Column("Index", ".spec.index", "integer"), _CLAIM, _condition("Valid"), _AGE),
        short_names=("idx",),
        selectable=_BY_POOL,
    ),
    Kind(
        IPAddress,
        "ipaddresses",
        (
            _POOL,
            Column("Address", ".spec.address"),
            _CLAIM,
            _condition("Valid"),
            Column("Holder", ".status.holder", wide=True),
            Column("Handle", ".spec.handle", wide=True),
            _AGE,
        ),
        short_names=("ipaddr",),
        selectable=_BY_POOL,
    ),
    Kind(
        IPPrefix,
        "ipprefixes",
        (_POOL, Column("Prefix", ".spec.prefix"), _CLAIM, _condition("Valid"), _AGE),
        short_names=("pfx",),
        selectable=_BY_POOL,
    ),
    Kind(IPReservation, "ipreservations", (Column("CIDRs", ".spec.reservedCIDRs"), _AGE), short_names=("ipresv",)),
    Kind(
        LoadBalancerClass,
        "loadbalancerclasses",
        (Column("Mode", ".spec.mode"), Column("Default", ".spec.default", "boolean"), _condition("Ready"), _AGE),
        short_names=("lbc",),
        name_words=_NETWORK_NAME,
    ),
    Kind(
        Advertisement,
        "advertisements",
        (
            Column("Class", ".spec.class"),
            Column("Mode", ".spec.mode"),
            Column("Addresses", ".spec.addresses"),
            _condition("Announced"),
            _AGE,
        ),
        short_names=("adv",),
        namespaced=True,
    ),
    Kind(Announcer, "announcers", (_AGE,)),
    Kind(
        IPAMConfig,
        "ipamconfigs",
        (
            Column("Strict", ".spec.strictAffinity", "boolean"),
            Column("Max blocks", ".spec.maxBlocksPerHost", "integer"),
            Column("Auto", ".spec.autoAllocateBlocks", "boolean"),
            Column("Cooldown", ".spec.cooldownSeconds", "integer"),
            _AGE,
        ),
        name_words=(("enum", [CONFIG_NAME]),),
    ),
)
"""All our kinds, in the order of the documentation."""

KIND_OF: dict[str, Kind] = {kind.name: kind for kind in KINDS}
"""The same by name."""
