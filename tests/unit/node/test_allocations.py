"""An Allocation from admission to the end of its drain (I4, I5, I14), on a manual clock and a source in memory."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import structlog

from allotment.addressing.address import Family, parse_address
from allotment.addressing.book import Ask, LeaseBook
from allotment.addressing.lease import Cause, LeaseKind, Moment, Owner
from allotment.addressing.plan import Layer
from allotment.api.allocation import Allocation, AllocationSpec, Block, WantBlocks
from allotment.api.meta import NODE_FINALIZER, ObjectMeta
from allotment.api.network import Network, NetworkSpec, Subnet
from allotment.node.allocations import AllocationKeeper
from allotment.node.block_keeper import BlockKeeper
from allotment.node.offers import Offers, closed_blocks
from allotment.node.plans import network_plans
from allotment.node.view_cache import ViewCache
from allotment.testing.clock import ManualClock, let_run
from allotment.testing.source import MemorySource
from allotment.testing.store import MemoryStore

change = msgspec.structs.replace
DELETED = "2026-01-01T00:00:00Z"


class Stage:
    """A keeper at work on one Allocation of the network `blue`."""

    def __init__(self, layer: Layer = Layer.L3) -> None:
        self.clock = ManualClock()
        self.source = MemorySource()
        self.book = LeaseBook("n1")
        self.book.load((), (), sequence=0, now=self.now())
        subnet = Subnet("10.4.1.0/24", 24) if layer is Layer.L3 else Subnet("10.4.1.0/24")
        blocks = (Block("10.4.1.0/24", "Confirmed"),) if layer is Layer.L3 else ()
        self.source.networks["blue"] = Network(
            metadata=ObjectMeta(name="blue"), spec=NetworkSpec(type=layer, subnets=(subnet,))
        )
        self.source.allocations["blue.n1"] = Allocation(
            metadata=ObjectMeta(name="blue.n1", generation=3),
            spec=AllocationSpec(network="blue", node="n1", type=layer, blocks=blocks),
        )
        self.kept = MemoryStore()
        self.cache = ViewCache(self.kept, local_l2=False)
        self.store, self.short, self.on_disk = MemoryStore(), {}, frozenset()
        self.offers = Offers(self.store, self.replan)
        self.blocks = BlockKeeper(
            self.book,
            self.clock,
            self.offers,
            structlog.get_logger(),
            short=lambda _: self.short,
            on_disk=lambda _: self.on_disk,
        )
        self.told = []
        self.begin()

    def begin(self) -> None:
        self.keeper = AllocationKeeper(
            self.source,
            self.book,
            self.clock,
            structlog.get_logger(),
            node="n1",
            ledger_id="L",
            blocks=self.blocks,
            waits=lambda: self.waits,
            shut=self.cache.shut,
            tell=lambda *said: self.told.append(said),
        )
        self.waits = ""
        self.tasks = [
            asyncio.create_task(self.keeper.run()),
            asyncio.create_task(self.source.run(self.take)),
        ]

    async def restart(self) -> None:
        await self.end()
        self.begin()

    def take(self, view) -> None:
        self.view = view
        self.replan()
        self.keeper.take(view)

    def replan(self) -> None:
        self.book.apply(network_plans(self.view, "n1", self.offers.closed), self.now())

    def now(self) -> Moment:
        return Moment(self.clock.boot, self.clock.seconds())

    async def go_on(self, seconds: float = 0.2) -> None:
        """Let that much time pass, in steps as small as the keeper's own."""
        for _ in range(int(seconds / 0.05) + 1):
            await let_run(20)
            self.clock.advance(0.05)
        await let_run(20)

    @property
    def allocation(self) -> Allocation:
        return self.source.allocations["blue.n1"]

    def condition(self, kind: str):
        return next((entry for entry in self.allocation.status.conditions if entry.type == kind), None)

    def lease(self, container: str, kind: LeaseKind = LeaseKind.POD, pod: str = ""):
        owner = Owner("blue", container, "eth0", pod_namespace="shop" if pod else "", pod_name=pod, kind=kind)
        proposal = self.book.propose(Ask(owner), self.now(), self.clock.wall())
        self.book.commit(proposal)
        self.keeper.poke()
        return proposal.leases

    def release(self, leases) -> None:
        self.book.commit(self.book.remove(leases, self.now(), self.clock.wall(), Cause.DEL, "test"))
        self.keeper.poke()

    def give_blocks(self, *cidrs: str) -> None:
        """As the controller does; the network has room for more."""
        spec = change(self.source.networks["blue"].spec, subnets=(Subnet("10.4.0.0/16", 24),))
        self.source.networks["blue"] = change(self.source.networks["blue"], spec=spec)
        blocks = tuple(Block(cidr, "Confirmed") for cidr in cidrs)
        self.source.allocations["blue.n1"] = change(self.allocation, spec=change(self.allocation.spec, blocks=blocks))
        self.source.publish()

    def delete(self) -> None:
        meta = change(self.allocation.metadata, deletion_timestamp=DELETED)
        self.source.allocations["blue.n1"] = change(self.allocation, metadata=meta)
        self.source.publish()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def stage():
    made = Stage()
    yield made
    await made.end()


