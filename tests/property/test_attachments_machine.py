"""I1 I2 I3 I4 I7 I13 I15 over any order of calls, hang-ups, lost answers, crashes, clock jumps, disk faults and edits.

The machine drives the real `Attachments` on a real `LeaseBook`; the disk is `MemoryStore`, whose `state` is all that
survives a crash. What a caller was told (and acknowledged) is written down on the side and compared after each step.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allotment.addressing.address import parse_prefix
from allotment.addressing.book import LeaseBook
from allotment.addressing.edges import block_gateway
from allotment.addressing.errors import AllotmentError, LedgerUnavailable, NetworkDraining, NotAdmitted
from allotment.addressing.intervals import IntervalSet
from allotment.addressing.lease import Cause, LeaseKind, Moment
from allotment.addressing.plan import BlockPlan, Layer, NetworkPlan, Refusal
from allotment.cni.request import CniRequest, Verb
from allotment.node.attaching.attachments import Attachments
from allotment.testing.clock import ManualClock, let_run
from allotment.testing.store import MemoryStore

BLOCKS = tuple(parse_prefix(text) for text in ("10.1.0.0/29", "fd00:1::/125"))
COOLDOWN = 10.0
PODS = st.sampled_from([f"pod{number}" for number in range(5)])


def plan(**changes: object) -> NetworkPlan:
    """The network of all tests: one small block per family, so that reuse happens."""
    blocks = tuple(BlockPlan(prefix, prefix.length, block_gateway(prefix)) for prefix in BLOCKS)
    whole = NetworkPlan(name="blue", layer=Layer.L3, subnets=BLOCKS, blocks=blocks, cooldown=COOLDOWN)
    return replace(whole, **changes)  # type: ignore[arg-type]


def request(verb: Verb, container: str, **fields: object) -> CniRequest:
    """A call about the network `blue`."""
    return CniRequest(
        verb=verb,
        cni_version="1.1.0",
        container_id=container,
        interface="eth0",
        conf_name="blue",
        network="blue",
        **fields,  # type: ignore[arg-type]
    )


class Machine(RuleBasedStateMachine):
    """One node's agent, its disk, its callers."""

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.plan = plan()
        self.calls = 0
        self.pending: dict[str, tuple[str, asyncio.Task]] = {}
        self.unacknowledged: dict[str, tuple[str, object]] = {}
        self.told: dict[str, frozenset] = {}  # container: what it was told, acknowledged, and not yet deleted
        self.ending: set[int] = set()  # sequences of leases whose end was asked for, and may still be on its way
        self.released_at: dict[object, Moment] = {}
        self.alive: dict[object, int] = {}
        self.faults: list[BaseException] = []
        self.background: set[asyncio.Task] = set()
        self.start()

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.store.stalled, self.store.failing = False, ""
            self.run(self.settle())
            for _, task in self.pending.values():
                if task.done() and not task.cancelled():
                    task.exception()  # seen, so that nobody complains that it wasn't
            self.runner.close()

    # -- helpers

    def request(self, verb: Verb, container: str, **fields: object) -> CniRequest:
        return request(verb, container, **fields)

    def run(self, work):
        return self.runner.run(work)

    async def settle(self) -> None:
        """Let everything that can go on do so."""
        self.store.finish()
        await let_run()
        if not self.store.stalled:
            self.store.finish()
            await let_run()

    def start(self) -> None:
        """The agent starts from what is on disk."""

        async def inside() -> None:
            self.book = LeaseBook("n1")
            state = self.store.state()
            self.book.load(state.leases, state.rests, sequence=state.sequence, now=self.now())
            self.attachments = Attachments(self.book, self.store, self.clock, spawn=self.spawn, add_wait=0.0)
            self.attachments.apply([self.plan])
            self.attachments.serve()

        self.run(inside())

    def spawn(self, work):
        """Run in the background; what fails there is a fault, for it would end the agent."""
        task = asyncio.get_running_loop().create_task(work)
        self.background.add(task)

        def done(task: asyncio.Task) -> None:
            self.background.discard(task)
            if not task.cancelled() and task.exception() is not None:
                self.faults.append(task.exception())

        task.add_done_callback(done)
        return task

    def of_this_boot(self, leases) -> list:
        """Without those that a broken disk kept from ending with their boot: they only wait to be released."""
        return [lease for lease in leases if lease.since.boot == self.clock.boot]

    def now(self) -> Moment:
        return Moment(self.clock.boot, self.clock.seconds())

    def apply(self, new: NetworkPlan) -> None:
        async def inside() -> None:
            self.plan = new
            self.attachments.apply([new])

        self.run(inside())

    # -- calls

    @rule(pod=PODS)
    def add(self, pod: str) -> None:
        """An ADD that is answered, unless the disk stalls; then it stays in flight."""
        self.calls += 1
        call = f"call{self.calls}"

        async def work() -> object:
            attached = await self.attachments.add(self.request(Verb.ADD, pod), call)
            assert self.book.find(("blue", pod, "eth0")) == attached.leases, "answered before all could see it"
            on_disk = {lease.sequence for lease in self.store.state().leases}
            assert all(lease.sequence in on_disk for lease in attached.leases), "I2: answered before it was on disk"
            if attached.granted:
                self.check_grant(attached)
            return attached

        async def inside() -> None:
            self.pending[call] = (pod, asyncio.get_running_loop().create_task(work()))
            await self.settle()

        self.run(inside())
        self.collect()

    def collect(self) -> None:
        """Take the answers of the calls that have come to their end."""
        for call, (pod, task) in list(self.pending.items()):
            if not task.done():
                continue
            del self.pending[call]
            if task.cancelled():
                continue
            error = task.exception()
            if error is None:
                attached = task.result()
                self.unacknowledged[call] = (pod, attached)
            else:
                assert isinstance(error, AllotmentError), error

    def check_grant(self, attached) -> None:
        for lease in attached.leases:
            released = self.released_at.pop(lease.address, None)
            if released is not None:
                age = lease.since.since(released)
                assert age is None or age >= self.plan_cooldown_at_least(), f"I3: {lease.address} after {age} s"

    def plan_cooldown_at_least(self) -> float:
        return min(self.plan.cooldown, COOLDOWN) - 1e-6

    @precondition(lambda self: self.unacknowledged)
    @rule(data=st.data())
    def acknowledge(self, data) -> None:
        """The caller has printed its answer."""
        call = data.draw(st.sampled_from(sorted(self.unacknowledged)))
        pod, attached = self.unacknowledged.pop(call)

        async def inside() -> None:
            self.attachments.acknowledged(attached)

        self.run(inside())
        current = {lease.sequence for lease in self.book.find(("blue", pod, "eth0"))}
        # A DEL that was asked for after the answer ends it, however late the answer is acknowledged.
        if {lease.sequence for lease in attached.leases} <= current - self.ending:
            self.told[pod] = frozenset((lease.address, lease.sequence) for lease in attached.leases)

    @precondition(lambda self: self.unacknowledged)
    @rule(data=st.data())
    def lose(self, data) -> None:
        """The caller died with its answer."""
        call = data.draw(st.sampled_from(sorted(self.unacknowledged)))
        _, attached = self.unacknowledged.pop(call)

        async def inside() -> None:
            self.spawn(self.attachments.lost(attached, call))
            await self.settle()

        self.run(inside())

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def hang_up(self, data) -> None:
        """The caller of a call in flight goes away."""
        call = data.draw(st.sampled_from(sorted(self.pending)))
        _, task = self.pending.pop(call)

        async def inside() -> None:
            task.cancel()
            await self.settle()

        self.run(inside())

    @rule(pod=PODS)
    def delete(self, pod: str) -> None:
        """A DEL; with a stalled disk it is in flight, and the pod counts as deleted from when it is asked."""
        self.told.pop(pod, None)
        self.ending |= {lease.sequence for lease in self.book.find(("blue", pod, "eth0"))}

        async def inside() -> None:
            async def work() -> None:
                with contextlib.suppress(LedgerUnavailable):
                    await self.attachments.delete(self.request(Verb.DEL, pod), "test")

            self.spawn(work())
            await self.settle()

        self.run(inside())

    @rule(pod=PODS, age=st.floats(0.1, 50.0))
    def late_delete(self, pod: str, age: float) -> None:
        """A DEL that was kept a while ago and is replayed now: it never ends a lease younger than itself (I7)."""
        before = Moment(self.clock.boot, self.clock.seconds() - age)
        younger = {
            lease.sequence
            for lease in self.book.find(("blue", pod, "eth0"))
            if (before.since(lease.since) or 0.0) <= 0 and lease.since.boot == before.boot
        }
        older = {lease.sequence for lease in self.book.find(("blue", pod, "eth0"))} - younger
        self.ending |= older
        if older:
            self.told.pop(pod, None)

        async def inside() -> None:
            async def work() -> None:
                with contextlib.suppress(LedgerUnavailable):
                    await self.attachments.delete(
                        self.request(Verb.DEL, pod), "spool", before=before, cause=Cause.SPOOL
                    )

            self.spawn(work())
            await self.settle()

        self.run(inside())
        now = {lease.sequence for lease in self.book.find(("blue", pod, "eth0"))}
        if not self.store.stalled:
            assert younger <= now, "I7: a late DEL ended a younger lease"

    @precondition(lambda self: not self.store.stalled)
    @rule(valid=st.sets(PODS))
    def garbage_collect(self, valid: set[str]) -> None:
        """CNI GC: what isn't listed goes; what was told within the same instant, or is in flight, stays."""
        began = self.now()
        listed = frozenset((pod, "eth0") for pod in valid)
        present = self.of_this_boot(self.book.leases())
        kept = {lease.sequence for lease in present if lease.since.seconds >= began.seconds}

        async def inside() -> None:
            try:
                await self.attachments.collect(self.request(Verb.GC, "", valid_attachments=listed), began, "test")
            except LedgerUnavailable:
                return
            await self.settle()

        self.run(inside())
        now = {lease.sequence for lease in self.book.leases()}
        assert kept <= now
        for pod in [pod for pod in self.told if pod not in valid]:
            if not {sequence for _, sequence in self.told[pod]} <= now:
                del self.told[pod]

    # -- the world

    @rule(seconds=st.floats(0.0, 15.0))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-86400.0, -3600.0, 3600.0, 86400.0]))
    def wall_clock_jumps(self, seconds: float) -> None:
        """I13: nothing may follow from it; every check of this machine is on the other clock."""
        self.clock.jump(seconds)

    @rule()
    def disk_stalls(self) -> None:
        self.store.stalled = True

    @rule()
    def disk_goes_on(self) -> None:
        self.store.stalled = False
        self.run(self.settle())
        self.collect()

    @rule(reason=st.sampled_from(["", "no space left on device"]))
    def disk_fails(self, reason: str) -> None:
        self.store.failing = reason

    @rule()
    def upkeep(self) -> None:
        async def inside() -> None:
            self.spawn(self.attachments.upkeep())
            await self.settle()

        self.run(inside())

    @rule(reboot=st.booleans())
    def crash(self, reboot: bool) -> None:
        """kill -9 (or power loss): only the disk is left. What was answered is there, or its boot is over (I2, I15)."""

        async def vanish() -> None:
            self.store.drop()
            for _, task in self.pending.values():
                task.cancel()
            for task in list(self.background):
                task.cancel()
            await let_run()

        self.run(vanish())
        self.pending.clear()
        self.unacknowledged.clear()
        if reboot:
            self.clock.reboot(f"boot-{self.calls}-{self.clock.wall()}")
            self.told.clear()
        self.start()
        if reboot:
            # As the daemon does before it serves: no sandbox of the earlier boot exists.
            async def end() -> None:
                old = [lease for lease in self.book.leases() if lease.since.boot != self.clock.boot]
                old = [lease for lease in old if lease.owner.kind is LeaseKind.POD]
                try:
                    await self.attachments.remove(old, Cause.BOOT, "test")
                except LedgerUnavailable:
                    return
                await self.settle()

            stalled, self.store.stalled = self.store.stalled, False
            self.run(end())
            self.store.stalled = stalled

    # -- the objects

    @rule(offset=st.integers(2, 6))
    def exclude_one(self, offset: int) -> None:
        self.apply(replace(self.plan, excluded=IntervalSet.of(BLOCKS[0].first + offset)))

    @rule()
    def exclude_none(self) -> None:
        self.apply(replace(self.plan, excluded=IntervalSet()))

    @rule(error=st.sampled_from([NetworkDraining, NotAdmitted, None]))
    def refuse(self, error: type[AllotmentError] | None) -> None:
        """Draining, or closed, or open again."""
        self.apply(replace(self.plan, refusal=None if error is None else Refusal(error, "for the test")))

    @precondition(lambda self: self.plan.refusal is not None and not self.store.stalled)
    @rule(pod=PODS)
    def add_while_refused(self, pod: str) -> None:
        """I4: nothing new from a network that may give nothing; what is held (since this boot began) is told again."""
        held = self.of_this_boot(self.book.find(("blue", pod, "eth0")))

        async def inside() -> object:
            try:
                return await self.attachments.add(self.request(Verb.ADD, pod), "refused")
            except AllotmentError as error:
                return error

        answer = self.run(inside())
        if held and self.store.failing:  # what such a disk holds can't be known
            assert isinstance(answer, LedgerUnavailable)
        elif held:
            assert [lease.sequence for lease in answer.leases] == [lease.sequence for lease in held]
            self.run(self.lose_nothing(answer))
        else:
            assert isinstance(answer, self.plan.refusal.error)

    async def lose_nothing(self, attached) -> None:
        await self.attachments.lost(attached, "refused")

    # -- what must always be so

    @invariant()
    def always(self) -> None:
        if not hasattr(self, "book"):
            return
        assert not self.faults, self.faults
        leases = list(self.book.leases())
        assert len({lease.address for lease in leases}) == len(leases), "I1"
        for lease in leases:
            assert lease.address not in {BLOCKS[0].first, BLOCKS[0].first + 1, BLOCKS[0].last, BLOCKS[1].first}
        disk = {(lease.address, lease.sequence) for lease in self.store.state().leases}
        for lease in leases:
            assert (lease.address, lease.sequence) in disk, "I2: in memory, and not on disk"
        held = {(lease.address, lease.sequence) for lease in leases if lease.owner.kind is LeaseKind.POD}
        for pod, told in self.told.items():
            assert told <= held, f"I2: {pod} was told {told} and lost it"
        # Note when addresses stopped being held, to check the cooldown of the next grant against (I3).
        now_alive = {lease.address: lease.sequence for lease in leases}
        for address in self.alive.keys() - now_alive.keys():
            self.released_at[address] = self.now()
        self.alive = now_alive


Machine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAttachments = Machine.TestCase
