"""IndexPool, IPAddressPool, IPPrefixPool: the sets that numbered resources are drawn from.

A pool is to its values what a StorageClass is to volumes: it says what there is and what becomes of a value that is
given back. Behind each Network stand pools of the controller's own, `net.<network>.v4` and `.v6`.
"""

# No postponed annotations here: msgspec reads the types when a class is made.
from typing import Annotated, Literal

import msgspec

from allotment.addressing.address import Prefix, parse_prefix
from allotment.addressing.intervals import IntervalSet, parse_range
from allotment.api.indexes import IndexRun, parse_indexes
from allotment.api.meta import API_VERSION, APIObject, Conditions, Decimal, Record, limits
from allotment.api.network import CIDR, COOLDOWN_LIMIT, AllowedUses

__all__ = [
    "IPAddressPool",
    "IPAddressPoolSpec",
    "IPPrefixPool",
    "IPPrefixPoolSpec",
    "IndexPool",
    "IndexPoolSpec",
    "Pool",
    "PoolSpec",
    "PoolStatus",
    "ReclaimPolicy",
]

ReclaimPolicy = Literal["Recycle", "Retain"]

Indexes = Annotated[str, limits(minLength=1, maxLength=40)]
"""One number or an inclusive range of them: `7`, `64512..65534`."""
Prefixes = Annotated[tuple[CIDR, ...], limits(minItems=1, maxItems=64, unique=True)]
Excluded = Annotated[tuple[CIDR, ...], limits(maxItems=256)]


class PoolSpec(Record, frozen=True, kw_only=True):
    """What all pools have.

    `reclaim_policy` says what becomes of a value when its Claim is deleted: with Recycle it can be had again after
    `cooldown_seconds`; with Retain it is kept back, without a holder, until somebody deletes or rebinds it.
    """

    reclaim_policy: Annotated[ReclaimPolicy, limits(defaulted=True)] = "Recycle"
    cooldown_seconds: Annotated[int, limits(minimum=0, maximum=COOLDOWN_LIMIT, defaulted=True)] = 0
    allowed_uses: AllowedUses = None


class PoolStatus(Record, frozen=True):
    """What the controller counted. `total` is decimal text, because that of an IPv6 pool passes 2^63.

    `allocated` counts the allocation objects that hold a value, `cooling` those whose value rests. Condition
    `Available` is True while a value is free, and False with reason `Exhausted` when none is.
    """

    allocated: Annotated[int, limits(minimum=0)] = 0
    cooling: Annotated[int, limits(minimum=0)] = 0
    total: Decimal = ""
    conditions: Conditions = ()


class IndexPoolSpec(PoolSpec, frozen=True, kw_only=True):
    """Numbers from 0 to 2^63 - 1, given as ranges that don't overlap, less those excluded."""

    ranges: Annotated[tuple[Indexes, ...], limits(minItems=1, maxItems=64)]
    exclude: Annotated[tuple[Indexes, ...], limits(maxItems=256)] = ()

    @property
    def runs(self) -> tuple[IndexRun, ...]:
        """`ranges`, parsed, in the order given. Raises ConfigError where the object was not validated."""
        return tuple(parse_indexes(text) for text in self.ranges)

    @property
    def excluded(self) -> tuple[IndexRun, ...]:
        """`exclude`, parsed. Raises ConfigError where the object was not validated."""
        return tuple(parse_indexes(text) for text in self.exclude)


class IPAddressPoolSpec(PoolSpec, frozen=True, kw_only=True):
    """All addresses of the prefixes, less those excluded."""

    prefixes: Prefixes
    exclude: Excluded = ()

    @property
    def parsed(self) -> tuple[Prefix, ...]:
        """`prefixes`, parsed. Raises ConfigError where the object was not validated."""
        return tuple(parse_prefix(text) for text in self.prefixes)

    @property
    def excluded(self) -> IntervalSet:
        """`exclude`, parsed, as one set. Raises ConfigError where the object was not validated."""
        return IntervalSet.of(*(parse_range(text) for text in self.exclude))


class IPPrefixPoolSpec(IPAddressPoolSpec, frozen=True, kw_only=True):
    """Prefixes of the length `prefix_length`, cut from those listed; a piece that an exclusion touches is not given."""

    prefix_length: Annotated[int, limits(minimum=0, maximum=128)]


class IndexPool(APIObject, frozen=True):
    """Numbers to be handed out: AS numbers, VLANs, VNIs, route distinguishers."""

    spec: IndexPoolSpec
    status: PoolStatus = PoolStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "IndexPool")


class IPAddressPool(APIObject, frozen=True):
    """Single addresses to be handed out: loopbacks, router IDs, VIPs, pods of an L2 network."""

    spec: IPAddressPoolSpec
    status: PoolStatus = PoolStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "IPAddressPool")


class IPPrefixPool(APIObject, frozen=True):
    """Prefixes of one length to be handed out: subnets, node blocks."""

    spec: IPPrefixPoolSpec
    status: PoolStatus = PoolStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "IPPrefixPool")


Pool = IndexPool | IPAddressPool | IPPrefixPool
