"""`Holdings`: all that the lease book holds of one network: its plan, its blocks, its leases and its rests.

Blocks come and go with the plan; what lies in them stays true. A lease whose block is gone is *loose*: it is found
and released as ever, and counts as taken as soon as a block covers it again. A rest whose block is gone *lingers*
until it has cooled, because the block may come back sooner (I3), and then it is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.address import Address, Family, Prefix
from allotment.addressing.block import BlockSpace
from allotment.addressing.edges import edge_name, unusable
from allotment.addressing.errors import InternalError
from allotment.addressing.idle import Idle
from allotment.addressing.intervals import IntervalSet
from allotment.addressing.lease import Forgotten, LeaseKind, Supposed
from allotment.addressing.resting import LIMIT
from allotment.addressing.state import AddressState, StateKind
from allotment.addressing.supply import Supply
from allotment.addressing.utilization import Use

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from allotment.addressing.lease import Change, Lease, Rest
    from allotment.addressing.plan import BlockPlan, NetworkPlan

__all__ = ["LONGEST_COOLDOWN", "Holdings"]

LONGEST_COOLDOWN = 1200.0
"""Seconds; the most that a plan can say, and what is assumed while none has said anything."""


class Holdings:
    """See the module's text. `limit` is how many rested addresses a block remembers one by one."""

    __slots__ = (
        "_boot",
        "_held",
        "_limit",
        "_lingering",
        "_loose",
        "_tables",
        "blocks",
        "cooldown",
        "labels",
        "leases",
        "name",
        "plan",
        "spaces",
        "supplies",
    )

    def __init__(self, name: str, boot: str, limit: int = LIMIT) -> None:
        self.name = name
        self.plan: NetworkPlan | None = None
        self.cooldown = LONGEST_COOLDOWN
        self.leases: dict[Family, dict[int, Lease]] = {Family.V4: {}, Family.V6: {}}
        self.labels: dict[Prefix, int] = {}  # how many leases, given or being given, name each block
        self.blocks: dict[Prefix, BlockPlan] = {}
        self.spaces: dict[Prefix, BlockSpace] = {}
        self.supplies: dict[Family, Supply] = {}
        self._boot = boot
        self._limit = limit
        self._held: dict[Address, tuple[Lease, Idle | None]] = {}
        self._loose: set[Address] = set()
        self._lingering: list[Idle] = []
        self._tables: dict[Family, dict[int, dict[int, BlockSpace]]] = {Family.V4: {}, Family.V6: {}}

    # -- what was there before

    def load_lease(self, lease: Lease) -> None:
        """Take in a lease from disk.

        Raises:
            InternalError: its address has a lease already (I1).
        """
        table = self.leases[lease.address.family]
        other = table.setdefault(lease.address.value, lease)
        if other is not lease:
            raise InternalError(
                f"two leases of network {self.name} have the address {lease.address}: "
                f"number {other.sequence} and number {lease.sequence}"
            )
        self._loose.add(lease.address)
        self._count(lease, 1)

    def load_rest(self, rest: Rest, seconds: float, order: int) -> None:
        """Take in a rest from disk that counts from `seconds` on this boot's clock."""
        origin = None if rest.released.boot == self._boot else rest.released
        idle = Idle(rest.first.value, rest.last.value, seconds, wall=rest.wall, block=rest.block, origin=origin)
        idle.order = order
        self._lingering.append(idle)

    # -- the plan

    def apply(self, plan: NetworkPlan | None) -> None:
        """Set the plan; None when nobody tells of the network any more."""
        if plan == self.plan:
            return
        self.plan = plan
        blocks: tuple[BlockPlan, ...] = ()
        if plan is not None:
            self.cooldown = plan.cooldown
            blocks = _outermost(plan.blocks)
        self.blocks = {block.prefix: block for block in blocks}
        self._close([space for prefix, space in self.spaces.items() if prefix not in self.blocks])
        self._open([prefix for prefix in self.blocks if prefix not in self.spaces])
        withheld = self._withheld()
        for prefix, space in self.spaces.items():
            space.block(withheld.within(prefix) | unusable(prefix))
        self.supplies = {
            family: Supply([self.spaces[b.prefix] for b in blocks if b.gives and b.prefix.family is family])
            for family in sorted({block.prefix.family for block in blocks})
        }

    def _withheld(self) -> IntervalSet:
        """What is never handed out automatically, edges aside."""
        if self.plan is None:
            return IntervalSet()
        return self.plan.excluded | self.plan.reserved | self._gateways()

    def _gateways(self) -> IntervalSet:
        blocks = () if self.plan is None else self.plan.blocks
        return IntervalSet.of(*(block.gateway for block in blocks if block.gateway is not None))

    def usable(self, prefix: Prefix) -> int:
        """How many addresses of a block could be handed out if nothing were excluded or reserved."""
        return prefix.size - (unusable(prefix) | self._gateways().within(prefix)).count()

    def _close(self, spaces: list[BlockSpace]) -> None:
        if not spaces:
            return
        for space in spaces:
            del self.spaces[space.prefix]
            host_bits = space.prefix.family.bits - space.prefix.length
            del self._tables[space.prefix.family][host_bits][space.prefix.value >> host_bits]
            self._lingering.extend(space.resting())
        self._loose = {
            lease.address
            for table in self.leases.values()
            for lease in table.values()
            if self.space_of(lease.address) is None
        }

    def _open(self, prefixes: list[Prefix]) -> None:
        """Make the spaces of new blocks, with all that is known of their addresses in them (I15)."""
        if not prefixes:
            return
        for prefix in prefixes:
            made = BlockSpace(self.name, prefix, self._boot, limit=self._limit)
            self.spaces[prefix] = made
            host_bits = prefix.family.bits - prefix.length
            self._tables[prefix.family].setdefault(host_bits, {})[prefix.value >> host_bits] = made
        taken: dict[Prefix, list[int]] = {prefix: [] for prefix in prefixes}
        loose: set[Address] = set()
        for address in self._loose:
            space = self.space_of(address)
            if space is None:
                loose.add(address)
            else:
                taken[space.prefix].append(address.value)
        self._loose = loose
        for address in self._held:
            found = self.space_of(address)
            if found is not None and found.prefix in taken:
                taken[found.prefix].append(address.value)
        resting = self._settle(prefixes)
        for prefix in prefixes:
            self.spaces[prefix].fill(taken[prefix], resting[prefix])

    def _settle(self, prefixes: list[Prefix]) -> dict[Prefix, list[Idle]]:
        """Move what lingers inside of new blocks to them; what lies outside goes on lingering."""
        settled: dict[Prefix, list[Idle]] = {prefix: [] for prefix in prefixes}
        lingering: list[Idle] = []
        for idle in self._lingering:
            covering = self._covering(idle, settled)
            runs = [(max(idle.first, prefix.value), min(idle.last, prefix.last.value)) for prefix in covering]
            if runs and runs != [(idle.first, idle.last)]:
                idle.tear()  # the new blocks cut it, and the ledger goes on having it whole
            outside = [(idle.first, idle.last)]
            for prefix, (first, last) in zip(covering, runs, strict=True):
                settled[prefix].append(idle.part(first, last))
                outside = _without(outside, first, last)
            lingering.extend(idle.part(first, last) for first, last in outside)
        self._lingering = lingering
        return settled

    def _covering(self, idle: Idle, prefixes: Collection[Prefix]) -> list[Prefix]:
        family = idle.block.family
        if idle.first == idle.last:
            space = self.space_of(Address(family, idle.first))
            return [space.prefix] if space is not None and space.prefix in prefixes else []
        return [
            prefix
            for prefix in prefixes
            if prefix.family is family and prefix.value <= idle.last and idle.first <= prefix.last.value
        ]

    # -- giving and taking back

    def space_of(self, address: Address) -> BlockSpace | None:
        """The block of this node that holds an address."""
        for host_bits, table in self._tables[address.family].items():
            space = table.get(address.value >> host_bits)
            if space is not None:
                return space
        return None

    def hold(self, lease: Lease, idle: Idle | None) -> None:
        """Note that an address taken from its block is being given as this lease."""
        self._held[lease.address] = (lease, idle)
        self._count(lease, 1)

    def commit(self, lease: Lease) -> None:
        """A held address is given: the lease is on disk."""
        _, idle = self._held.pop(lease.address)
        if idle is not None:
            idle.mend()
        self.leases[lease.address.family][lease.address.value] = lease
        if self.space_of(lease.address) is None:
            self._loose.add(lease.address)

    def hand_over(self, before: Lease, after: Lease) -> None:
        """A lease ends, and another begins at its address in the same change: it is taken all the time."""
        self.leases[before.address.family][before.address.value] = after
        self._count(before, -1)
        self._count(after, 1)

    def cancel(self, lease: Lease) -> None:
        """A held address is not given after all: it is what it was before."""
        _, idle = self._held.pop(lease.address)
        self._count(lease, -1)
        self.put_back(lease.address, idle)

    def put_back(self, address: Address, idle: Idle | None) -> None:
        """Undo the taking of an address from its block."""
        space = self.space_of(address)
        if space is not None:
            space.undo((address.value, idle))
            self._returned(space, None if idle is None else idle.seconds)
        elif idle is not None:
            self._linger(idle)

    def _linger(self, idle: Idle) -> None:
        """Let a part of what rests linger, joined with the parts it was cut from (see `Resting.restore`)."""
        first, last = idle.first, idle.last
        if idle.row is not None:
            idle.mend()
            for other in [other for other in self._lingering if other.row is idle.row]:
                if other.last == first - 1 or other.first == last + 1:
                    first, last = min(first, other.first), max(last, other.last)
                    self._lingering.remove(other)
        self._lingering.append(idle.part(first, last))

    def release(self, lease: Lease, seconds: float, wall: float) -> None:
        """A lease has ended: its address rests from `seconds` on."""
        value = lease.address.value
        del self.leases[lease.address.family][value]
        self._loose.discard(lease.address)
        self._count(lease, -1)
        idle = Idle(value, value, seconds, wall=wall, block=lease.block)
        space = self.space_of(lease.address)
        if space is None:
            self._lingering.append(idle)
        else:
            space.release(idle)
            self._returned(space, seconds)

    def suppose_rested(self, seconds: float, wall: float) -> list[Supposed]:
        """Let all that was never used rest from `seconds` on; nothing, where nothing has to rest."""
        if not self.cooldown or (self.plan is not None and self.plan.claimed):  # who picks lets them rest
            return []
        changes: list[Supposed] = []
        for space in self.spaces.values():
            for idle in space.rest_fresh(seconds, wall):
                changes.append(Supposed(idle.rest(self.name, self._boot)))
                self._returned(space, seconds)
        return changes

    def _returned(self, space: BlockSpace, seconds: float | None) -> None:
        supply = self.supplies.get(space.prefix.family)
        if supply is not None:
            supply.returned(space, seconds)

    def _count(self, lease: Lease, step: int) -> None:
        count = self.labels.get(lease.block, 0) + step
        if count:
            self.labels[lease.block] = count
        else:
            del self.labels[lease.block]

    # -- looking

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to hold: no plan, no lease, no rest."""
        return self.plan is None and not any(self.leases.values()) and not self._held and not self._lingering

    def is_stray(self, lease: Lease) -> bool:
        """Whether a pod has an address that is somebody else's to give: its block is no longer this node's."""
        if self.plan is None or not self.plan.shared or lease.owner.kind is not LeaseKind.POD:
            return False
        return self.space_of(lease.address) is None and not any(lease.address in block for block in self.plan.pending)

    def strays(self) -> tuple[Lease, ...]:
        """The leases that are astray, in order of their addresses."""
        loose = (self.leases[address.family][address.value] for address in sorted(self._loose))
        return tuple(filter(self.is_stray, loose))

    def may_keep(self, address: Address) -> Prefix | None:
        """The block of an address that may be kept for a virtual machine; None if it may not.

        As long as it could be given, that is: a kept one holds up no drain, and comes back from no reservation.
        """
        space = self.space_of(address)
        if self.plan is None or not self.plan.keeps or space is None or not self.blocks[space.prefix].gives:
            return None
        return None if self._judge_place(address, space) is not None else space.prefix

    def is_empty(self, prefix: Prefix, since: float) -> bool:
        """Whether nothing in this block is leased, being given, or cooling."""
        space = self.spaces.get(prefix)
        return space is not None and not space.taken and not space.cooling(since)

    def state(self, address: Address, seconds: float, node: str) -> AddressState:
        """What an address is at a moment, with all that a person would ask next."""
        since = seconds - self.cooldown
        kind, idle = self._judge(address, since)
        space = self.space_of(address)
        held = self._held.get(address)
        return AddressState(
            network=self.name,
            node=node,
            address=address,
            kind=kind,
            block=None if space is None else space.prefix,
            lease=self.leases[address.family].get(address.value) or (held[0] if held else None),
            rested=None if idle is None else max(0.0, seconds - idle.seconds),
            released=None if idle is None else idle.wall,
            remaining=None if idle is None else min(self.cooldown, max(0.0, idle.seconds - since)),
            subnets=() if self.plan is None else self.plan.subnets,
        )

    def _judge(self, address: Address, since: float) -> tuple[StateKind, Idle | None]:
        """What an address is, and the rest it takes part in."""
        if address.value in self.leases[address.family]:
            return StateKind.LEASED, None
        if address in self._held:
            return StateKind.BEING_GIVEN, None
        space = self.space_of(address)
        idle = self._lingering_at(address) if space is None else space.find(address.value)
        return self._judge_place(address, space) or self._judge_rest(space, idle, since), idle

    def _judge_place(self, address: Address, space: BlockSpace | None) -> StateKind | None:
        plan = self.plan
        if plan is None:
            return StateKind.UNKNOWN_NETWORK
        if space is None:
            known = any(address in subnet for subnet in plan.subnets)
            return StateKind.UNASSIGNED if known else StateKind.FOREIGN
        if edge_name(space.prefix, address) is not None:
            return StateKind.EDGE
        if any(block.gateway == address for block in plan.blocks):
            return StateKind.GATEWAY
        if address in plan.reserved:
            return StateKind.RESERVED
        return StateKind.EXCLUDED if address in plan.excluded else None

    def _judge_rest(self, space: BlockSpace | None, idle: Idle | None, since: float) -> StateKind:
        if idle is not None and idle.seconds > since:
            return StateKind.COOLING
        if space is not None and not self.blocks[space.prefix].gives:
            return StateKind.CLOSED
        if self.plan is not None and self.plan.claimed:
            return StateKind.CLAIMED
        return StateKind.NEVER_USED if idle is None else StateKind.IDLE

    def _lingering_at(self, address: Address) -> Idle | None:
        found = (
            idle
            for idle in self._lingering
            if idle.block.family is address.family and idle.first <= address.value <= idle.last
        )
        return max(found, key=lambda idle: idle.seconds, default=None)

    def use(self, since: float) -> Use:
        """The sets that utilization is worked out from."""
        in_use = cooling = IntervalSet()
        for family, table in self.leases.items():
            in_use |= IntervalSet.of_numbers(family, ((value, value) for value in table))
            runs = ((idle.first, idle.last) for idle in self._rests(family) if idle.seconds > since)
            cooling |= IntervalSet.of_numbers(family, runs)
        subnets = () if self.plan is None else self.plan.subnets
        # Blocks that are only where claimed addresses lie are nobody's to count.
        blocks = () if self.plan is not None and self.plan.claimed else tuple(self.blocks)
        return Use(subnets, blocks, in_use, cooling, self._withheld())

    def rests(self) -> Iterator[Rest]:
        """All rests, as the ledger has them; an address that is only being given still rests there."""
        for family in Family:
            for idle in self._rests(family):
                yield idle.rest(self.name, self._boot)
        for _, held_idle in self._held.values():
            if held_idle is not None:
                yield held_idle.rest(self.name, self._boot)

    def _rests(self, family: Family) -> Iterator[Idle]:
        for prefix, space in self.spaces.items():
            if prefix.family is family:
                yield from space.resting()
        yield from (idle for idle in self._lingering if idle.block.family is family)

    # -- keeping it small

    def housekeeping(self, since: float, budget: int) -> list[Change]:
        """Changes that keep memory and file bounded; at most about `budget` rests are looked at."""
        changes: list[Change] = []
        for space in self.spaces.values():
            changes.extend(space.housekeeping(since, budget - len(changes)))
            if len(changes) >= budget:
                return changes
        # Only now that no rest inside a block is on file under another block's name may that name be forgotten.
        if self._lingering:
            changes.extend(self._forget(since))
        return changes

    def _forget(self, since: float) -> Iterable[Forgotten]:
        cooling = {idle.block for idle in self._lingering if idle.seconds > since}
        needed = {idle.block for _, idle in self._held.values() if idle is not None}
        needed.update(self.spaces, *(space.foreign() for space in self.spaces.values()))
        cooled = {idle.block for idle in self._lingering} - cooling - needed
        self._lingering = [idle for idle in self._lingering if idle.block not in cooled]
        return [Forgotten(self.name, block) for block in sorted(cooled)]


def _outermost(blocks: Iterable[BlockPlan]) -> tuple[BlockPlan, ...]:
    """The blocks without those that lie inside another one: these would give the same addresses a second time."""
    outermost: set[Prefix] = set()
    around: Prefix | None = None
    for prefix in sorted({block.prefix for block in blocks}):  # the wider one comes first
        if around is None or prefix not in around:
            outermost.add(prefix)
            around = prefix
    return tuple({block.prefix: block for block in blocks if block.prefix in outermost}.values())


def _without(runs: list[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    left: list[tuple[int, int]] = []
    for begin, end in runs:
        if last < begin or end < first:
            left.append((begin, end))
            continue
        if begin < first:
            left.append((begin, first - 1))
        if last < end:
            left.append((last + 1, end))
    return left
