"""LoadBalancerClass, Advertisement, Announcer: which VIPs may be picked, who announces one, and who has stopped."""

# No postponed annotations here: msgspec reads the types when a class is made.
from typing import Annotated, Literal

import msgspec

from allotment.addressing.address import Address, Family, parse_address, parse_prefix
from allotment.addressing.intervals import IntervalSet, parse_range
from allotment.api.meta import API_VERSION, UID, APIObject, Conditions, Name, Record, limits
from allotment.api.network import CIDR, IP, LabelSelector

__all__ = [
    "AddressRanges",
    "Advertisement",
    "AdvertisementSpec",
    "AdvertisementStatus",
    "Announcer",
    "AnnouncerStatus",
    "ClassPools",
    "LoadBalancerClass",
    "LoadBalancerClassSpec",
    "LoadBalancerClassStatus",
    "Mode",
    "Withdrawn",
]

Mode = Literal["ARP", "Route"]
"""How a VIP becomes reachable: one node answers ARP and neighbour solicitations, or every node exports a route."""
Interfaces = Annotated[
    tuple[Annotated[str, limits(minLength=1, maxLength=15)], ...], limits(minItems=1, maxItems=64, unique=True)
]
Range = Annotated[str, limits(maxLength=79)]
"""`first-last`; 79 characters are two of the longest IPv6 addresses and the dash."""


class AddressRanges(Record, frozen=True):
    """The addresses of one family that may be picked; entries may overlap: they count as one set."""

    cidrs: Annotated[tuple[CIDR, ...], limits(maxItems=64)] = ()
    ranges: Annotated[tuple[Range, ...], limits(maxItems=64)] = ()

    @property
    def addresses(self) -> IntervalSet:
        """All of it as one set. Raises ConfigError where the object was not validated."""
        return IntervalSet.of(
            *(parse_prefix(text) for text in self.cidrs), *(parse_range(text) for text in self.ranges)
        )


class ClassPools(Record, frozen=True):
    """Where the VIPs of a class come from, per family."""

    v4: AddressRanges | None = None
    v6: AddressRanges | None = None

    def of(self, family: Family) -> IntervalSet:
        """The addresses of a family, empty where there are none. Raises ConfigError as `addresses` does."""
        ranges = self.v4 if family is Family.V4 else self.v6
        return IntervalSet() if ranges is None else ranges.addresses


class LoadBalancerClassSpec(Record, frozen=True):
    """Which VIPs may be picked for which Services, and which nodes announce them.

    A class only filters: removing one, or a part of its pools, frees nothing. `interfaces` names where a VIP is
    bound or answered for; missing means that the node finds out by its routes. Without `node_selector` every node
    takes part, without `service_selector` every Service that names the class. `default` makes it the class of
    Services that name none.
    """

    pools: ClassPools
    mode: Mode
    node_selector: LabelSelector | None = None
    interfaces: Interfaces | None = None
    service_selector: LabelSelector | None = None
    default: bool = False


class LoadBalancerClassStatus(Record, frozen=True):
    """Condition `Ready` says whether VIPs are picked by it."""

    conditions: Conditions = ()


class LoadBalancerClass(APIObject, frozen=True):
    """The kind of VIP a Service may ask for by `spec.loadBalancerClass`."""

    spec: LoadBalancerClassSpec
    status: LoadBalancerClassStatus = LoadBalancerClassStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "LoadBalancerClass")


class AdvertisementSpec(Record, frozen=True):
    """What the controller had picked for a Service; it outlives the class, of which it has copies."""

    service_uid: Annotated[UID, limits(minLength=1)]
    class_: Name
    mode: Mode
    addresses: Annotated[tuple[IP, ...], limits(minItems=1, maxItems=16, unique=True)]
    node_selector: LabelSelector | None = None
    interfaces: Interfaces | None = None

    @property
    def parsed(self) -> tuple[Address, ...]:
        """`addresses`, parsed. Raises ConfigError where the object was not validated."""
        return tuple(parse_address(text) for text in self.addresses)


class AdvertisementStatus(Record, frozen=True):
    """Conditions say whether the VIPs are announced, and if not, what stands in the way."""

    conditions: Conditions = ()


class Advertisement(APIObject, frozen=True):
    """Who announces a Service's VIPs, and how. It lives beside its Service and has its name."""

    spec: AdvertisementSpec
    status: AdvertisementStatus = AdvertisementStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "Advertisement")


class Withdrawn(Record, frozen=True):
    """An Advertisement being deleted whose VIPs the node has seen gone from its kernel; known by `uid`."""

    namespace: Annotated[str, limits(minLength=1, maxLength=63)]
    name: Name
    uid: Annotated[UID, limits(minLength=1)]


class AnnouncerStatus(Record, frozen=True):
    """`withdrawn` is written only while a withdrawal is awaited, and empty the rest of the time."""

    withdrawn: Annotated[tuple[Withdrawn, ...], limits(maxItems=2048, key="uid")] = ()


class Announcer(APIObject, frozen=True):
    """What one node has stopped announcing. Named after the node and owned by it, so that it ends with the Node."""

    status: AnnouncerStatus = AnnouncerStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "Announcer")
