"""I1 I4 for blocks that are offered back and taken: any order of needs, writes, lost answers, late writes and crashes.

The machine drives the real `AllocationKeeper`, `BlockKeeper` and `Offers` on a real `LeaseBook`. Around it are a disk
that is all that survives a crash, an API server with resourceVersions whose watch lags behind, and a controller that
may take an offered block, or give one, at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import msgspec
import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allotment.addressing.address import parse_prefix
from allotment.addressing.book import Ask, LeaseBook
from allotment.addressing.errors import AllotmentError, TryAgain
from allotment.addressing.lease import Cause, Moment, Owner
from allotment.addressing.plan import Layer
from allotment.api.allocation import Allocation, AllocationSpec, AllocationStatus, Block
from allotment.api.meta import NODE_FINALIZER, ObjectMeta
from allotment.api.network import Network, NetworkSpec, Subnet
from allotment.node.allocations import AllocationKeeper
from allotment.node.attaching.commits import Commits, Write
from allotment.node.block_keeper import BlockKeeper
from allotment.node.offers import Offers
from allotment.node.plans import network_plans
from allotment.node.view import View
from allotment.node.view_cache import ViewCache
from allotment.testing.clock import ManualClock, let_run
from allotment.testing.store import MemoryStore

change = msgspec.structs.replace
CIDRS = [f"10.4.0.{8 * number}/29" for number in range(4)]
NETWORK = Network(
    metadata=ObjectMeta(name="blue"),
    spec=NetworkSpec(type=Layer.L3, subnets=(Subnet("10.4.0.0/27", 29),), cooldown_seconds=5),
)


@dataclass
class Asked:
    """A write that is on its way, and will be applied only to the version that it was decided on."""

    seen: Allocation
    status: AllocationStatus
    answer: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Api:
    """One Allocation, all its versions, and the writes that have not come to it."""

    def __init__(self) -> None:
        spec = AllocationSpec("blue", "n1", Layer.L3, blocks=tuple(Block(cidr, "Confirmed") for cidr in CIDRS[:2]))
        meta = ObjectMeta(name="blue.n1", uid="u", resource_version="1", finalizers=(NODE_FINALIZER,))
        self.versions = [Allocation(spec=spec, metadata=meta)]
        self.asked: list[Asked] = []
        self.late: list[Asked] = []

    @property
    def now(self) -> Allocation:
        return self.versions[-1]

    @property
    def own(self) -> set[str]:
        return {block.cidr for block in self.now.spec.blocks}

    @property
    def offered(self) -> set[str]:
        return set(self.now.status.relinquished) & self.own

    def put(self, **what: object) -> None:
        meta = change(self.now.metadata, resource_version=str(len(self.versions) + 1))
        self.versions.append(change(self.now, metadata=meta, **what))

    def apply(self, asked: Asked) -> bool:
        if asked.seen.metadata.resource_version != self.now.metadata.resource_version:
            return False
        if asked.status != self.now.status:  # a write that changes nothing makes no version
            self.put(status=asked.status)
        return True


class Machine(RuleBasedStateMachine):
    """A node, its disk, the API server, and the controller."""

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.api = Api()
        self.containers = 0
        self.tasks: list[asyncio.Task] = []
        self.work: set[asyncio.Task] = set()
        self.run(self.start())

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.run(self.stop())
            self.runner.close()

    def run(self, work):
        return self.runner.run(work)

    # -- the node

    async def start(self) -> None:
        """From what is on disk; the API server is asked later, if at all."""
        self.book = LeaseBook("n1")
        state = self.store.state()
        self.book.load(state.leases, state.rests, sequence=state.sequence, now=self.now())
        self.short: dict = {}
        self.commits = Commits(self.book, self.store)
        self.cache = ViewCache(self.store, local_l2=False)
        self.offers = Offers(self.store, self.replan)
        blocks = BlockKeeper(
            self.book,
            self.clock,
            self.offers,
            structlog.get_logger(),
            short=lambda _: self.short,
            on_disk=self.cache.blocks,
        )
        self.keeper = AllocationKeeper(
            self, self.book, self.clock, structlog.get_logger(), node="n1", ledger_id="L", blocks=blocks
        )
        self.view = self.cache.load() or View()
        self.shown = -1
        self.waiting: list[tuple[int, asyncio.Future]] = []
        self.replan()
        self.tasks = [asyncio.get_running_loop().create_task(self.keeper.run())]
        await let_run()

    async def stop(self) -> None:
        for task in [*self.tasks, *self.work]:
            task.cancel()
        await asyncio.gather(*self.tasks, *self.work, return_exceptions=True)
        self.work.clear()

    def replan(self) -> None:
        self.book.apply(network_plans(self.view, "n1", self.offers.closed), self.now())

    def now(self) -> Moment:
        return Moment(self.clock.boot, self.clock.seconds())

    async def go_on(self) -> None:
        await let_run(20)
        self.clock.advance(0.05)
        await let_run(20)

    # -- the Source of the node

    async def record(self, seen, *, finalizers=None, status=None) -> bool:
        assert finalizers is None
        asked = Asked(seen, status)
        self.api.asked.append(asked)
        await asked.answer
        version = int(self.api.now.metadata.resource_version)
        while self.shown + 1 < version:
            future = asyncio.get_running_loop().create_future()
            self.waiting.append((version, future))
            await future
        return True

    async def forget(self, seen) -> None:
        raise AssertionError("nothing drains here")

    # -- what happens

    @rule(newest=st.booleans())
    def show(self, newest: bool) -> None:
        """The watch brings the next version, or all at once. A node that has just started is told the newest."""

        self.run(self.see(newest))

    async def see(self, newest: bool) -> None:
        last = len(self.api.versions) - 1
        self.shown = last if newest or self.shown < 0 else min(last, self.shown + 1)
        item = self.api.versions[self.shown]
        self.view = View(networks={"blue": NETWORK}, allocations={"blue": item}, synced=True, controlled=True)
        self.replan()
        self.keeper.take(self.view)
        for version, future in self.waiting:
            if self.shown + 1 >= version and not future.done():
                future.set_result(None)
        await self.go_on()

    @rule(seconds=st.sampled_from([1.0, 61.0, 61.0]), keep=st.booleans())
    def all_is_well(self, seconds: float, keep: bool) -> None:
        """For a while everything works, and comes through."""

        async def inside() -> None:
            self.store.failing, self.store.stalled = "", False
            self.store.finish()
            self.clock.advance(seconds)
            for _ in range(3):
                await self.see(newest=True)
                self.keeper.look_soon()
                await self.go_on()
                while self.api.asked:
                    await self.answer("")
            await self.see(newest=True)
            if keep:
                await self.cache.keep(self.view)

        self.run(inside())

    @rule()
    def keep_view(self) -> None:
        """What was seen last reaches the disk, sooner or later."""

        async def inside() -> None:
            with contextlib.suppress(TryAgain):
                await self.cache.keep(self.view)

        if not self.store.stalled:
            self.run(inside())

    @rule(count=st.integers(1, 4))
    def add(self, count: int) -> None:
        """Pods that come. An address may be given only from a block that is the node's, and not offered."""

        async def inside() -> None:
            for _ in range(count):
                self.containers += 1
                try:
                    proposal = self.book.propose(
                        Ask(Owner("blue", f"c{self.containers}", "eth0")), self.now(), self.clock.wall()
                    )
                except AllotmentError:
                    return
                block = str(proposal.leases[0].block)
                assert block in self.api.own, f"I1: {block} is somebody else's"
                assert block not in self.api.offered, f"I4: {block} is offered"
                self.commits.write(proposal, Write()).add_done_callback(lambda future: future.exception())
            await self.go_on()

        self.run(inside())

    @rule(data=st.data())
    def delete(self, data) -> None:
        async def inside() -> None:
            leases = list(self.book.leases("blue"))
            gone = [lease for lease in leases if data.draw(st.integers(0, 3))]
            removal = self.book.remove(gone, self.now(), self.clock.wall(), Cause.DEL, "test")
            if removal.changes:
                self.commits.write(removal, Write()).add_done_callback(lambda future: future.exception())
            await self.go_on()

        self.run(inside())

    @rule(seconds=st.sampled_from([1.0, 12.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        async def inside() -> None:
            self.clock.advance(seconds)
            self.keeper.look_soon()
            await self.go_on()

        self.run(inside())

    @rule(count=st.integers(0, 9))
    def shortage(self, count: int) -> None:
        """Requests wait for an address, or do no more."""
        family = parse_prefix(CIDRS[0]).family

        async def inside() -> None:
            self.short = {family: count}
            self.keeper.look_soon()
            await self.go_on()

        self.run(inside())

    # -- writes to the API server

    @precondition(lambda self: self.api.asked)
    @rule(lost=st.sampled_from(["", "", "", "answer", "write"]))
    def deliver(self, lost: str) -> None:
        """A write comes to the server; its answer may be lost on the way, or the write may be late."""

        self.run(self.answer(lost))

    async def answer(self, lost: str) -> None:
        asked = self.api.asked.pop(0)
        if lost == "write":
            self.api.late.append(asked)
        done = lost != "write" and self.api.apply(asked)
        if asked.answer.done():  # who asked is gone
            return
        if done and not lost:
            asked.answer.set_result(None)
        else:
            asked.answer.set_exception(TryAgain("not written, or nobody knows"))
            asked.answer.exception()
        await self.go_on()

    @precondition(lambda self: self.api.late)
    @rule()
    def deliver_late(self) -> None:
        """What was given up on arrives after all."""
        self.api.apply(self.api.late.pop(0))

    # -- the controller

    @rule(data=st.data())
    def take(self, data) -> None:
        """Only what is offered, and by the newest version."""
        if offered := sorted(self.api.offered):
            cidr = data.draw(st.sampled_from(offered))
            blocks = tuple(block for block in self.api.now.spec.blocks if block.cidr != cidr)
            self.api.put(spec=change(self.api.now.spec, blocks=blocks))

    @precondition(lambda self: self.api.offered)
    @rule(data=st.data())
    def need_and_take_at_once(self, data) -> None:
        """The node wants its block back in the moment in which the controller takes it."""
        self.shortage(9)
        self.take(data)
        self.add(4)

    @precondition(lambda self: self.api.offered)
    @rule(data=st.data(), seen=st.booleans(), written=st.booleans())
    def take_and_crash(self, data, seen: bool, written: bool) -> None:
        """The node starts anew from what it keeps, without the API server."""
        self.take(data)
        if seen:
            self.show(newest=True)
        self.crash(written=written)
        self.add(4)
        self.add(4)

    @rule(data=st.data())
    def give(self, data) -> None:
        if (free := sorted({*CIDRS} - self.api.own)) and len(self.api.own) < 3:
            block = Block(data.draw(st.sampled_from(free)), "Confirmed")
            self.api.put(spec=change(self.api.now.spec, blocks=(*self.api.now.spec.blocks, block)))

    # -- disk and crash

    @rule(stalled=st.booleans(), failing=st.sampled_from(["", "", "no space left on device"]))
    def disk(self, stalled: bool, failing: str) -> None:
        async def inside() -> None:
            self.store.stalled, self.store.failing = stalled, failing
            if not stalled:
                self.store.finish()
            await self.go_on()

        self.run(inside())

    @precondition(lambda self: self.store.waiting)
    @rule()
    def disk_goes_one_step(self) -> None:
        async def inside() -> None:
            self.store.finish(1)
            await self.go_on()

        self.run(inside())

    @rule(written=st.booleans())
    def crash(self, written: bool) -> None:
        """kill -9; what was on its way to the API server may still arrive."""

        async def inside() -> None:
            self.store.failing = ""
            if not written:
                self.store.drop()
            await self.stop()
            self.store.finish()
            self.store.stalled = False
            self.api.late += self.api.asked
            self.api.asked = []
            await self.start()

        self.run(inside())

    @invariant()
    def nobody_else_has_a_block_with_our_leases(self) -> None:
        """I1: on disk counts too, for that is what a crash leaves."""
        if hasattr(self, "api"):
            for lease in self.store.state().leases:
                assert str(lease.block) in self.api.own, f"{lease.address} was taken with its block"

    @invariant()
    def no_task_has_ended(self) -> None:
        for task in getattr(self, "tasks", ()):
            assert not task.done(), task.exception()


def runs_of(examples: int):
    """The machine's test, with so many runs."""

    class Case(Machine.TestCase):
        settings = settings(
            max_examples=examples, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
        )

    return Case


TestMachine = runs_of(20)
TestMachineForLong = pytest.mark.slow(runs_of(400))
