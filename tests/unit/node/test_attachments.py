"""What callers and the disk can do to one attachment, case by case; the state machine has all other orders."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from allotment.addressing.address import Family, parse_prefix
from allotment.addressing.book import LeaseBook
from allotment.addressing.edges import block_gateway
from allotment.addressing.errors import (
    AddressUnavailable,
    BlockAwaited,
    CheckFailed,
    Exhausted,
    LedgerUnavailable,
    NetworkClosed,
    NetworkDraining,
    NotAdmitted,
    NotServing,
    UnknownNetwork,
)
from allotment.addressing.lease import Moment
from allotment.addressing.plan import BlockPlan, Layer, NetworkPlan, Refusal
from allotment.cni.request import CniRequest, Verb
from allotment.node.attaching.attachments import Attachments
from allotment.testing.clock import ManualClock, let_run
from allotment.testing.store import MemoryStore

BLOCK = parse_prefix("10.1.0.0/28")
PLAN = NetworkPlan(
    name="blue",
    layer=Layer.L3,
    subnets=(BLOCK,),
    blocks=(BlockPlan(BLOCK, BLOCK.length, block_gateway(BLOCK)),),
    cooldown=0.0,
)


def call(verb: Verb = Verb.ADD, container: str = "c1", **fields) -> CniRequest:
    given = {"conf_name": "blue", "network": "blue", "interface": "eth0", **fields}
    return CniRequest(verb=verb, cni_version="1.1.0", container_id=container, **given)


class Node:
    """Attachments on a manual clock and a disk in memory."""

    def __init__(self, *, add_wait: float = 0.0) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.book = LeaseBook("n1")
        self.book.load((), (), sequence=0, now=self.now())
        self.tasks: set[asyncio.Task] = set()
        self.attachments = Attachments(self.book, self.store, self.clock, spawn=self.spawn, add_wait=add_wait)
        self.attachments.apply([PLAN])
        self.attachments.serve()

    def now(self) -> Moment:
        return Moment(self.clock.boot, self.clock.seconds())

    def spawn(self, work) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        return task

    async def idle(self) -> None:
        """Until nothing in the background can go on."""
        await let_run()

    def held(self, container: str) -> tuple:
        return self.book.find(("blue", container, "eth0"))


@pytest.fixture
async def node() -> Node:
    return Node()


async def test_a_lost_answer_takes_back_what_it_granted(node: Node) -> None:
    attached = await node.attachments.add(call(), "first")
    await node.attachments.lost(attached, "first")
    assert node.held("c1") == ()
    assert node.store.state().leases == ()


async def test_a_lost_answer_takes_nothing_that_a_retry_was_told(node: Node) -> None:
    first = await node.attachments.add(call(), "first")
    again = await node.attachments.add(call(), "again")
    assert again.leases == first.leases
    node.attachments.acknowledged(again)
    await node.attachments.lost(first, "first")
    assert node.held("c1") == first.leases


async def test_a_lost_answer_takes_nothing_while_a_retry_is_still_to_be_acknowledged(node: Node) -> None:
    first = await node.attachments.add(call(), "first")
    again = await node.attachments.add(call(), "again")
    await node.attachments.lost(first, "first")
    assert node.held("c1") == first.leases
    node.attachments.acknowledged(again)
    assert node.held("c1") == first.leases


async def test_a_lost_retry_takes_nothing_while_the_first_is_still_to_be_acknowledged(node: Node) -> None:
    """I2: the first caller may have printed its answer by now, and its acknowledgement be under way."""
    first = await node.attachments.add(call(), "first")
    again = await node.attachments.add(call(), "again")
    await node.attachments.lost(again, "again")
    assert node.held("c1") == first.leases
    node.attachments.acknowledged(first)
    assert node.held("c1") == first.leases


async def test_when_the_retry_is_lost_too_nothing_is_left(node: Node) -> None:
    """The lease was granted for the first caller and told to nobody: the second's loss must not leave it behind."""
    first = await node.attachments.add(call(), "first")
    again = await node.attachments.add(call(), "again")
    await node.attachments.lost(first, "first")
    await node.attachments.lost(again, "again")
    assert node.held("c1") == ()


