"""The orphans' verdicts over any order of lives, ends, looks, and sources that fail, lie or fall silent.

Never is a lease freed whose owner lives (I8), nor one that came to its address later (I7); wall time is in none of it
(I13); and every true orphan is freed within two good looks.
"""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from allotment.addressing.address import parse_address, parse_prefix
from allotment.addressing.lease import Lease, LeaseKind, Moment, Owner
from allotment.node.orphans.verdicts import (
    BETWEEN_LOOKS,
    IN_THE_MAKING,
    YOUNGEST,
    Look,
    Pods,
    Sandboxes,
    Unreadable,
    judge,
    missing,
)

BLOCK = parse_prefix("10.4.1.0/24")
MOSTLY_NOBODY = st.sampled_from([(), (), (), (), "all"])
ADDRESSES = [parse_address(f"10.4.1.{number}") for number in range(2, 5)]


BECOMES = st.sampled_from(["", "", "running", "running", "ended", "ended", "lost", "released"])


@dataclass
class Life:
    """An owner: `making` and `running` ones live; one that is `lost` runs, and the runtime knows nothing of it."""

    lease: Lease
    state: str = "making"
    pod: bool = True

    @property
    def lives(self):
        return self.state != "ended"


class Orphans(RuleBasedStateMachine):
    @initialize(by=st.sampled_from(["runtime", "runtime and pods", "pods"]))
    def begin(self, by):
        self.by = by
        self.boot, self.seconds = "boot-1", 1000.0
        self.sequence = 0
        self.lives = {}  # by address: what the book has
        self.suspects = {}
        self.looks = []  # when, and whose end could be seen
        self.runtime_fault = self.pods_fault = ""
        self.namespaces_seen = True

    # -- the world

    @rule(seconds=st.sampled_from([30.0, YOUNGEST, 90_000.0]))
    def time_passes(self, seconds):
        self.seconds += seconds
        for life in self.lives.values():
            if life.state == "making" and self.now().seconds - life.lease.since.seconds > IN_THE_MAKING - 1:
                life.state = "running"

    @rule(kinds=st.tuples(*[st.sampled_from(["pod", "pod", "pod", "container", "tunnel"])] * len(ADDRESSES)))
    def addresses_are_given(self, kinds):
        for address, kind in zip(ADDRESSES, kinds, strict=True):
            if address not in self.lives:
                self.give(address, kind)

    def give(self, address, kind):
        self.sequence += 1
        name = f"c{self.sequence}"
        pod = {"pod_namespace": "shop", "pod_name": name, "pod_uid": f"uid-{name}"} if kind == "pod" else {}
        owner = Owner("blue", name, "eth0", **pod, kind=LeaseKind.TUNNEL if kind == "tunnel" else LeaseKind.POD)
        lease = Lease(address, BLOCK, owner, self.sequence, self.now(), 0.0, f"/run/netns/{name}")
        # Who isn't a pod is on nobody's list, and lives as long as nobody is told of its end.
        self.lives[address] = Life(lease, "making" if kind == "pod" else "running", pod=kind == "pod")

    @rule(becomes=st.tuples(*[BECOMES] * len(ADDRESSES)))
    def lives_go_on(self, becomes):
        for address, state in zip(ADDRESSES, becomes, strict=True):
            life = self.lives.get(address)
            if life is None or not life.lives or not state:
                continue
            if state == "released":
                del self.lives[address]
            elif state != "lost" or self.namespaces_seen:
                life.state = state

    @rule(address=st.sampled_from(ADDRESSES))
    def a_pod_object_goes(self, address):
        if address in self.lives:
            self.lives[address].pod = False

    @rule(left=st.sampled_from(ADDRESSES), really=st.sampled_from([False] * 7 + [True]))
    def the_machine_restarts(self, left, really):
        """The agent ends these leases before it looks; one that were left would be none of the search's business."""
        if not really:
            return
        self.lives = {address: life for address, life in self.lives.items() if address == left}
        self.boot, self.seconds = self.boot + "'", 5.0
        for life in self.lives.values():
            life.state = "ended"

    @rule(
        runtime=st.sampled_from(["", "", "", "unreadable", "empty", "another"]),
        pods=st.sampled_from(["", "", "", "stale", "empty"]),
        namespaces=st.sampled_from([True, True, False]),
    )
    def sources_change(self, runtime, pods, namespaces):
        self.runtime_fault, self.pods_fault = runtime, pods
        self.namespaces_seen = namespaces or any(life.state == "lost" for life in self.lives.values())

    # -- looks

    @rule(after=st.sampled_from([1.0, 29.0, BETWEEN_LOOKS, BETWEEN_LOOKS, 400.0]), meanwhile=MOSTLY_NOBODY)
    def look(self, after, meanwhile):
        self.time_passes(after)
        verdict = self.verdict()
        for address in ADDRESSES if meanwhile else ():  # before what is freed is freed, all may be different
            self.lives.pop(address, None)
            self.give(address, "pod")
        self.free(verdict)

    @rule(between=st.sampled_from([1.0, 29.0, BETWEEN_LOOKS]), ends=st.sampled_from(ADDRESSES))
    def some_looks(self, between, ends):
        """Over a life that ends after the first one."""
        self.look(between, ())
        if ends in self.lives:
            self.lives[ends].state = "ended"
        for _ in range(3):
            self.look(between, ())

    @rule()
    def two_good_looks(self):
        self.runtime_fault = self.pods_fault = ""
        self.namespaces_seen = True
        self.seconds += YOUNGEST
        self.free(self.verdict())
        self.seconds += BETWEEN_LOOKS
        verdict = self.verdict()
        self.free(verdict)
        left = [life for life in self.lives.values() if self.is_true_orphan(life)]
        states = {life.state for life in self.lives.values() if life.lease.owner.pod_name}
        # A list that knows none of ours is believed only where none of ours shows life.
        if self.by == "pods" or "running" in states or states <= {"ended"}:
            assert not left, (verdict, left)

    def is_true_orphan(self, life):
        mine = life.lease.owner.pod_name and life.lease.since.boot == self.boot
        return mine and not life.lives and (self.by != "pods" or not life.pod)

    def verdict(self):
        leases = [life.lease for life in self.lives.values()]
        at = self.now()
        sandboxes, pods = self.sandboxes(), self.pods()
        readable = [source if not isinstance(source, Unreadable) else None for source in (sandboxes, pods)]
        gone = {lease.netns: self.gone(lease) for lease in missing(leases, *readable)}
        verdict = judge(leases, Look(at, sandboxes, pods, gone), self.suspects)
        self.suspects = verdict.suspects
        by_sequence = {life.lease.sequence: life for life in self.lives.values()}
        for orphan in verdict.orphans:
            life = by_sequence[orphan.lease.sequence]
            assert not life.lives, f"I8: {orphan} lives, it is {life.state}"
            assert life.lease.owner.kind is LeaseKind.POD
            assert at.since(life.lease.since) >= YOUNGEST
            assert self.seen_before(at, orphan.lease.sequence), f"I8: {orphan} in one look alone"
            assert orphan.evidence
        ended = {life.lease.sequence for life in self.lives.values() if not life.lives}
        self.looks.append((at, set() if verdict.blind else ended))
        if isinstance(sandboxes, Unreadable) or (sandboxes is None and isinstance(pods, Unreadable)):
            assert verdict.blind
            assert not verdict.suspects
        return verdict

    def seen_before(self, at, sequence):
        """Whether a look 30 s ago or more could have seen that end, and so could all that came after it."""
        for then, ended in reversed(self.looks):
            apart = at.since(then)
            if sequence not in ended or apart is None:
                return False
            if apart >= BETWEEN_LOOKS:
                return True
        return False

    def free(self, verdict):
        for orphan in verdict.orphans:
            held = self.lives.get(orphan.lease.address)
            if held is not None and held.lease.sequence == orphan.lease.sequence:  # as the book does: I7
                assert not held.lives
                del self.lives[orphan.lease.address]

    def now(self):
        return Moment(self.boot, self.seconds)

    def sandboxes(self):
        match self.runtime_fault:
            case _ if self.by == "pods":
                return None
            case "unreadable":
                return Unreadable("the socket is gone")
            case "empty":
                return Sandboxes(frozenset())
            case "another":
                return Sandboxes(frozenset({"s1", "s2"}))
        running = [life.lease for life in self.lives.values() if life.state == "running" and life.lease.owner.pod_name]
        agent = {"agent"} if self.by == "runtime and pods" else set()  # in the host's network, without a lease
        return Sandboxes(frozenset(agent | {lease.owner.container_id for lease in running}))

    def pods(self):
        match self.pods_fault:
            case _ if self.by == "runtime":
                return None
            case "stale":
                return Unreadable("nothing was heard for 90 s")
            case "empty":
                return Pods(frozenset())
        return Pods(frozenset({"agent", *(life.lease.owner.pod_uid for life in self.lives.values() if life.pod)}))

    def gone(self, lease):
        if not self.namespaces_seen:
            return None
        return not any(life.lives and life.lease.netns == lease.netns for life in self.lives.values())


TestOrphans = Orphans.TestCase
TestOrphans.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