async def test_the_finalizer_is_on_before_anything_is_given(stage: Stage) -> None:
    """I4."""
    await stage.go_on()
    assert stage.allocation.metadata.finalizers == (NODE_FINALIZER,)
    assert stage.book.plan("blue").refusal is None
    assert stage.condition("Ready").status == "True"
    assert stage.condition("Ready").observed_generation == 3
    assert stage.allocation.status.ledger_id == "L"


async def test_while_the_source_is_not_whole_nobody_is_newly_admitted(stage: Stage) -> None:
    stage.source.more = {"problems": ("broken.yaml",), "whole": False}
    stage.source.publish()
    await stage.go_on()
    assert stage.allocation.metadata.finalizers == ()
    assert stage.book.plan("blue").refusal is not None


async def test_the_finalizer_goes_with_the_last_pod_lease_and_soon(stage: Stage) -> None:
    """I5, and progress in the condition while it waits."""
    await stage.go_on()
    first, second = stage.lease("c1", pod="web-0"), stage.lease("c2")
    stage.delete()
    await stage.go_on()
    draining = stage.condition("Draining")
    assert draining.status == "True"
    assert "2 leases left: container c2, shop/web-0" in draining.message
    stage.release(first)
    await stage.go_on()
    assert "1 lease left" in stage.condition("Draining").message
    assert stage.allocation.metadata.finalizers == (NODE_FINALIZER,)
    stage.release(second)
    await stage.go_on()
    assert "blue.n1" not in stage.source.allocations


async def test_a_tunnel_lease_holds_up_no_drain(stage: Stage) -> None:
    """I5: last-out counts pod leases only."""
    await stage.go_on()
    stage.lease("n1", LeaseKind.TUNNEL)
    stage.delete()
    await stage.go_on()
    assert "blue.n1" not in stage.source.allocations


async def test_an_address_that_is_being_given_holds_the_finalizer(stage: Stage) -> None:
    """I5: what was under way when the drain began is finished, and counted."""
    await stage.go_on()
    proposal = stage.book.propose(Ask(Owner("blue", "c1", "eth0")), stage.now(), 0.0)
    stage.delete()
    await stage.go_on()
    assert stage.allocation.metadata.finalizers == (NODE_FINALIZER,)
    stage.book.commit(proposal)
    stage.keeper.poke()
    await stage.go_on()
    assert stage.allocation.metadata.finalizers == (NODE_FINALIZER,)
    stage.release(proposal.leases)
    await stage.go_on()
    assert "blue.n1" not in stage.source.allocations


async def test_on_l2_the_marker_goes_at_once_and_the_lease_stays() -> None:
    """I5: on L2 the Allocation is a marker; a DEL works without it."""
    stage = Stage(Layer.L2)
    try:
        await stage.go_on()
        leases = stage.lease("c1")
        stage.delete()
        await stage.go_on()
        assert "blue.n1" not in stage.source.allocations
        assert stage.book.at("blue", leases[0].address) == leases[0]
        stage.release(leases)
        assert stage.book.at("blue", leases[0].address) is None
    finally:
        await stage.end()


async def test_a_write_that_fails_is_tried_again(stage: Stage) -> None:
    """I14."""
    await stage.go_on()
    stage.source.failing = "the disk is full"
    stage.delete()
    await stage.go_on(3.0)
    assert "blue.n1" in stage.source.allocations
    stage.source.failing = ""
    # The retry is on the loop's own timer; waking the keeper stands for it.
    stage.keeper.poke()
    await stage.go_on()
    assert "blue.n1" not in stage.source.allocations


