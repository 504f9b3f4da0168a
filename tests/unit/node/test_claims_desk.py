"""Asking for addresses by Claim against a fake API server and its faults, with the controller's double (ADR 0011)."""

import asyncio
import contextlib
from contextlib import asynccontextmanager

import pytest
import structlog

from allotment.addressing.address import parse_prefix
from allotment.addressing.book import LeaseBook
from allotment.addressing.edges import block_gateway
from allotment.addressing.errors import AllotmentError, NetworkDraining, TryAgain
from allotment.addressing.lease import Cause, Moment
from allotment.addressing.plan import BlockPlan, Layer, NetworkPlan, Refusal
from allotment.api.allocation import Allocation, AllocationSpec
from allotment.api.meta import ObjectMeta
from allotment.cni.request import CniRequest, Verb
from allotment.kube.client import Client
from allotment.kube.resources import ADDRESSES, CLAIMS, NETWORKS
from allotment.node.attaching.attachments import Attachments
from allotment.node.claims.desk import ClaimDesk
from allotment.node.claims.own import OwnClaims
from allotment.node.claims.parts import ClaimParts
from allotment.node.view import View
from allotment.observe.metrics import Metrics
from allotment.testing.api_server import ApiServer
from allotment.testing.clock import ManualClock
from allotment.testing.store import MemoryStore
from claim_controller import ClaimController
from kube.following import CLOCK, until
from looking import network

SUBNETS = (parse_prefix("192.0.2.0/24"), parse_prefix("fd00:2::/64"))
BLOCKS = tuple(BlockPlan(each, each.length, block_gateway(each)) for each in SUBNETS)
PLAN = NetworkPlan("blue", Layer.L2, SUBNETS, BLOCKS, 0.0, claimed=True)
MARKER = Allocation(ObjectMeta("blue.n1"), AllocationSpec(network="blue", network_uid="u", node="n1", type=Layer.L2))
CLAIMS_NAME = CLAIMS.full_name


def call(verb=Verb.ADD, container="c1", **fields):
    given = {
        "conf_name": "blue",
        "network": "blue",
        "interface": "eth0",
        "pod_namespace": "shop",
        "pod_name": container,
    }
    return CniRequest(verb=verb, cni_version="1.1.0", container_id=container, **(given | fields))


class Stage:
    """An agent's attachments and desk, and a controller, of one API server."""

    def __init__(self, server, client, controller, limit):
        self.server, self.controller = server, controller
        self.book = LeaseBook("n1")
        self.book.load((), (), sequence=0, now=Moment(CLOCK.boot, CLOCK.seconds()))
        self.store = MemoryStore()
        self.waits = ""
        self.attachments = Attachments(
            self.book, self.store, CLOCK, spawn=asyncio.get_running_loop().create_task, add_wait=0.0
        )
        self.attachments.apply([PLAN])
        self.attachments.serve()
        parts = ClaimParts(
            book=self.book,
            attachments=self.attachments,
            clock=CLOCK,
            metrics=Metrics("test"),
            node="n1",
            ledger_id="L",
            limit=limit,
            waits=lambda: self.waits,
        )
        self.desk = ClaimDesk(client, lambda *_: None, parts, structlog.get_logger())
        self.attachments.pick_by(self.desk)
        self.attachments.on_change(self.desk.poke)

    async def add(self, container="c1", **fields):
        attached = await self.attachments.add(call(container=container, **fields), f"add-{container}")
        return tuple(str(lease.address) for lease in attached.leases)

    @asynccontextmanager
    async def limited(self, seconds):
        """ADDs wait no longer than this meanwhile."""
        before, self.desk._limit = self.desk._limit, seconds
        try:
            yield
        finally:
            self.desk._limit = before

    async def delete(self, container="c1"):
        await self.attachments.delete(call(Verb.DEL, container), "del")

    def claims(self):
        return [claim["spec"]["pod"]["containerID"] for claim in self.server.objects.list(CLAIMS)]

    def held(self):
        return [item["spec"]["address"] for item in self.server.objects.list(ADDRESSES)]


