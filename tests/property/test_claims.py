"""What is owed about Claims, over any order of requests, crashes, lost and late writes, and a lagging watch (ADR 0011).

The API is the fake server's store, with its rules for finalizers and preconditions; agent and controller take the steps
that they take, one at a time. Never does a pod that was told an address lose its Claim (I1, I6), also when the ledger
is lost; and in the end no Claim is left that nobody needs (I5), and no lease without one (I15).
"""

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allotment.addressing.address import Address, Family, parse_address, parse_prefix
from allotment.addressing.errors import AllotmentError
from allotment.addressing.lease import Lease, Moment, Owner
from allotment.api.claim import Claim
from allotment.api.meta import LEDGER_ANNOTATION, NODE_FINALIZER
from allotment.api.names import pool_name
from allotment.kube.resources import CLAIMS
from allotment.node.claims.owed import Known, Step, owed
from allotment.node.claims.wanted import Fit, claim_for, fit, key_of_claim, key_of_lease, verdict
from allotment.testing.api_objects import Objects, Refusal

NET, POOL = "blue", pool_name("blue", Family.V4)
BLOCK = parse_prefix("192.0.2.0/24")
LEFT = 30.0
CONTAINER = st.sampled_from(["c1", "c2"])


def key(container):
    return (POOL, container, "eth0")


def wanted(container, ledger, address=None):
    owner = Owner(NET, container, "eth0", "shop", container)
    return claim_for(owner, Family.V4, address, node="n1", ledger_id=ledger, pod=None)


