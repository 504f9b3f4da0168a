"""`LeaseBook` against a naive model and a naive ledger, over any order of all that can happen to it.

Asked, committed, cancelled, removed, repeated with old knowledge; time that passes, stands still or steps back;
plans that change, vanish and return with other blocks; a crash at any point, in this boot or into the next one, with
what was in flight on disk or not. After every step the disk and the book hold the same.

I1, I3, I4, I7, I13 and I15 are checked where they could break, and named there.
"""

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allotment.addressing.address import Address, parse_prefix
from allotment.addressing.book import Ask, BookState, LeaseBook
from allotment.addressing.edges import block_gateway, unusable
from allotment.addressing.errors import AddressUnavailable, Exhausted, InternalError, NetworkDraining, UnknownNetwork
from allotment.addressing.intervals import IntervalSet
from allotment.addressing.lease import Cause, Forgotten, Granted, Moment, Owner, Released, Rest, Rested, Supposed
from allotment.addressing.plan import BlockPlan, Layer, NetworkPlan, Refusal
from allotment.addressing.state import StateKind
from allotment.addressing.utilization import of_block, of_network

V4 = [parse_prefix(text) for text in ("10.0.0.0/29", "10.0.0.8/30", "10.0.0.12/31", "10.0.0.0/28", "10.0.0.14/32")]
V6 = [parse_prefix(text) for text in ("fd00::/126", "fd00::4/127", "fd00::/125")]
SUBNETS = (parse_prefix("10.0.0.0/28"), parse_prefix("fd00::/125"))
UNIVERSE = [Address(subnet.family, subnet.value + step) for subnet in SUBNETS for step in range(subnet.size)]
NETWORKS = ("blue", "green")
MOSTLY_BLUE = st.sampled_from(("blue", "blue", "blue", "blue", "green"))
COOLDOWNS = (0.0, 5.0, 30.0)


class NaiveLedger:
    """Rows as the real one keeps them; what it is told must fit them exactly."""

    def __init__(self):
        self.leases = {}
        self.rests = []
        self.granted = 0

    def write(self, changes):
        for change in changes:
            match change:
                case Granted(lease):
                    place = (lease.owner.network, lease.address)
                    assert place not in self.leases, "I1"
                    self.leases[place] = lease
                    self.granted = max(self.granted, lease.sequence)
                    self.cut(*place)
                case Released(lease, at, wall):
                    assert self.leases.pop((lease.owner.network, lease.address)) == lease
                    self.rests.append(Rest(lease.owner.network, lease.block, lease.address, lease.address, at, wall))
                case Rested(before, after):
                    assert {piece for rest in before for piece in addresses(rest)} == set(addresses(after))
                    assert all(rest in self.rests for rest in before), "only what is on file can be replaced"
                    self.rests = [rest for rest in self.rests if rest not in before]
                    self.rests.append(after)
                case Supposed(rest):
                    self.rests.append(rest)
                case Forgotten(network, block):
                    self.rests = [rest for rest in self.rests if (rest.network, rest.block) != (network, block)]
        resting = [(rest.network, address) for rest in self.rests for address in addresses(rest)]
        assert len(resting) == len(set(resting))
        assert not self.leases.keys() & set(resting)

    def cut(self, network, address):
        for rest in [rest for rest in self.rests if rest.network == network and rest.first <= address <= rest.last]:
            self.rests.remove(rest)
            if rest.first < address:
                self.rests.append(dataclasses.replace(rest, last=address + -1))
            if address < rest.last:
                self.rests.append(dataclasses.replace(rest, first=address + 1))

    def state(self):
        return BookState(tuple(self.leases.values()), tuple(self.rests))


def addresses(rest):
    return [Address(rest.first.family, value) for value in range(rest.first.value, rest.last.value + 1)]


def rarely(draw):
    return draw(st.integers(0, 7)) == 0


@st.composite
def block_plans(draw, prefixes=tuple(V4 + V6)):
    prefix = draw(st.sampled_from(prefixes))
    gateway = None if rarely(draw) else block_gateway(prefix)
    return BlockPlan(prefix, prefix.length, gateway, gives=not rarely(draw))