async def test_a_lost_answer_to_a_repeated_add_takes_nothing(node: Node) -> None:
    attached = await node.attachments.add(call(), "first")
    node.attachments.acknowledged(attached)
    again = await node.attachments.add(call(), "again")
    await node.attachments.lost(again, "again")
    assert node.held("c1") == attached.leases


async def test_a_caller_that_hangs_up_while_the_disk_writes_leaves_no_lease(node: Node) -> None:
    node.store.stalled = True
    adding = asyncio.create_task(node.attachments.add(call(), "first"))
    await node.idle()
    adding.cancel()
    await node.idle()
    node.store.stalled = False
    node.store.finish()
    await node.idle()
    assert adding.cancelled()
    assert node.held("c1") == ()
    assert node.store.state().leases == ()


async def test_a_caller_that_hangs_up_in_the_moment_of_the_write_leaves_no_lease(node: Node) -> None:
    """C23: the disk has it in the very round of the loop in which the caller is found gone."""
    node.store.stalled = True
    adding = asyncio.create_task(node.attachments.add(call(), "first"))
    await node.idle()
    adding.cancel()
    node.store.stalled = False
    asyncio.get_running_loop().call_soon(node.store.finish)
    await node.idle()
    assert adding.cancelled()
    assert node.held("c1") == ()
    assert node.store.state().leases == ()


async def test_nobody_is_told_of_a_lease_of_an_earlier_boot(node: Node) -> None:
    """I1: a container has its ID again after the restart, and the release of its lease waits for the disk."""
    await node.attachments.add(call(), "before")
    state = node.store.state()
    node.clock.reboot("boot-2")
    node.book = LeaseBook("n1")
    node.book.load(state.leases, state.rests, sequence=state.sequence, now=node.now())
    attachments = Attachments(node.book, node.store, node.clock, spawn=node.spawn, add_wait=0.0)
    attachments.apply([PLAN])
    attachments.serve("leases of an earlier boot wait to be released")
    with pytest.raises(NotAdmitted, match="earlier boot"):
        await attachments.add(call(), "after")


async def test_what_could_not_be_taken_back_is_taken_back_when_the_disk_is_well(node: Node) -> None:
    attached = await node.attachments.add(call(), "first")
    node.store.failing = "no space left on device"
    await node.attachments.lost(attached, "first")
    assert node.held("c1") == attached.leases
    node.store.failing = ""
    await node.attachments.upkeep()
    assert node.held("c1") == ()


@pytest.mark.parametrize("lost_in_the_write", [False, True])
async def test_what_could_not_be_taken_back_stays_when_a_retry_is_told_of_it(node: Node, lost_in_the_write) -> None:
    """I2: the upkeep comes later, and knows that somebody was told meanwhile."""
    if lost_in_the_write:
        node.store.stalled = True
        adding = asyncio.create_task(node.attachments.add(call(), "first"))
        await node.idle()
        adding.cancel()
        await node.idle()
        node.store.finish()
        node.store.failing = "the disk fails"
        await node.idle()
        node.store.stalled = False
        node.store.finish()
        await node.idle()
    else:
        attached = await node.attachments.add(call(), "first")
        node.store.failing = "the disk fails"
        await node.attachments.lost(attached, "first")
    node.store.failing = ""
    again = await node.attachments.add(call(), "again")
    assert not again.granted
    node.attachments.acknowledged(again)
    await node.attachments.upkeep()
    assert node.held("c1") == again.leases


async def test_what_could_not_be_taken_back_is_not_forgotten_over_a_later_loss(node: Node) -> None:
    """The first's lease has ended by a DEL; its loss comes to light while the second's waits for the disk."""
    first = await node.attachments.add(call(), "first")
    await node.attachments.delete(call(Verb.DEL), "del")
    second = await node.attachments.add(call(), "second")
    node.store.failing = "the disk fails"
    await node.attachments.lost(second, "second")
    await node.attachments.lost(first, "first")
    node.store.failing = ""
    await node.attachments.upkeep()
    assert node.held("c1") == ()


async def test_a_retry_that_is_lost_in_its_turn_leaves_nothing(node: Node) -> None:
    attached = await node.attachments.add(call(), "first")
    node.store.failing = "the disk fails"
    await node.attachments.lost(attached, "first")
    node.store.failing = ""
    again = await node.attachments.add(call(), "again")
    await node.attachments.lost(again, "again")
    assert node.held("c1") == ()


