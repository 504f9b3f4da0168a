"""Index, IPAddress, IPPrefix: one value of a pool and who holds it, as a PersistentVolume is to its claim.

The object's name is made from pool and value (`allotment.api.names`), so that the API server's uniqueness of names
settles who gets a value. The objects have no owner references: they end only by release.
"""

# No postponed annotations here: msgspec reads the types when a class is made.
from typing import Annotated, Literal

import msgspec

from allotment.addressing.address import Address, Prefix, parse_address, parse_prefix
from allotment.api.claim import PoolRef
from allotment.api.meta import (
    ALLOW_BINDING_ANNOTATION,
    API_VERSION,
    UID,
    APIObject,
    Conditions,
    Name,
    Record,
    limits,
)
from allotment.api.network import CIDR, IP

__all__ = [
    "ClaimRef",
    "IPAddress",
    "IPAddressSpec",
    "IPAddressStatus",
    "IPPrefix",
    "IPPrefixSpec",
    "Index",
    "IndexSpec",
    "Numbered",
    "NumberedSpec",
    "NumberedStatus",
    "VMRef",
]

_DEFAULT_NAMESPACE = "default"


class ClaimRef(Record, frozen=True):
    """Who holds a value. Without `uid` it only names who may bind to it (see the `allow-binding` annotation)."""

    name: Name
    kind: Annotated[Literal["Claim", "Allocation", "Network", "Service"], limits(defaulted=True)] = "Claim"
    namespace: Annotated[str, limits(maxLength=63)] = ""
    uid: UID = ""

    @property
    def home(self) -> str:
        """The holder's namespace: `default` where none is given, empty for a kind that has none."""
        if self.kind in {"Claim", "Service"}:
            return self.namespace or _DEFAULT_NAMESPACE
        return ""


class NumberedSpec(Record, frozen=True, kw_only=True):
    """What all allocation objects have.

    `claim_ref` is missing where nobody holds the value: it is kept back, or provided ahead of its Claim.
    `network_uid` is the UID of the Network that the value was handed out for, where there is one.
    """

    pool_ref: PoolRef
    claim_ref: ClaimRef | None = None
    network_uid: UID = ""


class NumberedStatus(Record, frozen=True):
    """Condition `Valid` says whether the value lies in its pool."""

    conditions: Conditions = ()


class IndexSpec(NumberedSpec, frozen=True, kw_only=True):
    """One number."""

    index: Annotated[int, limits(minimum=0)]


class VMRef(Record, frozen=True):
    """The virtual machine that an address belongs to, on one interface of its pods."""

    namespace: Annotated[str, limits(minLength=1, maxLength=63)]
    name: Name
    interface: Annotated[str, limits(minLength=1, maxLength=15)]


class IPAddressSpec(NumberedSpec, frozen=True, kw_only=True):
    """One address. `handle` is the holder as text, for people; `sharers` are further Services on the same VIP.

    An address of a virtual machine (`vm`) has an active Claim, `claim_ref`, and while the machine moves to another node
    the Claim of its second pod, `standby_ref`. It may have neither: then it is kept for the machine.
    """

    address: IP
    handle: Annotated[str, limits(maxLength=512)] = ""
    sharers: Annotated[tuple[ClaimRef, ...], limits(maxItems=64)] = ()
    standby_ref: ClaimRef | None = None
    vm: VMRef | None = None

    @property
    def parsed(self) -> Address:
        """`address`, parsed. Raises ConfigError where the object was not validated."""
        return parse_address(self.address)


class IPAddressStatus(NumberedStatus, frozen=True):
    """`holder` is the node that announces a VIP in ARP mode; it changes by compare-and-swap alone."""

    holder: Annotated[str, limits(maxLength=253)] = ""


class IPPrefixSpec(NumberedSpec, frozen=True, kw_only=True):
    """One prefix."""

    prefix: CIDR

    @property
    def parsed(self) -> Prefix:
        """`prefix`, parsed. Raises ConfigError where the object was not validated."""
        return parse_prefix(self.prefix)


class _Held(APIObject, frozen=True):
    """What all three kinds of allocation objects have in common."""

    @property
    def allows_binding(self) -> bool:
        """Whether a Claim of the name in `claim_ref` may take the value over."""
        return self.metadata.annotations.get(ALLOW_BINDING_ANNOTATION) == "true"


class Index(_Held, frozen=True):
    """One number of an IndexPool that is held, or kept back."""

    spec: IndexSpec
    status: NumberedStatus = NumberedStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "Index")


class IPAddress(_Held, frozen=True):
    """One address of an IPAddressPool that is held, or kept back: a pod's, a VIP, a router ID."""

    spec: IPAddressSpec
    status: IPAddressStatus = IPAddressStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "IPAddress")


class IPPrefix(_Held, frozen=True):
    """One prefix of an IPPrefixPool that is held, or kept back: a node's block, a subnet."""

    spec: IPPrefixSpec
    status: NumberedStatus = NumberedStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "IPPrefix")


Numbered = Index | IPAddress | IPPrefix