async def test_status_counts_the_block_and_is_not_written_for_each_lease(stage: Stage) -> None:
    await stage.go_on()
    written = stage.source.written["blue.n1"]
    for number in range(50):
        stage.lease(f"c{number}")
        await let_run(3)
    await stage.go_on(1.0)
    assert stage.source.written["blue.n1"] == written
    stage.clock.advance(15)
    stage.source.publish()
    await stage.go_on()
    (use,) = stage.allocation.status.blocks
    assert (use.cidr, use.in_use, use.capacity) == ("10.4.1.0/24", "50", "254")
    assert stage.source.written["blue.n1"] == written + 1


async def test_the_transition_time_stays_while_the_status_does(stage: Stage) -> None:
    await stage.go_on()
    since = stage.condition("Ready").last_transition_time
    stage.lease("c1")
    stage.clock.advance(100)
    stage.source.publish()
    await stage.go_on()
    assert stage.allocation.status.blocks[0].in_use == "1"
    assert stage.condition("Ready").last_transition_time == since
    assert stage.book.at("blue", parse_address("10.4.1.2")) is not None


async def test_a_write_that_hangs_keeps_nobody_elses_finalizer(stage: Stage) -> None:
    """I5: one network's drain does not wait for another's line to the API server."""
    await stage.go_on()
    stage.source.networks["red"] = change(stage.source.networks["blue"], metadata=ObjectMeta(name="red"))
    stage.source.allocations["red.n1"] = change(
        stage.allocation,
        metadata=ObjectMeta(name="red.n1"),
        spec=change(stage.allocation.spec, network="red", blocks=(Block("10.4.2.0/24", "Confirmed"),)),
    )
    stage.source.hanging.add("red.n1")
    stage.source.publish()
    await stage.go_on()
    assert NODE_FINALIZER in stage.allocation.metadata.finalizers
    gone = change(stage.allocation, metadata=change(stage.allocation.metadata, deletion_timestamp=DELETED))
    stage.source.allocations["blue.n1"] = gone
    stage.source.publish()
    await stage.go_on()
    assert "blue.n1" not in stage.source.allocations


# -- blocks that come and go


@pytest.fixture
async def grown():
    """Two blocks, of which one is enough, and a controller that hears of it."""
    made = Stage()
    made.source.more = {"controlled": True}
    made.give_blocks("10.4.1.0/24", "10.4.2.0/24")
    await made.go_on()
    yield made
    await made.end()


async def offered(stage: Stage) -> None:
    stage.clock.advance(61)
    stage.keeper.look_soon()
    await stage.go_on()


async def test_an_empty_block_is_closed_on_disk_before_it_is_offered(grown: Stage) -> None:
    """I4: a crash in between leaves a block that gives nothing."""
    grown.source.hanging.add("blue.n1")
    await offered(grown)
    assert grown.allocation.status.relinquished == ()
    assert closed_blocks(grown.store.objects()) == {("blue", "10.4.2.0/24")}
    assert [block.gives for block in grown.book.plan("blue").blocks] == [True, False]


async def test_where_the_disk_refuses_nothing_is_offered_and_the_block_gives_on(grown: Stage) -> None:
    grown.store.failing = "no space left on device"
    await offered(grown)
    assert grown.allocation.status.relinquished == ()
    assert [block.gives for block in grown.book.plan("blue").blocks] == [True, True]


async def test_a_block_that_was_taken_is_forgotten_after_the_kept_objects_say_so_too(grown: Stage) -> None:
    """I1: a node that starts without the API server would give from what it keeps."""
    await offered(grown)
    assert grown.allocation.status.relinquished == ("10.4.2.0/24",)
    grown.on_disk = frozenset({"10.4.1.0/24", "10.4.2.0/24"})
    grown.give_blocks("10.4.1.0/24")
    await grown.go_on()
    assert grown.allocation.status.relinquished == ()
    assert closed_blocks(grown.store.objects()) == {("blue", "10.4.2.0/24")}
    grown.on_disk = frozenset({"10.4.1.0/24"})
    grown.keeper.look_soon()
    await grown.go_on()
    assert not closed_blocks(grown.store.objects())


async def test_a_needed_block_gives_again_only_after_its_offer_is_withdrawn(grown: Stage) -> None:
    """I4."""
    await offered(grown)
    grown.source.failing = "somebody came before"
    grown.short = {Family.V4: 300}
    grown.keeper.look_soon()
    await grown.go_on()
    assert not grown.book.plan("blue").blocks[1].gives
    grown.source.failing = ""
    grown.keeper.look_soon()
    await grown.go_on()
    assert grown.allocation.status.relinquished == ()
    assert grown.book.plan("blue").blocks[1].gives
    assert not closed_blocks(grown.store.objects())


