"""When an address is no longer kept for its virtual machine, against a fake API server with its faults (ADR 0013)."""

import asyncio
import contextlib
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import structlog

from allotment.addressing.book import Claimed, LeaseBook
from allotment.addressing.errors import NetworkDraining, NotAdmitted
from allotment.addressing.lease import Cause, Lease, Moment, Owner, Released, kept_for
from allotment.addressing.plan import Refusal
from allotment.cni.request import CniRequest, Verb
from allotment.kube.client import Client
from allotment.kube.resources import INSTANCES, PODS, VMS
from allotment.node.attaching.attachments import Attachments
from allotment.node.attaching.nameless import Nameless
from allotment.node.view import View
from allotment.node.vms.keeper import VmKeeper
from allotment.node.vms.kept import Looks
from allotment.node.vms.parts import VmParts
from allotment.observe.metrics import Metrics
from allotment.testing.api_server import ApiServer
from allotment.testing.clock import ManualClock
from allotment.testing.store import MemoryStore
from property.test_attachments_machine import plan
from unit.node.test_vm_claims import INSTANCE

PLAN = plan(keeps=True, cooldown=0.0)
IN_STEP = View(synced=True)


class Store(MemoryStore):
    """Remembers the ends of leases that it was asked to write."""

    def __init__(self):
        super().__init__()
        self.history = []

    def submit(self, changes, then=None):
        self.history += [change for change in changes if isinstance(change, Released)]
        return super().submit(changes, then)


class Stage:
    """A node with a pod of VM shop/db that has ended; time goes on by itself while something is waited for."""

    def __init__(self, server, client, labelled=True):
        self.server = server
        self.clock = ManualClock()
        self.book = LeaseBook("n1")
        self.book.load((), (), sequence=0, now=self.now)
        self.store = Store()
        self.waits = ""
        self.pods = {}
        self.attachments = Attachments(
            self.book, self.store, self.clock, spawn=asyncio.get_running_loop().create_task, add_wait=0.0
        )
        self.metrics = Metrics("test")
        parts = VmParts(
            book=self.book,
            attachments=self.attachments,
            clock=self.clock,
            metrics=self.metrics,
            node="n1",
            waits=lambda: self.waits,
        )
        self.labelled = labelled
        self.keeper = VmKeeper(
            client, lambda *key: self.pods.get(key), lambda: self.labelled, parts, structlog.get_logger()
        )
        self.attachments.know_machines(self.keeper)
        self.attachments.on_change(self.keeper.poke)
        self.apply(PLAN)
        self.attachments.serve()

    @property
    def now(self):
        return Moment(self.clock.boot, self.clock.seconds())

    def apply(self, new, view=IN_STEP):
        self.attachments.apply([] if new is None else [new])
        self.keeper.take(view)

    def launch(self, name, vm="db"):
        """A pod that runs the VM, as the API has it and the watch shows it; its UID."""
        meta = {"name": name, "namespace": "shop", "ownerReferences": [{**INSTANCE, "name": vm, "uid": "vmi"}]}
        pod = self.server.put(PODS, {"metadata": meta})
        self.pods["shop", name] = pod
        return pod.metadata.uid

    def request(self, verb, name, uid):
        return CniRequest(
            verb=verb,
            cni_version="1.1.0",
            container_id=name,
            interface="eth0",
            conf_name="blue",
            network="blue",
            pod_namespace="shop",
            pod_name=name,
            pod_uid=uid,
        )

    async def add(self, name, uid=None):
        attached = await self.attachments.add(self.request(Verb.ADD, name, uid or self.launch(name)), f"add-{name}")
        return [str(lease.address) for lease in attached.leases]

    async def delete(self, name):
        await self.attachments.delete(self.request(Verb.DEL, name, ""), "del")

    def vm_exists(self, exists=True):
        if exists:
            self.server.put(VMS, {"metadata": {"name": "db", "namespace": "shop"}})
        else:
            self.server.delete(VMS, "db", namespace="shop")

    def runs_on(self, node, phase="Running"):
        body = {"metadata": {"name": "db", "namespace": "shop"}, "status": {"phase": phase, "nodeName": node}}
        self.server.put(INSTANCES, body)

    def kept(self):
        return sorted(str(lease.address) for lease in self.book.kept())

    async def pass_(self, seconds, step=1.0):
        """So much time passes, and whatever is due in it is done."""
        for _ in range(int(seconds / step)):
            self.clock.advance(step)
            for _ in range(10):
                await asyncio.to_thread(lambda: None)

    async def ends_within(self, seconds):
        """After how many seconds nothing is kept any more; None if it goes on."""
        for second in range(int(seconds)):
            if not self.kept():
                return second
            await self.pass_(1)
        return None if self.kept() else seconds