async def test_while_the_disk_can_not_be_asked_nobody_is_told_of_a_lease_or_of_its_end(node: Node) -> None:
    """I2: what was refused may be on it all the same, and come to light after a crash."""
    attached = await node.attachments.add(call(), "first")
    node.attachments.acknowledged(attached)
    node.store.failing = "the disk fails"
    with pytest.raises(LedgerUnavailable):
        await node.attachments.add(call(), "again")
    with pytest.raises(LedgerUnavailable):
        await node.attachments.delete(call(Verb.DEL, "unknown"), "x")
    node.store.failing = ""
    assert (await node.attachments.add(call(), "again")).leases == attached.leases
    assert await node.attachments.delete(call(Verb.DEL, "unknown"), "x") == ()


async def test_a_delete_waits_for_the_add_of_its_attachment_and_for_no_other(node: Node) -> None:
    other = await node.attachments.add(call(container="c2"), "other")
    node.attachments.acknowledged(other)
    node.store.stalled = True
    adding = asyncio.create_task(node.attachments.add(call(), "first"))
    await node.idle()
    deleting = asyncio.create_task(node.attachments.delete(call(Verb.DEL), "delete"))
    elsewhere = asyncio.create_task(node.attachments.delete(call(Verb.DEL, "c2"), "delete"))
    await node.idle()
    assert node.store.waiting == 2  # the ADD, and the DEL of the other
    node.store.stalled = False
    node.store.finish()
    released = await deleting
    assert [lease.owner.container_id for lease in released] == ["c1"]
    assert (await adding).leases == released
    assert len(await elsewhere) == 1


async def test_a_delete_cut_down_to_nothing_finds_the_container_in_every_network(node: Node) -> None:
    attached = await node.attachments.add(call(), "first")
    released = await node.attachments.delete(call(Verb.DEL, network=None, conf_name=""), "delete")
    assert released == attached.leases


async def test_a_delete_of_what_is_not_there_succeeds(node: Node) -> None:
    assert await node.attachments.delete(call(Verb.DEL, "unknown"), "delete") == ()


async def test_a_delete_that_the_disk_refuses_says_so_and_releases_nothing(node: Node) -> None:
    """C5: the first DEL fails; the retry finishes it, exactly once."""
    attached = await node.attachments.add(call(), "first")
    node.store.failing = "input/output error"
    with pytest.raises(LedgerUnavailable, match="input/output error"):
        await node.attachments.delete(call(Verb.DEL), "delete")
    assert node.held("c1") == attached.leases
    node.store.failing = ""
    assert await node.attachments.delete(call(Verb.DEL), "delete") == attached.leases
    assert await node.attachments.delete(call(Verb.DEL), "delete") == ()


async def test_gc_frees_what_is_not_listed_under_the_same_conf_name_only(node: Node) -> None:
    for container, conf in (("c1", "blue"), ("c2", "blue"), ("c3", "other-conf")):
        node.attachments.acknowledged(await node.attachments.add(call(container=container, conf_name=conf), container))
    node.clock.advance(1)
    request = call(Verb.GC, "", valid_attachments=frozenset({("c2", "eth0")}))
    freed = await node.attachments.collect(request, node.now(), "gc")
    assert [lease.owner.container_id for lease in freed] == ["c1"]
    assert node.held("c2")
    assert node.held("c3")


async def test_gc_spares_what_was_leased_after_it_began(node: Node) -> None:
    """C8: the list is read, an ADD comes in between, and the list does not have it."""
    began = node.now()
    node.clock.advance(0.5)
    attached = await node.attachments.add(call(), "first")
    assert await node.attachments.collect(call(Verb.GC, "", valid_attachments=frozenset()), began, "gc") == ()
    assert node.held("c1") == attached.leases


async def test_gc_spares_an_attachment_that_a_request_is_busy_with(node: Node) -> None:
    attached = await node.attachments.add(call(), "first")
    node.attachments.acknowledged(attached)
    node.clock.advance(5)
    node.store.stalled = True
    deleting = asyncio.create_task(node.attachments.delete(call(Verb.DEL), "delete"))
    await node.idle()
    assert await node.attachments.collect(call(Verb.GC, "", valid_attachments=frozenset()), node.now(), "gc") == ()
    node.store.stalled = False
    node.store.finish()
    assert await deleting == attached.leases