class Claims(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.api = Objects()
        self.held = {}  # the controller's: address to the UID of its Claim
        self.leases = {}  # the ledger's, by container
        self.told = {}  # what runs, by container: the address that its pod was told
        self.ledger, self.ledgers, self.sequence = "L1", 1, 0
        self.now = 1000.0
        self.late = []  # writes of a dead agent that are still on their way
        self.start()

    def start(self):
        self.busy, self.left, self.ended, self.snapshot = {}, {}, set(), None

    def claims(self):
        return [msgspec.convert(item, Claim) for item in self.api.list(CLAIMS)]

    def claim(self, container):
        return next((each for each in self.claims() if key_of_claim(each) == key(container)), None)

    def attempt(self, write):
        try:
            write()
        except Refusal:
            return False
        return True

    # -- the agent's requests

    @rule(container=CONTAINER, steps=st.sampled_from([1, 2, 5]), lost=st.booleans(), bound=st.booleans())
    def an_add_goes_on(self, container, steps, lost, bound):
        """By so many steps; it asks until it is told, with the controller at work meanwhile or not."""
        for _ in range(steps):
            if container not in self.busy:
                self.add_begins(container)
            elif self.busy[container] is None:
                self.ask_for_claim(container, lost=lost and steps == 1)
            else:
                if bound:
                    self.bind()
                    self.watch_tells()
                self.take_address(container)

    def add_begins(self, container):
        if container in self.leases:
            self.told[container] = self.leases[container].address
        elif container not in self.told:
            self.busy.setdefault(container, None)
            self.left[key(container)] = self.now + LEFT
            self.ended.discard(key(container))

    def ask_for_claim(self, container, *, lost):
        want = wanted(container, self.ledger)
        if self.attempt(lambda: self.api.create(CLAIMS, msgspec.to_builtins(want))):
            if not lost:
                self.busy[container] = self.claim(container)
            return
        found = self.claim(container)
        match fit(found, want):
            case Fit.OURS:
                self.busy[container] = found
            case Fit.PAST if not found.metadata.deleting:
                self.delete(found)
            case Fit.PAST:
                self.let_go(found)

    def take_address(self, container):
        """As far as the watch has told, which may be less than what is."""
        mine = self.busy[container]
        seen = [each for each in self.snapshot or () if each.metadata.uid == mine.metadata.uid]
        try:
            address = verdict((seen or [mine])[0], NET, "n1")
        except AllotmentError:
            self.an_add_gives_up(container)
            return
        if isinstance(address, Address):
            self.lease(container, address)
            self.told[container] = address
            del self.busy[container]

    @rule(container=CONTAINER)
    def an_add_gives_up(self, container):
        self.busy.pop(container, None)

    @rule(container=CONTAINER)
    def a_del(self, container):
        self.told.pop(container, None)
        self.leases.pop(container, None)
        self.busy.pop(container, None)
        self.left.pop(key(container), None)
        self.ended.add(key(container))

    def lease(self, container, address):
        self.sequence += 1
        owner = Owner(NET, container, "eth0", "shop", container)
        self.leases[container] = Lease(address, BLOCK, owner, self.sequence, Moment("b", self.now), 0.0)

    # -- the agent's upkeep

    @rule(news=st.booleans(), fate=st.sampled_from(["", "", "late", "crash"]), seconds=st.sampled_from([0.0, LEFT]))
    def the_upkeep(self, news, fate, seconds):
        """With what the watch has told so far; what it decides may come true much later, when it has died since."""
        self.now += seconds
        if news:
            self.watch_tells()
        for due in self.due():
            self.do(due, late=fate == "late")
        if fate:
            self.start()

    def watch_tells(self):
        first, self.snapshot = self.snapshot is None, self.claims()
        if first:
            for claim in self.snapshot:
                self.left.setdefault(key_of_claim(claim), self.now + LEFT)

    def due(self):
        if self.snapshot is None:
            return ()
        known = Known(
            ledger_id=self.ledger,
            now=Moment("b", self.now),
            claims=self.snapshot,
            leases_of=lambda container, _: filter(None, [self.leases.get(container)]),
            claimed=list(self.leases.values()),
            networks={POOL: NET},
            busy={key(container) for container in self.busy},
            left=self.left,
            ended=self.ended,
        )
        found = owed(known)
        self.left = {each: until for each, until in self.left.items() if each not in found.held}
        return found.due

    def do(self, due, *, late=False):
        claim = due.claim
        match due.step:
            case Step.DELETE | Step.LET_GO:
                write = self.delete if due.step is Step.DELETE else self.let_go
                if late:
                    self.late.append((write, claim))
                else:
                    write(claim)
            case Step.ADOPT:
                self.lease(claim.spec.pod.container_id, parse_address(claim.status.value))
                self.ended.add(key_of_claim(claim))
            case Step.STAMP:
                self.patch(claim, {"metadata": {"annotations": {LEDGER_ANNOTATION: self.ledger}}})
            case Step.CLAIM:
                want = wanted(due.lease.owner.container_id, self.ledger, due.lease.address)
                self.attempt(lambda: self.api.create(CLAIMS, msgspec.to_builtins(want)))

    def delete(self, claim):
        meta = claim.metadata
        guard = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        self.attempt(lambda: self.api.delete(CLAIMS, claim.name, meta.namespace, guard))

    def let_go(self, claim):
        rest = [each for each in claim.metadata.finalizers if each != NODE_FINALIZER]
        self.patch(claim, {"metadata": {"finalizers": rest}})

    def patch(self, claim, change):
        meta = claim.metadata
        change["metadata"] |= {"uid": meta.uid, "resourceVersion": meta.resource_version}
        self.attempt(lambda: self.api.patch(CLAIMS, claim.name, meta.namespace, change))

    @precondition(lambda self: self.late)
    @rule()
    def a_late_write_arrives(self):
        write, claim = self.late.pop(0)
        write(claim)

    # -- the rest of the world

    @rule()
    def the_ledger_is_lost(self):
        self.leases = {}
        self.ledgers += 1
        self.ledger = f"L{self.ledgers}"
        self.start()

    @rule(container=CONTAINER)
    def the_garbage_collector_deletes(self, container):
        claim = self.claim(container)
        if claim is not None:
            self.api.delete(CLAIMS, claim.name, "shop")

    @rule(frees=st.booleans())
    def the_controller_works(self, frees):
        self.bind()
        if frees:
            there = {claim.metadata.uid for claim in self.claims()}
            self.held = {address: uid for address, uid in self.held.items() if uid in there}

    def bind(self):
        for claim in self.claims():
            if claim.status.value or claim.metadata.deleting:
                continue
            own = [address for address, uid in self.held.items() if uid == claim.metadata.uid]
            free = (parse_address(f"192.0.2.{number}") for number in range(2, 250))
            address = own[0] if own else next(each for each in free if each not in self.held)
            self.held[address] = claim.metadata.uid
            status = {"value": str(address), "allocationRef": {"kind": "IPAddress", "name": f"{POOL}-{address}"}}
            self.api.patch(CLAIMS, claim.name, "shop", {"status": status}, "status")

    # -- what must be so

    @invariant()
    def who_was_told_an_address_has_it_and_its_claim(self):
        for container, address in getattr(self, "told", {}).items():
            claim = self.claim(container)
            assert claim is not None, f"{container} runs, and its Claim is gone"
            assert NODE_FINALIZER in claim.metadata.finalizers
            assert claim.status.value == str(address)
            assert self.held[address] == claim.metadata.uid

    def teardown(self):
        if not hasattr(self, "api"):
            return
        self.busy = {}
        for _ in range(8):
            self.watch_tells()
            self.now += LEFT
            for due in self.due():
                self.do(due)
            # The orphan search finds out about what was made again for a pod that has ended.
            self.leases = {name: lease for name, lease in self.leases.items() if name in self.told}
            self.who_was_told_an_address_has_it_and_its_claim()
        assert {key_of_claim(claim) for claim in self.claims()} == {key(name) for name in self.told}
        assert {key_of_lease(lease) for lease in self.leases.values()} == {key(name) for name in self.told}


TestClaims = Claims.TestCase
TestClaims.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