@st.composite
def plans(draw, name):
    if rarely(draw):
        return None
    blocks = draw(st.lists(block_plans(), unique_by=lambda block: block.prefix, min_size=1, max_size=4))
    some = st.lists(st.sampled_from(UNIVERSE), max_size=3)
    return NetworkPlan(
        name,
        Layer.L3,
        SUBNETS,
        tuple(blocks),
        draw(st.sampled_from(COOLDOWNS)),
        excluded=IntervalSet.of(*draw(some)),
        reserved=IntervalSet.of(*draw(some)),
        refusal=Refusal(NetworkDraining, "going away") if rarely(draw) else None,
        no_more="that is all",
    )


@st.composite
def edits(draw, plan):
    """The plan with one thing changed: a block more or less, or what may be given."""
    some = st.lists(st.sampled_from(UNIVERSE), max_size=3).map(lambda addresses: IntervalSet.of(*addresses))
    match draw(st.sampled_from(["less", "more", "other", "excluded", "reserved", "cooldown", "refusal"])):
        case "less":
            return dataclasses.replace(plan, blocks=plan.blocks[1:])
        case "more" | "other" as what:
            block = draw(block_plans())
            kept = tuple(each for each in plan.blocks if what == "more" and each.prefix != block.prefix)
            return dataclasses.replace(plan, blocks=(*kept, block))
        case "excluded":
            return dataclasses.replace(plan, excluded=draw(some))
        case "reserved":
            return dataclasses.replace(plan, reserved=draw(some))
        case "cooldown":
            return dataclasses.replace(plan, cooldown=draw(st.sampled_from(COOLDOWNS)))
        case _:
            return dataclasses.replace(plan, refusal=None)


