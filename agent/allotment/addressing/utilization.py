"""How full a block or a network is: the one implementation that allocation, status, metrics and CLI share.

All counts are of sets, so that what overlaps is counted once:

- capacity: the prefix less its network, broadcast and anycast addresses;
- reserved: gateways, exclusions and reservations within the capacity;
- in use: leased addresses (a lease may lie inside a reservation that came later);
- cooling: released, and still within the cooldown;
- available: capacity less (in use, reserved and cooling together). It can't be worked out from the other four.

A network's counts span its whole subnets, whether they are cut into blocks or not. The edges of the blocks there are
can't be handed out, and are no part of its capacity either; how the rest will be cut is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from allotment.addressing.edges import unusable
from allotment.addressing.intervals import IntervalSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from allotment.addressing.address import Family, Prefix

__all__ = ["Use", "Utilization", "of_block", "of_network", "reserved_alone"]


@dataclass(frozen=True, slots=True)
class Use:
    """What is known of a network's addresses at one moment, as sets (of both families)."""

    subnets: tuple[Prefix, ...] = ()
    blocks: tuple[Prefix, ...] = ()
    in_use: IntervalSet = field(default_factory=IntervalSet)
    cooling: IntervalSet = field(default_factory=IntervalSet)
    reserved: IntervalSet = field(default_factory=IntervalSet)


@dataclass(frozen=True, slots=True)
class Utilization:
    """Numbers of addresses; they may be above 2^63."""

    capacity: int
    in_use: int
    reserved: int
    cooling: int
    available: int


def of_block(use: Use, block: Prefix) -> Utilization:
    """The utilization of one block (or of any other prefix by itself)."""
    whole = IntervalSet.of(block)
    return _count(whole, whole - unusable(block), use)


def of_network(use: Use, family: Family | None = None) -> Utilization:
    """The utilization of a network: both families together, or one of them."""
    prefixes = [prefix for prefix in (*use.subnets, *use.blocks) if family is None or prefix.family is family]
    return _count(IntervalSet.of(*prefixes), _capacity(prefixes), use)


def reserved_alone(reservations: IntervalSet, subnets: Iterable[Prefix]) -> int:
    """How many addresses of the subnets the reservations cover, for who has no list of blocks or leases."""
    return (_capacity(subnets) & reservations).count()


def _capacity(prefixes: Iterable[Prefix]) -> IntervalSet:
    prefixes = tuple(prefixes)
    edges = IntervalSet.of(*(unusable(prefix) for prefix in prefixes))
    return IntervalSet.of(*prefixes) - edges


def _count(whole: IntervalSet, capacity: IntervalSet, use: Use) -> Utilization:
    in_use = whole & use.in_use
    cooling = whole & use.cooling
    reserved = capacity & use.reserved
    return Utilization(
        capacity=capacity.count(),
        in_use=in_use.count(),
        reserved=reserved.count(),
        cooling=cooling.count(),
        available=(capacity - (in_use | reserved | cooling)).count(),
    )