@asynccontextmanager
async def stage(**more):
    async with ApiServer() as server, Client(server.access, ManualClock()) as client:
        made = Stage(server, client, **more)
        made.vm_exists()
        task = asyncio.create_task(made.keeper.run())
        try:
            yield made
            assert not task.done(), task.result()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def stopped(**more):
    """The same, with a VM that was stopped."""
    async with stage(**more) as made:
        made.addresses = await made.add("c1")
        await made.delete("c1")
        assert made.kept() == made.addresses
        yield made


async def test_a_vm_that_is_there_keeps_its_address_for_days():
    async with stopped() as made:
        await made.pass_(3 * 86400, step=600)
        assert made.kept() == made.addresses
        assert await made.add("c2") == made.addresses


async def test_of_a_vm_that_is_gone_nothing_is_kept_after_two_looks():
    """I8: half a minute apart."""
    async with stopped() as made:
        made.vm_exists(False)
        assert 50 <= await made.ends_within(200) <= 80
        history = made.store.history[-len(made.addresses) :]
        assert {(each.cause, each.detail) for each in history} == {(Cause.UNKEPT, "VirtualMachine shop/db is gone")}


async def test_a_vm_that_comes_back_between_two_looks_keeps_its_address():
    async with stopped() as made:
        made.vm_exists(False)
        await made.pass_(35)
        made.vm_exists()
        await made.pass_(600, step=5)
        assert made.kept() == made.addresses


async def test_what_a_vm_left_that_runs_on_another_node_is_not_kept():
    async with stopped() as made:
        made.runs_on("n2")
        assert 50 <= await made.ends_within(200) <= 80
        assert "runs on node n2" in made.store.history[-1].detail


@pytest.mark.parametrize(
    ("node", "phase"), [("n1", "Running"), ("n2", "Scheduling"), ("", "Running"), ("n2", "Failed")]
)
async def test_a_vm_that_runs_nowhere_else_keeps_its_address(node, phase):
    async with stopped() as made:
        made.runs_on(node, phase)
        await made.pass_(900, step=5)
        assert made.kept() == made.addresses


@pytest.mark.parametrize("fault", ["cut", "401", "404", "429", "500", "503", "garbage", "unserved"])
async def test_an_api_server_that_gives_no_answer_proves_nothing(fault):
    """I8, I15: neither by itself nor between two looks that show the VM gone."""
    async with stopped() as made:
        if fault == "unserved":
            made.server.unserved.add(VMS.full_name)
        else:
            made.server.fail(fault, kind=VMS.full_name, times=1000)
        made.vm_exists(False)
        await made.pass_(600, step=5)
        assert made.kept() == made.addresses
        made.server.heal()
        made.server.unserved.clear()
        assert await made.ends_within(200) is not None


async def test_an_api_server_that_does_not_answer_is_not_asked_for_each_machine():
    """Else what is due at once would wait for as many timeouts as there are machines."""
    async with stage() as made:
        for number in range(3):
            await made.add(f"c{number}", made.launch(f"c{number}", f"vm{number}"))
            await made.delete(f"c{number}")
        made.server.fail("500", kind=VMS.full_name, times=1000)
        await made.pass_(45)
        assert len([each for each in made.server.requests if each.kind == VMS.full_name]) == 1
        made.server.heal()
        assert await made.ends_within(200) is not None


async def test_persistence_that_is_turned_off_ends_it_at_once():
    async with stopped() as made:
        made.apply(replace(PLAN, keeps=False))
        assert await made.ends_within(3) is not None
        assert "Disabled" in made.store.history[-1].detail
        await made.add("c2")
        await made.delete("c2")
        assert made.kept() == []


async def test_a_network_that_drains_or_is_gone_keeps_nothing():
    """I5: a VM that is stopped holds up no drain."""
    async with stopped() as made:
        made.apply(replace(PLAN, keeps=False, refusal=Refusal(NetworkDraining, "network blue is draining")))
        assert await made.ends_within(3) is not None
        assert made.store.history[-1].detail == "network blue is draining"
    async with stopped() as made:
        made.apply(None)
        assert await made.ends_within(3) is not None


