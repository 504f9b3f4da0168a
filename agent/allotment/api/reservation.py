"""IPReservation: addresses that no Network, pool or class ever hands out."""

# No postponed annotations here: msgspec reads the types when a class is made.
from typing import Annotated

import msgspec

from allotment.addressing.address import Prefix, parse_prefix
from allotment.api.meta import API_VERSION, APIObject, Record, limits
from allotment.api.network import CIDR

__all__ = ["IPReservation", "IPReservationSpec"]


class IPReservationSpec(Record, frozen=True):
    """`reserved_cidrs` may overlap and nest, here and between objects: they count as one set."""

    reserved_cidrs: Annotated[tuple[CIDR, ...], limits(maxItems=1024)]

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        """`reserved_cidrs`, parsed. Raises ConfigError where the object was not validated."""
        return tuple(parse_prefix(text) for text in self.reserved_cidrs)


class IPReservation(APIObject, frozen=True):
    """Addresses that are never handed out, whatever they lie in."""

    spec: IPReservationSpec
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "IPReservation")