async def test_gc_can_be_switched_off() -> None:
    node = Node()
    node.attachments = Attachments(node.book, node.store, node.clock, spawn=node.spawn, add_wait=0.0, gc_enabled=False)
    node.attachments.serve()
    attached = await node.attachments.add(call(), "first")
    node.clock.advance(5)
    assert await node.attachments.collect(call(Verb.GC, "", valid_attachments=frozenset()), node.now(), "gc") == ()
    assert node.held("c1") == attached.leases


async def test_where_news_may_be_under_way_an_add_waits_for_a_network_to_become_known() -> None:
    """I11: a short wait would have served it."""
    for await_unknown in (False, True):
        node = Node()
        attachments = Attachments(
            node.book, node.store, node.clock, spawn=node.spawn, add_wait=30.0, await_unknown=await_unknown
        )
        attachments.serve()
        attachments.apply([])
        add = asyncio.create_task(attachments.add(call(), "first"))
        await let_run()
        attachments.apply([PLAN])
        if await_unknown:
            assert (await add).granted
        else:
            with pytest.raises(UnknownNetwork):
                await add


async def test_an_add_waits_to_be_admitted_and_then_gets_its_address() -> None:
    node = Node(add_wait=5.0)
    node.attachments.apply([replace(PLAN, refusal=Refusal(NotAdmitted, "not yet"))])
    adding = asyncio.create_task(node.attachments.add(call(), "first"))
    await node.idle()
    assert not adding.done()
    node.attachments.apply([PLAN])
    assert len((await adding).leases) == 1


async def test_an_add_that_waits_delays_no_other() -> None:
    node = Node(add_wait=30.0)
    green = replace(PLAN, name="green", refusal=Refusal(NotAdmitted, "not yet"))
    node.attachments.apply([PLAN, green])
    waiting = asyncio.create_task(node.attachments.add(call(network="green"), "waits"))
    await node.idle()
    assert (await node.attachments.add(call(), "goes")).granted
    waiting.cancel()


async def test_an_add_is_told_why_when_the_wait_is_over(node: Node) -> None:
    node.attachments.apply([replace(PLAN, refusal=Refusal(NotAdmitted, "the finalizer is not on it"))])
    with pytest.raises(NotAdmitted, match="the finalizer is not on it"):
        await node.attachments.add(call(), "first")


async def test_an_unknown_network_is_refused_at_once() -> None:
    node = Node(add_wait=1000.0)
    with pytest.raises(UnknownNetwork, match="red"):
        await node.attachments.add(call(network="red"), "first")


async def test_a_closed_network_is_refused_at_once() -> None:
    """Closed is for a person to undo: no short wait serves that ADD."""
    node = Node(add_wait=1000.0)
    node.attachments.apply([replace(PLAN, refusal=Refusal(NetworkClosed, "it is closed"))])
    with pytest.raises(NetworkClosed, match="it is closed"):
        await node.attachments.add(call(), "first")


async def test_a_draining_network_gives_nothing_new_and_repeats_what_it_gave(node: Node) -> None:
    attached = await node.attachments.add(call(), "first")
    node.attachments.apply([replace(PLAN, refusal=Refusal(NetworkDraining, "draining"))])
    with pytest.raises(NetworkDraining):
        await node.attachments.add(call(container="c2"), "second")
    assert (await node.attachments.add(call(), "again")).leases == attached.leases


