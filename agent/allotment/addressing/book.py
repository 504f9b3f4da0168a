"""`LeaseBook`: all decisions about leases, and the memory of them.

The book decides and remembers; it never waits, reads a clock or writes. Memory may change only after the disk did,
so everything has two steps: `propose` and `remove` say what is to be written, and hold what they name; `commit`
makes it so once the ledger has it, `cancel` leaves everything as if nobody had asked. A network's plan
(`allotment.addressing.plan`) says what may be given; it never changes a lease.

One caller owns the book and calls it from one thread. Misuse is an `InternalError`, and changes nothing.
"""

from __future__ import annotations

import itertools
import math
import sys
from typing import TYPE_CHECKING

from allotment.addressing.choosing import Choice, choose, take_claimed, to_claim
from allotment.addressing.decisions import Ask, BookState, Claimed, Proposal, Removal
from allotment.addressing.errors import InternalError, UnknownNetwork
from allotment.addressing.holdings import Holdings
from allotment.addressing.index import LeaseIndex, shared_owner
from allotment.addressing.lease import Cause, Granted, Lease, LeaseKind, Moment, Released, Rest
from allotment.addressing.machines import ended_by, refuse_second, to_keep
from allotment.addressing.resting import LIMIT
from allotment.addressing.state import AddressState, StateKind
from allotment.addressing.utilization import Use

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from allotment.addressing.address import Address, Family, Prefix
    from allotment.addressing.errors import Exhausted
    from allotment.addressing.lease import AttachmentKey, Change, Owner, Supposed
    from allotment.addressing.plan import NetworkPlan

__all__ = ["HOUSEKEEPING", "Ask", "BookState", "Claimed", "LeaseBook", "Proposal", "Removal"]

HOUSEKEEPING = 2048
"""How many rests one call of `housekeeping` looks at, at most about."""