@pytest.mark.parametrize("view", [View(), View(synced=True, doubted="the API server shows no networks")])
async def test_nothing_ends_on_the_word_of_a_source_that_is_not_believed(view):
    """I15."""
    async with stopped() as made:
        made.vm_exists(False)
        made.apply(None, view)
        await made.pass_(300, step=5)
        assert made.kept() == made.addresses
        made.apply(PLAN)
        assert await made.ends_within(200) is not None


async def test_nothing_ends_while_leases_may_be_missing():
    async with stopped() as made:
        made.waits = "the ledger is being rebuilt"
        made.apply(replace(PLAN, keeps=False))
        await made.pass_(60)
        assert made.kept() == made.addresses
        made.waits = ""
        assert await made.ends_within(5) is not None


async def test_a_network_that_is_not_admitted_for_a_moment_keeps_what_it_kept():
    async with stopped() as made:
        made.apply(replace(PLAN, refusal=Refusal(NotAdmitted, "the finalizer is not on it")))
        await made.pass_(60)
        assert made.kept() == made.addresses


async def test_a_disk_that_refuses_is_asked_again():
    """I14."""
    async with stopped() as made:
        made.store.failing = "no space"
        made.apply(replace(PLAN, keeps=False))
        await made.pass_(20)
        assert made.kept() == made.addresses
        made.store.failing = ""
        assert await made.ends_within(5) is not None


async def test_a_vm_that_starts_just_when_it_is_found_gone_has_its_address():
    """I7: the last look names a lease that its new pod has taken over."""
    async with stopped() as made:
        made.vm_exists(False)
        await made.pass_(40)
        assert await made.add("c2") == made.addresses
        await made.pass_(300)
        assert [str(lease.address) for lease in made.book.of_container("c2", "eth0")] == made.addresses


async def test_the_metric_counts_what_is_kept():
    async with stopped() as made:
        body, _ = made.metrics.exposition("")
        assert f'allotment_vm_addresses_kept{{network="blue"}} {len(made.addresses)}.0' in body.decode()


async def test_a_pod_that_was_not_seen_is_asked_for_where_vms_may_run():
    async with stage() as made:
        uid = made.launch("c1")
        made.pods.clear()
        await made.add("c1", uid)
        await made.delete("c1")
        assert len(made.kept()) == 2
    async with stage(labelled=False) as made:
        uid = made.launch("c1")
        made.pods.clear()
        await made.add("c1", uid)
        assert not [each for each in made.server.requests if each.kind == PODS.full_name]
        await made.delete("c1")
        assert made.kept() == []


async def test_without_an_api_server_a_pod_that_was_not_seen_gets_an_address_all_the_same():
    """I12."""
    async with stage() as made:
        uid = made.launch("c1")
        made.pods.clear()
        await made.server.stop()
        assert len(await made.add("c1", uid)) == 2
        await made.server.start()


async def test_a_running_vm_is_found_again_when_the_ledger_was_lost():
    async with stage() as made:
        addresses = await made.add("c1")
        held = list(made.book.leases())
        await made.attachments.remove(held, Cause.OPERATOR, "as if it was lost")
        owner = Owner("blue", "c1", "eth0", "shop", "c1", made.pods["shop", "c1"].metadata.uid)
        await made.attachments.restore(Claimed(owner, lease.address) for lease in held)
        await made.delete("c1")
        assert made.kept() == addresses


def test_a_del_without_a_namespace_means_no_kept_address_whatever_the_machine_is_called():
    """I7: leases that a rebuild found in a network namespace have an ID made from its name, `netns-…`."""
    owner = kept_for(Owner("blue", "c1", "eth0", "netns-1", vm="db"))
    lease = Lease(PLAN.blocks[0].prefix.first + 2, PLAN.blocks[0].prefix, owner, 1, Moment("b", 1.0), 1.0)
    assert not list(Nameless([lease]).of("", "eth0"))


def test_looks_have_to_agree_and_to_be_apart():
    looks = Looks(due=0.0)
    assert not looks.look("gone", 100.0)
    assert looks.due == 130.0
    assert not looks.look(None, 131.0)
    assert not looks.look("gone", 161.0)
    assert not looks.look("gone", 190.9)
    assert looks.look("runs on n2", 191.0)
    assert not Looks(due=0.0, since=0.0).look("", 1000.0)