class Book(RuleBasedStateMachine):
    rest_limit = 16_384

    @initialize(data=st.data())
    def start(self, data):
        self.ledger = NaiveLedger()
        self.boot = 1
        self.seconds = 100.0
        self.released = {}  # (network, address) -> since when it rests, on the present clock
        self.ever = []  # every lease that was ever on disk
        self.cooldowns = dict.fromkeys(NETWORKS, 1200.0)
        self.plans = dict.fromkeys(NETWORKS)
        self.containers = 0
        self.load()
        self.plan_anew(data)

    def load(self):
        self.book = LeaseBook("node-3", rest_limit=self.rest_limit)
        with pytest.raises(InternalError, match="I15"):
            self.book.apply([], self.now)
        self.highest = self.ledger.granted
        self.open = []
        self.book.load(self.ledger.leases.values(), self.ledger.rests, sequence=self.ledger.granted, now=self.now)

    @property
    def now(self):
        return Moment(f"boot-{self.boot}", self.seconds)

    # -- what may be given

    def blocks(self, network):
        """The blocks that count: those that don't lie inside another one of the plan."""
        plan = self.plans[network]
        every = () if plan is None else plan.blocks
        return [b for b in every if not any(b.prefix in o.prefix and o.prefix != b.prefix for o in every)]

    def held(self, network):
        return {
            lease.address: lease
            for proposal in self.open
            for change in proposal.changes
            if isinstance(change, Granted)
            for lease in [change.lease]
            if lease.owner.network == network
        }

    def cooling(self, network, address):
        since = self.released.get((network, address))
        return since is not None and since > self.seconds - self.cooldowns[network]

    def may_give(self, network, address):
        """I4 and I1: whether a plan lets the address be given, and nobody has it; cooling aside."""
        plan = self.plans[network]
        block = next((b for b in self.blocks(network) if address in b.prefix), None)
        return (
            block is not None
            and block.gives
            and address not in unusable(block.prefix)
            and address not in plan.reserved
            and address not in plan.excluded
            and not any(address == other.gateway for other in plan.blocks)
            and (network, address) not in self.ledger.leases
            and address not in self.held(network)
        )

    def free(self, network, family):
        return [
            a for a in UNIVERSE if a.family is family and self.may_give(network, a) and not self.cooling(network, a)
        ]

    def only_block(self, network, family):
        """Which block `one_block` leaves: None for any, else a list of one or none."""
        labels = {
            lease.block
            for lease in [*self.book.leases(network), *self.held(network).values()]
            if lease.address.family is family
        }
        giving = [b.prefix for b in self.blocks(network) if b.gives]
        return [block for block in giving if block in labels][:1] if labels else None

    # -- rules

    @rule(network=MOSTLY_BLUE, pod=st.integers(0, 2), times=st.integers(1, 4))
    def give(self, network, pod, times):
        """The ordinary course: asked, written, committed."""
        for _ in range(times):
            before = len(self.open)
            self.ask(network, False, None, pod)
            if len(self.open) > before:
                self.decide(self.open.pop(), True)

    @rule(
        network=MOSTLY_BLUE,
        one_block=st.booleans(),
        requested=st.none() | st.sampled_from(UNIVERSE),
        pod=st.integers(0, 2),
    )
    def ask_for(self, network, one_block, requested, pod):
        self.ask(network, one_block, requested, pod)

    def ask(self, network, one_block, requested, pod):
        self.containers += 1
        owner = Owner(network, f"container-{self.containers}", "eth0", "default", f"pod-{pod}")
        ask = Ask(owner, "/run/netns/x", () if requested is None else (requested,), one_block)
        plan = self.plans[network]
        families = sorted({block.prefix.family for block in self.blocks(network)})
        only = {family: self.only_block(network, family) if one_block else None for family in families}
        free = {
            family: [a for a in self.free(network, family) if only[family] is None or in_any(a, only[family])]
            for family in families
        }
        remembered = {a: rest for rest in self.ledger.rests if rest.network == network for a in addresses(rest)}
        before = self.book.snapshot().canonical()
        try:
            proposal = self.book.propose(ask, self.now, 5.0)
        except UnknownNetwork:
            assert plan is None
        except NetworkDraining:
            assert plan.refusal is not None
        except AddressUnavailable:
            assert requested is not None
            assert requested not in free.get(requested.family, [])
        except Exhausted:
            needed = [f for f in families if requested is None or requested.family is not f]
            assert not families or any(not free[family] for family in needed)
        else:
            assert plan is not None
            assert plan.refusal is None, "I4"
            self.check_given(proposal, families, free, remembered, requested)
            self.open.append(proposal)
            return
        after = self.book.snapshot().canonical()
        assert after == before, "a refusal leaves nothing behind"

    def check_given(self, proposal, families, free, remembered, requested):
        assert [lease.address.family for lease in proposal.leases] == families, "all families or none"
        assert requested is None or requested in [lease.address for lease in proposal.leases]
        for lease in proposal.leases:
            assert lease.address in free[lease.address.family], "I1, I3, I4, I13"
            assert lease.address in lease.block
            assert lease.sequence > self.highest, "never reused"
            self.highest = lease.sequence
            if lease.address != requested:
                self.check_order(lease, free[lease.address.family], remembered)

    def check_order(self, lease, free, remembered):
        """I3: never-used ones first, ascending within a block, then the longest idle of all."""
        if lease.address not in remembered:
            assert lease.address == min(a for a in free if a in lease.block and a not in remembered)
            return
        assert all(a in remembered for a in free)
        self.check_longest_idle(lease, free)

    def check_longest_idle(self, lease, free):
        network = lease.owner.network
        assert self.released[network, lease.address] == min(self.released[network, a] for a in free)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), kept=st.sampled_from([True, True, False]))
    def settle(self, data, kept):
        self.decide(self.open.pop(data.draw(st.integers(0, len(self.open) - 1))), kept)

    def decide(self, decided, kept):
        if kept:
            self.write(decided.changes)
            self.book.commit(decided)
        else:
            self.book.cancel(decided)
        for again in (self.book.commit, self.book.cancel):
            if decided.changes:
                with pytest.raises(InternalError):
                    again(decided)

    def write(self, changes):
        self.ledger.write(changes)
        for change in changes:
            if isinstance(change, Granted):
                self.ever.append(change.lease)
                self.released.pop((change.lease.owner.network, change.lease.address), None)
            elif isinstance(change, Released):
                self.released[change.lease.owner.network, change.lease.address] = change.at.seconds

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def remove(self, data):
        """I7: only leases that are still exactly these are ended, whatever has the address now."""
        named = data.draw(st.lists(st.sampled_from(self.ever), min_size=1, max_size=3))
        ending = {c.lease for removal in self.open for c in removal.changes if isinstance(c, Released)}
        removal = self.book.remove(named, self.now, 6.0, Cause.DEL, "test")
        expected = {lease for lease in named if lease in self.ledger.leases.values()} - ending
        assert {change.lease for change in removal.changes} == expected, "I7"
        assert len(removal.changes) == len(expected)
        assert all(lease in self.book.find(lease.owner.key) for lease in removal.leases)
        self.open.append(removal)

    @precondition(lambda self: self.ledger.leases)
    @rule(data=st.data(), times=st.integers(1, 4))
    def take_back(self, data, times):
        """The ordinary course: named, written, committed."""
        for _ in range(times):
            leases = sorted(self.ledger.leases.values(), key=lambda lease: lease.sequence)
            if leases:
                lease = data.draw(st.sampled_from(leases))
                self.decide(self.book.remove([lease], self.now, 6.0, Cause.DEL, "test"), True)

    @precondition(lambda self: self.ledger.leases or self.open)
    @rule()
    def ask_again_without_looking(self):
        leases = [*self.ledger.leases.values(), *(lease for proposal in self.open for lease in proposal.leases)]
        for lease in leases[:1]:
            plan = self.plans[lease.owner.network]
            if plan is not None and plan.refusal is None and lease.owner.key in self.keys():
                with pytest.raises(InternalError, match="looked up"):
                    self.book.propose(Ask(lease.owner), self.now, 7.0)

    def keys(self):
        open_keys = {lease.owner.key for network in NETWORKS for lease in self.held(network).values()}
        return open_keys | {lease.owner.key for lease in self.ledger.leases.values()}

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 5.0, 30.0, 1201.0, -3.0]))
    def pass_time(self, seconds):
        """I13: also a clock that stands still, or is read out of order."""
        self.seconds += seconds

    @rule(network=MOSTLY_BLUE, data=st.data(), anew=st.integers(0, 7))
    def edit_plan(self, network, data, anew):
        plan = self.plans[network]
        if plan is None or anew == 0:
            self.plan_anew(data)
            return
        self.plans[network] = data.draw(edits(plan))
        self.tell_plans()

    def plan_anew(self, data):
        self.plans = {name: data.draw(plans(name)) for name in NETWORKS}
        self.tell_plans()

    def tell_plans(self):
        for name, plan in self.plans.items():
            if plan is not None:
                self.cooldowns[name] = plan.cooldown
        self.book.apply([plan for plan in self.plans.values() if plan is not None], self.now)
        for network in NETWORKS:
            assert self.book.plan(network) == self.plans[network]

    @rule()
    def keep_house(self):
        for change in self.book.housekeeping(self.now):
            if isinstance(change, Forgotten):
                lost = [r for r in self.ledger.rests if (r.network, r.block) == (change.network, change.block)]
                assert not any(self.cooling(r.network, a) for r in lost for a in addresses(r)), "I3"
                for rest in lost:  # had its rest, and a cooldown that grows later on doesn't bring it back
                    for address in addresses(rest):
                        del self.released[rest.network, address]
            self.write([change])  # one by one: a rest may have been given to another block just before

    @rule(network=MOSTLY_BLUE)
    def lose_track(self, network):
        """I3: what was never used may have been, as far as is known, and rests."""
        changes = self.book.suppose_rested([network, "never heard of"], self.now, 0.0)
        self.write(changes)
        for change in changes:
            self.released |= {(network, address): self.seconds for address in addresses(change.rest)}

    @rule(into_next_boot=st.booleans(), data=st.data())
    def crash(self, into_next_boot, data):
        """I13, I15: what is on disk counts, and nothing else; a rest of another boot starts its cooldown anew."""
        for proposal in self.open:
            if data.draw(st.booleans()):
                self.write(proposal.changes)
        if into_next_boot:
            self.boot += 1
            self.seconds = 10.0
        on_disk = {
            (rest.network, address): self.seconds if rest.released.boot != self.now.boot else rest.released.seconds
            for rest in self.ledger.rests
            for address in addresses(rest)
        }
        self.released = on_disk
        self.cooldowns = dict.fromkeys(NETWORKS, 1200.0)
        self.load()
        self.tell_plans()

    # -- what always holds

    @invariant()
    def disk_and_memory_hold_the_same(self):
        held = self.book.snapshot()
        assert held.sequence >= self.highest
        assert dataclasses.replace(held.canonical(), sequence=0) == self.ledger.state().canonical()

    @invariant()
    def what_is_found_is_what_there_is(self):
        leases = list(self.ledger.leases.values())
        assert sorted(lease.sequence for lease in self.book.leases()) == sorted(lease.sequence for lease in leases)
        for lease in leases:
            owner = lease.owner
            assert self.book.at(owner.network, lease.address) == lease
            assert lease in self.book.find(owner.key)
            assert lease in self.book.of_container(owner.container_id, owner.interface)
            assert lease in self.book.of_workload(owner.network, owner.workload)
        for pod in range(3):
            found = self.book.of_workload("blue", f"default.pod-{pod}")
            assert list(found) == sorted(found, key=lambda lease: lease.address)

    @rule()
    def look(self):
        """States, utilization and the model agree on every address."""
        for network in NETWORKS:
            states = {a: self.book.state_of(network, a, self.now) for a in UNIVERSE}
            for address, state in states.items():
                assert state.available == (self.may_give(network, address) and not self.cooling(network, address))
                assert (state.kind is StateKind.LEASED) == ((network, address) in self.ledger.leases)
                assert str(state)
            use = self.book.use(network, self.now)
            for block in self.blocks(network):
                counts = of_block(use, block.prefix)
                inside = [a for a in UNIVERSE if a in block.prefix]
                free = {StateKind.IDLE, StateKind.NEVER_USED, StateKind.CLOSED}
                picked = [a for a in inside if states[a].kind is StateKind.BEING_GIVEN]  # no lease as yet
                assert counts.available == sum(states[a].kind in free for a in inside) + sum(
                    not self.blocked(network, block, a) for a in picked
                )
                leased = [a for a in inside if (network, a) in self.ledger.leases]
                assert counts.in_use == len(leased)
                assert counts.cooling == sum(self.cooling(network, a) for a in {*inside} - {*leased, *picked})
            whole = of_network(use)
            assert whole.in_use <= len([a for a in UNIVERSE if (network, a) in self.ledger.leases])

    def blocked(self, network, block, address):
        """Whether it was picked before the plan forbade it."""
        plan = self.plans[network]
        return (
            address in plan.reserved
            or address in plan.excluded
            or address in unusable(block.prefix)
            or any(address == other.gateway for other in plan.blocks)
        )