async def test_status_is_50_for_what_no_add_can_get_past_and_for_nothing_else(node: Node) -> None:
    node.attachments.status("blue")
    node.attachments.apply([replace(PLAN, refusal=Refusal(NetworkDraining, "draining"))])
    node.attachments.status("blue")
    for number in range(20):
        node.attachments.apply([PLAN])
        try:
            await node.attachments.add(call(container=f"full{number}"), "x")
        except Exception:
            break
    node.attachments.status("blue")  # exhausted is no reason
    node.attachments.apply([replace(PLAN, refusal=Refusal(NetworkClosed, "closed"))])
    node.attachments.status("blue")
    node.attachments.apply([replace(PLAN, refusal=Refusal(NotAdmitted, "not yet"))])
    with pytest.raises(NotServing, match="not yet"):
        node.attachments.status("blue")
    node.attachments.apply([PLAN])
    node.store.failing = "the disk is gone"
    with pytest.raises(NotServing, match="the disk is gone"):
        node.attachments.status("blue")
    node.store.failing = ""
    node.attachments.serve("a rebuild runs")
    with pytest.raises(NotServing, match="a rebuild runs"):
        node.attachments.status(None)


async def test_while_leases_are_missing_a_delete_is_kept_for_later(node: Node) -> None:
    node.attachments.serve("the ledger is being rebuilt", incomplete=True)
    with pytest.raises(LedgerUnavailable, match="rebuilt"):
        await node.attachments.delete(call(Verb.DEL), "delete")


# -- further blocks

GROWING = replace(PLAN, blocks=(), may_grow=(Family.V4,), shared=True)


async def waiting(node: Node, container: str) -> asyncio.Task:
    task = node.spawn(node.attachments.add(call(container=container), container))
    await node.idle()
    return task


async def test_who_finds_nothing_waits_for_a_further_block_and_is_counted() -> None:
    node = Node(add_wait=60.0)
    told = []
    node.attachments.shortage.on_change(lambda: told.append(dict(node.attachments.shortage.of("blue"))))
    node.attachments.apply([GROWING])
    first, second = await waiting(node, "c1"), await waiting(node, "c2")
    assert told == [{Family.V4: 1}, {Family.V4: 2}]
    await node.attachments.delete(call(Verb.DEL, "c1"), "test")  # held up by nobody
    node.attachments.apply([PLAN])
    await node.idle()
    assert {str(task.result().leases[0].address) for task in (first, second)} == {"10.1.0.2", "10.1.0.3"}
    assert not node.attachments.shortage.of("blue")


async def test_who_waits_in_vain_is_told_to_try_again() -> None:
    node = Node(add_wait=0.0)
    node.attachments.apply([GROWING])
    with pytest.raises(BlockAwaited, match="try again"):
        await node.attachments.add(call(), "first")
    assert not node.attachments.shortage.of("blue")


async def test_who_waits_is_told_at_once_when_there_is_no_hope_any_more() -> None:
    node = Node(add_wait=60.0)
    node.attachments.apply([GROWING])
    task = await waiting(node, "c1")
    node.attachments.apply([replace(GROWING, may_grow=(), no_more="the cap is reached")])
    await node.idle()
    with pytest.raises(Exhausted, match="the cap is reached"):
        task.result()


async def test_who_waits_gets_what_another_gives_back() -> None:
    node = Node(add_wait=60.0)
    node.attachments.on_change(lambda: None)
    node.attachments.apply([replace(PLAN, may_grow=(Family.V4,))])
    for number in range(13):
        await node.attachments.add(call(container=f"c{number}"), f"{number}")
    task = await waiting(node, "late")
    assert not task.done()
    await node.attachments.delete(call(Verb.DEL, "c4"), "test")
    await node.idle()
    assert str(task.result().leases[0].address) == "10.1.0.6"


async def test_who_hangs_up_while_waiting_leaves_nothing() -> None:
    node = Node(add_wait=60.0)
    node.attachments.apply([GROWING])
    task = await waiting(node, "c1")
    task.cancel()
    await node.idle()
    assert not node.attachments.shortage.of("blue")
    node.attachments.apply([PLAN])
    await node.idle()
    assert node.held("c1") == ()


async def test_an_address_of_a_block_that_went_to_others_is_neither_told_nor_found_well_and_ends_with_its_del() -> None:
    """I1."""
    node = Node()
    await node.attachments.add(call(), "first")
    node.attachments.apply([GROWING])
    with pytest.raises(AddressUnavailable, match="recreate the pod"):
        await node.attachments.add(call(), "again")
    with pytest.raises(CheckFailed, match="recreate the pod"):
        node.attachments.check(call(Verb.CHECK))
    await node.attachments.delete(call(Verb.DEL), "test")
    assert node.held("c1") == ()