class LeaseBook:
    """The leases of one node. `rest_limit` is how many rested addresses a block remembers one by one."""

    def __init__(self, node: str, *, rest_limit: int = LIMIT) -> None:
        self._node = node
        self._rest_limit = rest_limit
        self._boot = ""
        self._sequence = 0
        self._networks: dict[str, Holdings] = {}
        self._index = LeaseIndex()
        self._giving: dict[AttachmentKey, Proposal] = {}
        self._removing: dict[int, Removal | Proposal] = {}  # by sequence

    # -- what is known

    def load(self, leases: Iterable[Lease], rests: Iterable[Rest], *, sequence: int, now: Moment) -> None:
        """Take in what the disk holds: once, before anything is decided (I15).

        Rests of another boot start their cooldown at `now`, since how long the machine was away isn't known (I13).

        Raises:
            InternalError: loaded before, or two leases have one address (I1).
        """
        if self._boot:
            raise InternalError("the lease book was loaded before; it is loaded once, when the agent starts")
        self._boot = sys.intern(now.boot)
        self._sequence = sequence
        for lease in leases:
            kept = self._index.shared(lease)
            self._holdings(kept.owner.network).load_lease(kept)
            self._index.add(kept)
            self._sequence = max(self._sequence, kept.sequence)
        # What rested in an earlier boot has rested longer than anything of this one; in between, the older first.
        ordered = sorted(rests, key=lambda rest: (rest.released.boot == now.boot, rest.released.seconds))
        for order, rest in enumerate(ordered):
            seconds = rest.released.seconds if rest.released.boot == now.boot else now.seconds
            self._holdings(rest.network).load_rest(rest, seconds, order)

    def apply(self, plans: Iterable[NetworkPlan], now: Moment) -> None:
        """Set the plans of all networks: a network that isn't among them gives nothing new from now on.

        Raises:
            InternalError: not loaded, or of another boot.
        """
        self._check(now)
        wanted = {plan.name: plan for plan in plans}
        for name in self._networks.keys() | wanted.keys():
            self._holdings(name).apply(wanted.get(name))
        self._drop_idle()

    def networks(self) -> tuple[str, ...]:
        """The names of the networks that have a plan, ascending."""
        return tuple(sorted(name for name, holdings in self._networks.items() if holdings.plan is not None))

    def giving(self, network: str) -> bool:
        """Whether an address of the network is held by a proposal that is neither committed nor cancelled."""
        return any(key[0] == network for key in self._giving)

    def plan(self, network: str) -> NetworkPlan | None:
        """The plan that is in force for a network."""
        holdings = self._networks.get(network)
        return None if holdings is None else holdings.plan

    # -- giving

    def find(self, key: AttachmentKey) -> tuple[Lease, ...]:
        """The leases of an attachment, IPv4 first; empty when it has none."""
        return self._index.of_key(key)

    def propose(self, ask: Ask, now: Moment, wall: float) -> Proposal:
        """Pick addresses for an attachment, and hold them: nobody else is given them until `commit` or `cancel`.

        A family is given when the plan has a block for it; it is all families or none.

        Raises:
            UnknownNetwork: no plan names the network.
            AllotmentError: the plan's refusal, whatever class it names.
            ConfigError: two addresses of one family are asked for.
            AddressUnavailable: an address asked for can't be had; the message says why.
            Exhausted: no address is left; the message has the numbers.
            TryAgain: another pod of the same virtual machine has its address here.
            InternalError: the attachment has leases (`find` comes first), or is being given some.
        """
        holdings = self._serving(ask, now, claimed=False)
        kept = [lease for lease in self._kept_for(ask.owner) if lease.sequence not in self._removing]
        choices = choose(holdings, ask.requested, now.seconds, one_block=ask.one_block, node=self._node, kept=kept)
        return self._hold(holdings, ask, choices, now, wall, kept)

    def claimed(self, network: str) -> bool:
        """Whether somebody else picks the network's addresses: then `to_claim` and `accept` stand for `propose`."""
        holdings = self._networks.get(network)
        return holdings is not None and holdings.plan is not None and holdings.plan.claimed

    def to_claim(self, ask: Ask, now: Moment) -> tuple[tuple[Family, Address | None], ...]:
        """What is to be claimed for an attachment: the families, IPv4 first, each with the address asked for.

        Raises:
            as `propose`
        """
        holdings = self._serving(ask, now, claimed=True)
        return tuple(to_claim(holdings, ask.requested, now.seconds, node=self._node))

    def accept(self, ask: Ask, addresses: Sequence[Address], now: Moment, wall: float) -> Proposal:
        """Hold the addresses that somebody else picked for an attachment, as `propose` does those it picks.

        Raises:
            as `propose`; AddressUnavailable also where an address is somebody's here, or of no subnet
        """
        holdings = self._serving(ask, now, claimed=True)
        picked = tuple(sorted(addresses))
        choices = take_claimed(holdings, picked, now.seconds, one_block=ask.one_block, node=self._node)
        return self._hold(holdings, ask, choices, now, wall)

    def _serving(self, ask: Ask, now: Moment, *, claimed: bool) -> Holdings:
        """The network's, if it gives this attachment anything at all, and in this way."""
        self._check(now)
        owner = ask.owner
        holdings = self._networks.get(owner.network)
        if holdings is None or holdings.plan is None:
            raise self._unknown(owner.network)
        if holdings.plan.refusal is not None:
            raise holdings.plan.refusal.made()
        if owner.key in self._giving or self._index.of_key(owner.key):
            raise InternalError(
                f"container {owner.container_id}, interface {owner.interface} already has a lease of network "
                f"{owner.network}, or is being given one; it must be looked up before it is asked for"
            )
        if owner.vm and (holdings.plan.claimed or holdings.plan.keeps):
            given = (change.lease for proposal in self._giving.values() for change in proposal.changes)
            refuse_second(owner, (*self._index.of_machine(owner), *given), self._node)
        if holdings.plan.claimed is not claimed:
            how = "by Claim alone" if holdings.plan.claimed else "by this node"
            raise InternalError(f"addresses of network {owner.network} are given {how}")
        return holdings

    def restore(self, claims: Iterable[Claimed], now: Moment, wall: float) -> Proposal:
        """Give addresses back to owners who are known to have them already, whatever the plans say of new ones.

        For leases that the disk lost, and for running pods that never had one. A claim of an address that has a lease,
        or lies in no block of this node, is silently not in the result; its owner may have several.

        Raises:
            InternalError: not loaded, `now` is of another boot, or an owner is being given an address right now.
        """
        self._check(now)
        claims = tuple(claims)
        for claim in claims:
            if claim.owner.key in self._giving:
                raise InternalError(f"container {claim.owner.container_id} is being given an address; restore it later")
        since = Moment(self._boot, now.seconds)
        changes: list[Granted] = []
        for claim in claims:
            holdings = self._networks.get(claim.owner.network)
            space = None if holdings is None else holdings.space_of(claim.address)
            taken = None if space is None else space.take_this(claim.address.value, math.inf)
            if holdings is None or space is None or taken is None:
                continue
            self._sequence += 1
            owner = shared_owner(claim.owner)
            lease = Lease(claim.address, space.prefix, owner, self._sequence, since, wall, claim.netns)
            holdings.hold(lease, taken[1])
            changes.append(Granted(lease))
        return self._opened(Proposal(tuple(changes)))

    def _hold(
        self,
        holdings: Holdings,
        ask: Ask,
        choices: list[Choice],
        now: Moment,
        wall: float,
        kept: Iterable[Lease] = (),
    ) -> Proposal:
        owner = shared_owner(ask.owner)
        since = Moment(self._boot, now.seconds)
        changes: list[Granted] = []
        for choice in choices:
            self._sequence += 1
            lease = Lease(choice.address, choice.block, owner, self._sequence, since, wall, ask.netns)
            if choice.over is None:
                holdings.hold(lease, choice.idle)
            changes.append(Granted(lease))
        resumed = {choice.over.sequence for choice in choices if choice.over is not None}
        ended = ended_by(owner, kept, resumed, since, wall)
        proposal = self._opened(Proposal(tuple(changes), ended))
        for change in ended:
            self._removing[change.lease.sequence] = proposal
        return proposal

    def _opened(self, proposal: Proposal) -> Proposal:
        for change in proposal.changes:
            self._giving[change.lease.owner.key] = proposal
        return proposal

    def commit(self, proposal: Proposal | Removal) -> None:
        """The ledger has it on disk: the leases are there for all to see, or are over and their addresses rest.

        Raises:
            InternalError: it isn't open (committed, cancelled, or of another book).
        """
        if isinstance(proposal, Removal):
            self._end(proposal, proposal.changes)
            self._carry_out(proposal.changes, proposal.kept)
            return
        self._settle(proposal)
        self._end(proposal, proposal.ended)
        self._carry_out(proposal.ended, proposal.changes)

    def _carry_out(self, released: Iterable[Released], granted: Iterable[Granted]) -> None:
        """These leases end and those begin; at an address of both it is handed over."""
        over = {(change.lease.owner.network, change.lease.address): change for change in released}
        for change in granted:
            lease = change.lease
            holdings = self._networks[lease.owner.network]
            before = over.pop((lease.owner.network, lease.address), None)
            if before is None:
                holdings.commit(lease)
            else:
                self._index.drop(before.lease)
                holdings.hand_over(before.lease, lease)
            self._index.add(lease)
        for ended in over.values():
            self._networks[ended.lease.owner.network].release(ended.lease, ended.at.seconds, ended.wall)
            self._index.drop(ended.lease)

    def cancel(self, proposal: Proposal | Removal) -> None:
        """The ledger doesn't have it: everything is as if nobody had asked (sequence numbers are still not reused).

        Raises:
            InternalError: it isn't open (committed, cancelled, or of another book).
        """
        if isinstance(proposal, Removal):
            self._end(proposal, proposal.changes)
            return
        self._settle(proposal)
        self._end(proposal, proposal.ended)
        taken_over = {change.lease.address for change in proposal.ended}
        for granted in reversed(proposal.changes):
            if granted.lease.address not in taken_over:
                self._networks[granted.lease.owner.network].cancel(granted.lease)

    # -- taking back

    def remove(self, leases: Iterable[Lease], now: Moment, wall: float, cause: Cause, detail: str) -> Removal:
        """Begin to end leases: those that are still exactly these, by address and sequence number (I7).

        Others (ended already, given to another owner since, or in an open Removal) are silently not in the result.
        What a virtual machine's pod leaves is kept for the machine, where the plan says so; not on a person's word.

        Raises:
            InternalError: not loaded, or `now` is of another boot.
        """
        self._check(now)
        at = Moment(self._boot, now.seconds)
        changes: dict[int, Released] = {}
        for lease in leases:
            held = self.at(lease.owner.network, lease.address)
            if held is not None and held.sequence == lease.sequence and held.sequence not in self._removing:
                changes[held.sequence] = Released(held, at, wall, cause, detail)
        removal = Removal(tuple(changes.values()), self._to_keep(tuple(changes.values())))
        for number in changes:
            self._removing[number] = removal
        return removal

    def _to_keep(self, changes: Sequence[Released]) -> tuple[Granted, ...]:
        kept: list[Granted] = []
        found = to_keep(
            changes,
            block_of=lambda lease: self._networks[lease.owner.network].may_keep(lease.address),
            of_machine=self._index.of_machine,
        )
        for change, owner, block in found:
            self._sequence += 1
            lease = Lease(change.lease.address, block, shared_owner(owner), self._sequence, change.at, change.wall)
            kept.append(Granted(lease))
        return tuple(kept)

    def _kept_for(self, owner: Owner) -> tuple[Lease, ...]:
        return tuple(lease for lease in self._index.of_machine(owner) if lease.owner.kind is LeaseKind.VM)

    def kept(self) -> tuple[Lease, ...]:
        """The leases by which addresses are kept for virtual machines, in no order."""
        return tuple(lease for lease in self._index.of_machines() if lease.owner.kind is LeaseKind.VM)

    def may_keep(self, lease: Lease) -> bool:
        """Whether its address may be kept for a virtual machine, as things are now."""
        holdings = self._networks.get(lease.owner.network)
        return holdings is not None and holdings.may_keep(lease.address) is not None

    # -- looking

    def leases(self, network: str | None = None) -> Iterator[Lease]:
        """All leases, or those of one network, as they are at the time of the call."""
        chosen = self._networks.values() if network is None else filter(None, [self._networks.get(network)])
        return iter([lease for holdings in chosen for table in holdings.leases.values() for lease in table.values()])

    def at(self, network: str, address: Address) -> Lease | None:
        """The lease of an address."""
        holdings = self._networks.get(network)
        return None if holdings is None else holdings.leases[address.family].get(address.value)

    def of_workload(self, network: str | None, workload: str) -> tuple[Lease, ...]:
        """The leases of a workload (`<namespace>.<pod>`) in a network (None: in all), IPv4 first."""
        return self._index.of_workload(network, workload)

    def of_container(self, container_id: str, interface: str) -> tuple[Lease, ...]:
        """The leases of a container's interface in every network, IPv4 first."""
        return self._index.of_container(container_id, interface)

    def state_of(self, network: str, address: Address, now: Moment) -> AddressState:
        """What an address of a network is now; `str()` of it says so in words.

        Raises:
            InternalError: not loaded, or `now` is of another boot.
        """
        self._check(now)
        holdings = self._networks.get(network)
        if holdings is None:
            return AddressState(network, self._node, address, StateKind.UNKNOWN_NETWORK)
        return holdings.state(address, now.seconds, self._node)

    def use(self, network: str, now: Moment) -> Use:
        """The sets of addresses that utilization is worked out from; empty for an unknown network.

        Raises:
            InternalError: not loaded, or `now` is of another boot.
        """
        self._check(now)
        holdings = self._networks.get(network)
        return Use() if holdings is None else holdings.use(now.seconds - holdings.cooldown)

    def may_grow(self, network: str, error: Exhausted) -> bool:
        """Whether a further block would help, and may be had of every family that is short."""
        plan = self.plan(network)
        return plan is not None and bool(error.families) and all(family in plan.may_grow for family in error.families)

    def is_stray(self, lease: Lease) -> bool:
        """Whether a pod has an address of a block that is no longer this node's, so that another may give it."""
        holdings = self._networks.get(lease.owner.network)
        return holdings is not None and holdings.is_stray(lease)

    def strays(self, network: str) -> tuple[Lease, ...]:
        """The leases of a network that are astray (`is_stray`)."""
        holdings = self._networks.get(network)
        return () if holdings is None else holdings.strays()

    def is_empty(self, network: str, block: Prefix, now: Moment) -> bool:
        """Whether nothing in one of the network's blocks is leased, being given, or cooling.

        Raises:
            InternalError: not loaded, or `now` is of another boot.
        """
        self._check(now)
        holdings = self._networks.get(network)
        return holdings is not None and holdings.is_empty(block, now.seconds - holdings.cooldown)

    # -- keeping

    def suppose_rested(self, networks: Iterable[str], now: Moment, wall: float) -> tuple[Supposed, ...]:
        """Take all that is neither leased nor resting in these networks to have been released now.

        For a ledger that was lost: which addresses were cooling isn't known, so any may have been (I3). In force in
        memory at once, which gives nothing away; to be written all the same, and again if that fails.

        Raises:
            InternalError: not loaded, or `now` is of another boot.
        """
        self._check(now)
        chosen = [self._networks[name] for name in networks if name in self._networks]
        return tuple(change for holdings in chosen for change in holdings.suppose_rested(now.seconds, wall))

    def housekeeping(self, now: Moment) -> tuple[Change, ...]:
        """Changes for the ledger that keep memory and file bounded and up to date; a bounded number per call.

        They are in force in memory at once: each leaves what rests, and since when it counts as resting, at least
        as long as it was, so a change that doesn't reach the disk does no harm. Call again at once while it returns
        something, else from time to time.

        Raises:
            InternalError: not loaded, or `now` is of another boot.
        """
        self._check(now)
        changes: list[Change] = []
        for holdings in self._networks.values():
            if len(changes) >= HOUSEKEEPING:
                break
            changes.extend(holdings.housekeeping(now.seconds - holdings.cooldown, HOUSEKEEPING - len(changes)))
        self._drop_idle()
        return tuple(changes)

    def snapshot(self) -> BookState:
        """What the disk must hold: what is committed, and nothing of what is only proposed."""
        rests = itertools.chain.from_iterable(holdings.rests() for holdings in self._networks.values())
        return BookState(tuple(self.leases()), tuple(rests), self._sequence)

    # -- within

    def _check(self, now: Moment) -> None:
        if now.boot != self._boot:
            raise InternalError(
                f"the lease book knows boot {self._boot!r}, and was asked in boot {now.boot!r}"
                if self._boot
                else "the lease book must be loaded before anything is asked of it (I15)"
            )

    def _holdings(self, network: str) -> Holdings:
        holdings = self._networks.get(network)
        if holdings is None:
            name = sys.intern(network)
            holdings = self._networks[name] = Holdings(name, self._boot, self._rest_limit)
        return holdings

    def _drop_idle(self) -> None:
        for name in [name for name, holdings in self._networks.items() if holdings.idle]:
            del self._networks[name]

    def _unknown(self, network: str) -> UnknownNetwork:
        known = ", ".join(self.networks())
        there = f"the networks here are: {known}" if known else "there is no network here yet"
        return UnknownNetwork(f"network {network} is not known on {self._node}; {there}")

    def _settle(self, proposal: Proposal) -> None:
        keys = [granted.lease.owner.key for granted in proposal.changes]
        for key in keys:
            if self._giving.get(key) is not proposal:
                raise InternalError("this proposal is not open: committed or cancelled before, or of another book")
        for key in keys:
            self._giving.pop(key, None)  # twice the same when it is dual-stack

    def _end(self, removal: Proposal | Removal, ended: Iterable[Released]) -> None:
        numbers = [change.lease.sequence for change in ended]
        for number in numbers:
            if self._removing.get(number) is not removal:
                raise InternalError("this removal is not open: committed or cancelled before, or of another book")
        for number in numbers:
            del self._removing[number]