async def test_what_a_ledger_before_this_one_offered_is_closed_by_this_one_too(grown: Stage) -> None:
    status = change(grown.allocation.status, relinquished=("10.4.2.0/24",))
    grown.source.allocations["blue.n1"] = change(grown.allocation, status=status)
    grown.source.publish()
    await grown.go_on()
    assert closed_blocks(grown.store.objects()) == {("blue", "10.4.2.0/24")}
    assert grown.allocation.status.relinquished == ("10.4.2.0/24",)


async def test_who_waits_is_asked_for_at_once_and_no_more_than_is_allowed(grown: Stage) -> None:
    grown.short = {Family.V4: 1000}
    grown.keeper.look_soon()
    await grown.go_on()
    assert grown.allocation.status.want_blocks == WantBlocks(v4=5)
    spec = change(grown.source.networks["blue"].spec, max_blocks_per_node=3)
    grown.source.networks["blue"] = change(grown.source.networks["blue"], spec=spec)
    grown.source.publish()
    await grown.go_on()
    assert grown.allocation.status.want_blocks == WantBlocks(v4=3)
    grown.short = {}
    grown.keeper.look_soon()
    await grown.go_on()
    assert grown.allocation.status.want_blocks is None


async def test_nobody_is_asked_where_nobody_hears(stage: Stage) -> None:
    """A host that stands alone has no controller."""
    await stage.go_on()
    stage.short = {Family.V4: 1000}
    stage.keeper.look_soon()
    await stage.go_on()
    assert stage.allocation.status.want_blocks is None


async def test_nothing_is_let_go_of_while_leases_may_be_missing(stage: Stage) -> None:
    """I5, I15: an empty book is no proof as long as it is being filled."""
    await stage.go_on()
    stage.waits = "the ledger is being rebuilt"
    stage.delete()
    await stage.go_on()
    assert stage.allocation.metadata.finalizers == (NODE_FINALIZER,)
    stage.waits = ""
    stage.keeper.look_soon()
    await stage.go_on()
    assert "blue.n1" not in stage.source.allocations


async def test_what_a_node_starts_from_is_shut_before_the_finalizer_goes(stage: Stage) -> None:
    """I4: else a crash then, and no API server, and it gives from a block that is another node's by now."""
    await stage.go_on()
    await stage.cache.keep(stage.view)
    stage.kept.failing = "the disk is broken"
    stage.delete()
    await stage.go_on()
    assert stage.allocation.metadata.finalizers == (NODE_FINALIZER,)
    stage.kept.failing = ""
    stage.source.hanging.add("blue.n1")
    stage.keeper.look_soon()
    await stage.go_on()
    started = ViewCache(stage.kept, local_l2=False).load()
    assert started is None or "blue" not in started.allocations


async def test_a_drain_is_told_when_it_begins_whenever_half_of_it_is_done_and_at_its_end(stage: Stage) -> None:
    await stage.go_on()
    leases = [stage.lease(f"c{number}", pod=f"web-{number}") for number in range(8)]
    stage.delete()
    await stage.go_on()
    for lease in leases:
        stage.release(lease)
        await stage.go_on()
    assert [(reason, message.split("; ")[1].split(":")[0]) for reason, message, _ in stage.told] == [
        ("DrainStarted", "8 leases left"),
        ("DrainProgressing", "4 leases left"),
        ("DrainProgressing", "2 leases left"),
        ("DrainProgressing", "1 lease left"),
        ("Drained", "the last lease on node n1 has ended"),
    ]


async def test_a_drain_that_had_begun_before_the_agent_was_started_is_not_told_to_begin_again(stage: Stage) -> None:
    await stage.go_on()
    (lease, other) = stage.lease("c1", pod="web-1"), stage.lease("c2", pod="web-2")
    stage.delete()
    await stage.go_on()
    await stage.restart()
    await stage.go_on()
    assert [reason for reason, _, _ in stage.told] == ["DrainStarted"]
    stage.release(lease)
    await stage.go_on()
    stage.release(other)
    await stage.go_on()
    assert [reason for reason, _, _ in stage.told] == ["DrainStarted", "DrainProgressing", "Drained"]