@asynccontextmanager
async def stage(*, limit=5.0, marker=True):
    async with ApiServer() as server, Client(server.access, CLOCK) as client, Client(server.access, CLOCK) as theirs:
        subnets = [{"cidr": "192.0.2.0/24", "gateway": "192.0.2.1"}, {"cidr": "fd00:2::/64", "gateway": "fd00:2::1"}]
        flat = network("blue")
        flat["spec"] |= {"type": "L2", "subnets": subnets}
        server.put(NETWORKS, flat)
        controller = ClaimController(theirs, CLOCK)
        made = Stage(server, client, controller, limit)
        tasks = [asyncio.create_task(made.desk.run()), asyncio.create_task(controller.run())]
        made.desk.take(View(allocations={"blue": MARKER} if marker else {}))
        try:
            yield made
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)


async def test_all_families_or_none_and_all_of_it_goes_back():
    async with stage() as made:
        assert await made.add() == ("192.0.2.2", "fd00:2::2")
        await made.delete()
        await until(lambda: not made.claims() and not made.held(), "it is not given back")


@pytest.mark.parametrize("fault", ["lost", "cut", "429", "500", "503"])
@pytest.mark.parametrize("verb", ["create", "get", "list", "watch"])
async def test_what_fails_once_costs_time_and_nothing_else(verb, fault):
    """I11; and I1: a create whose answer is lost makes no second Claim."""
    async with stage(limit=20.0) as made:
        made.server.fail(fault, verb=verb, kind=CLAIMS_NAME)
        assert await made.add() == ("192.0.2.2", "fd00:2::2")
        assert made.claims() == ["c1", "c1"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lost", "cut", "429", "500"])
@pytest.mark.parametrize("verb", ["delete", "patch"])
async def test_a_release_that_fails_is_done_later(verb, fault):
    """I14."""
    async with stage() as made:
        await made.add()
        made.server.fail(fault, verb=verb, kind=CLAIMS_NAME, times=2)
        await made.delete()
        assert not list(made.book.leases())
        await until(lambda: not made.claims() and not made.held(), "it is not given back")


@pytest.mark.slow
async def test_a_silent_watch_is_made_up_for_by_asking():
    """I11: the line may be dead for half a minute before anybody knows."""
    async with stage(limit=20.0) as made:
        await until(lambda: made.server.watches.count(CLAIMS_NAME) == 2, "nobody watches")
        made.controller.set(idle=True)
        adding = asyncio.create_task(made.add())
        await until(lambda: len(made.claims()) == 2, "no Claims are made")
        mine = [watch for watch in made.server._watches.values() if watch.selector]
        for watch in mine:
            watch.muted = True
        made.controller.set(idle=False)
        assert await adding == ("192.0.2.2", "fd00:2::2")


async def test_a_caller_that_hangs_up_while_it_waits_holds_nothing_up():
    async with stage() as made:
        made.controller.set(idle=True)
        adding = asyncio.create_task(made.add())
        await until(lambda: len(made.claims()) == 2, "no Claims are made")
        adding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await adding
        made.controller.set(idle=False)
        assert await made.add() == ("192.0.2.2", "fd00:2::2")
        assert len(made.claims()) == 2, "the retry finds what was left"


async def test_a_network_that_closes_while_its_address_is_waited_for_gives_none():
    """I9: refused, and what was picked goes back at once."""
    async with stage() as made:
        made.controller.set(idle=True)
        adding = asyncio.create_task(made.add())
        await until(lambda: len(made.claims()) == 2, "no Claims are made")
        refusal = Refusal(NetworkDraining, "network blue is being deleted")
        made.attachments.apply([NetworkPlan("blue", Layer.L2, SUBNETS, BLOCKS, 0.0, refusal=refusal, claimed=True)])
        made.controller.set(idle=False)
        with pytest.raises(NetworkDraining):
            await adding
        await until(lambda: not made.claims() and not made.held(), "it is not given back")


async def test_a_disk_that_refuses_leaves_the_claim_for_the_retry():
    async with stage() as made:
        made.store.failing = "no space"
        with pytest.raises(AllotmentError):
            await made.add()
        made.store.failing = ""
        assert await made.add() == ("192.0.2.2", "fd00:2::2")
        assert len(made.claims()) == 2


async def test_nothing_is_withdrawn_before_all_leases_are_known():
    """I15."""
    async with stage() as made:
        made.waits = "the ledger is being rebuilt"
        await made.add()
        await made.delete()
        made.desk.poke()
        await CLOCK.sleep(0.1)
        assert len(made.claims()) == 2
        made.waits = ""
        await until(lambda: not made.claims(), "it is not given back")


async def test_leases_that_end_in_any_other_way_give_their_claims_back_too():
    async with stage() as made:
        await made.add()
        await made.attachments.remove(list(made.book.leases()), Cause.ORPHAN, "its sandbox is gone")
        await until(lambda: not made.claims() and not made.held(), "it is not given back")


async def test_a_dual_stack_pod_gets_nothing_where_one_family_is_exhausted():
    async with stage() as made:
        made.controller.set(exhausted="pool net.blue.v6 is exhausted")
        with pytest.raises(AllotmentError, match=r"pool net\.blue\.v6 is exhausted") as refused:
            await made.add()
        assert refused.value.code == 101
        assert not list(made.book.leases())
        await made.delete()
        await until(lambda: not made.claims(), "the Claims stay")


async def test_a_claim_of_somebody_elses_under_that_name_is_left_alone():
    async with stage() as made:
        await made.add()
        theirs = made.server.objects.list(CLAIMS)[0]
        spec = theirs["spec"] | {"node": "n2"}
        await made.delete()
        await until(lambda: not made.claims(), "it is not given back")
        made.server.put(CLAIMS, theirs | {"spec": spec, "status": {}})
        with pytest.raises(AllotmentError, match="not this pod's"):
            await made.add()
        await made.delete()
        await until(lambda: made.claims() == ["c1"], "what was made of the other family stays")


async def test_a_claim_on_its_way_out_is_let_go_and_made_anew():
    """I1: a retry that comes while an earlier Claim is being withdrawn."""
    async with stage() as made:
        await made.add()
        first = {claim["metadata"]["uid"] for claim in made.server.objects.list(CLAIMS)}
        made.server.fail("500", verb="patch", kind=CLAIMS_NAME, times=2)
        await made.delete()
        await until(
            lambda: all(claim["metadata"].get("deletionTimestamp") for claim in made.server.objects.list(CLAIMS)),
            "they are not deleted",
        )
        assert len(await made.add()) == 2
        assert not first & {claim["metadata"]["uid"] for claim in made.server.objects.list(CLAIMS)}
        assert len(made.claims()) == 2


async def test_without_an_api_server_there_is_no_address_but_an_answer():
    async with stage(limit=0.3) as made:
        await made.server.stop()
        with pytest.raises(TryAgain, match="within"):
            await made.add()
        await made.server.start()


async def test_a_node_of_l3_networks_alone_reads_the_list_once_and_keeps_no_connection():
    clock = ManualClock()
    async with ApiServer() as server, Client(server.access, clock) as client:
        own = OwnClaims(client, "n1", clock, structlog.get_logger(), lambda: None)
        own.want(wanted=False)
        task = asyncio.create_task(own.run())

        async def passes(condition, what):
            def passed():
                clock.advance(1.0)
                return condition()

            await until(passed, what)

        await passes(lambda: own.synced, "the list is not read")
        await passes(lambda: not own.watching, "the watch goes on with nothing to see")
        server.bookmark()  # the server finds out that nobody listens any more
        await passes(lambda: not server.watches, "the connection is kept")
        lists = [each for each in server.requests if each.verb == "list"]
        own.want(wanted=True)
        await passes(lambda: own.synced and server.watches, "it is not taken up again")
        assert len(lists) == 1
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