class SmallBook(Book):
    """The same with old rests joined early, so that their order is forgotten, and nothing else."""

    rest_limit = 1

    def check_longest_idle(self, lease, free):
        pass

    def cooling(self, network, address):
        """A joined run counts as old as its youngest, which matters when a cooldown grows afterwards."""
        row = next((r for r in self.ledger.rests if r.network == network and r.first <= address <= r.last), None)
        if row is None:
            return False
        since = row.released.seconds if row.released.boot == self.now.boot else self.released[network, address]
        assert since >= self.released[network, address]
        return since > self.seconds - self.cooldowns[network]


def in_any(address, prefixes):
    return any(address in prefix for prefix in prefixes)


class LongBook(Book):
    """The same, for longer."""


class LongSmallBook(SmallBook):
    """The same, for longer."""


QUICK = settings(max_examples=20, stateful_step_count=40, deadline=None)
LONG = settings(max_examples=600, stateful_step_count=60, deadline=None)
Book.TestCase.settings = SmallBook.TestCase.settings = QUICK
LongBook.TestCase.settings = LongSmallBook.TestCase.settings = LONG
TestBook = Book.TestCase
TestBookWithJoinedRests = SmallBook.TestCase
TestBookLong = pytest.mark.slow(LongBook.TestCase)
TestBookWithJoinedRestsLong = pytest.mark.slow(LongSmallBook.TestCase)
