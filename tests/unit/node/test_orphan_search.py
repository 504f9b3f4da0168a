"""The search on a real book, a real ledger and a runtime with faults: what it frees, when, and what it tells."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from allotment.addressing.errors import LedgerUnavailable
from allotment.cri.messages import LIST, Sandbox
from allotment.cri.runtime import Runtime, find_runtime
from allotment.node.orphan_search import OrphanSearch
from allotment.node.orphans import Pods, Unreadable
from allotment.observe.clock import SystemClock
from allotment.observe.metrics import Metrics
from allotment.testing.clock import let_run
from allotment.testing.cri import FakeRuntime, Fault
from looking import World, allocation, network

BLUE = network()
MACHINE = SystemClock("")


def sandbox(name):
    return Sandbox(name, name=f"web-{name}", namespace="shop", uid=f"uid-web-{name}", ready=True)


class Searched(World):
    """A world with a runtime and a search; `here` are the containers whose namespaces are there."""

    def __init__(self, folder):
        super().__init__(folder)
        self.fake = FakeRuntime(folder / "cri.sock")
        self.metrics = Metrics("1")
        self.log = CapturingLogger()
        self.told = []

    async def search_with(self, *, runtime=True, pods=None):
        await self.start(BLUE, allocation(BLUE))
        self.search = OrphanSearch(
            self.book,
            self.attachments,
            self.clock,
            self.metrics,
            self.log,
            runtime=(lambda: Runtime(self.fake.path, timeout=0.2)) if runtime else None,
            pods=pods,
            waits=lambda: self.not_ready,
            tell=self.told.extend,
        )
        return self

    async def pod(self, container, *, running=True):
        leases = await self.give(container, f"shop/web-{container}")
        if running:
            self.fake.start(sandbox(container))
            # A namespace lies on another file system than its folder; any such path will do for one.
            Path(leases[0].netns).symlink_to("/proc/self/ns/net")
        return leases

    def ends(self, *containers):
        """The runtime has taken them down, and no DEL came."""
        self.fake.remove(*containers)
        for container in containers:
            (self.settings.netns_dir[0] / container).unlink(missing_ok=True)

    async def looks(self, *after):
        """Rounds of the search, each so many seconds after the one before; what the last one freed."""
        found = None
        for seconds in after:
            self.clock.advance(seconds)
            found = await self.search.search()
        return sorted({each.lease.owner.container_id for each in found.freed})

    def held(self):
        return {lease.owner.container_id for lease in self.book.leases()}

    def metric(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"allotment_{name}", labels)

    def said(self, event):
        return [call.kwargs for call in self.log.calls if call.args == (event,)]


@pytest.fixture
async def world(tmp_path):
    world = Searched(tmp_path)
    with world.fake:
        yield world
        await world.stop()


async def test_an_orphan_is_freed_by_two_looks_and_the_history_has_the_evidence(world):
    await world.search_with()
    await world.pod("c1")
    await world.pod("c2")
    world.ends("c1")
    assert await world.looks(60, 31) == []  # it is young
    assert await world.looks(60) == []
    assert world.metric("orphan_leases", state="suspected") == 2
    assert await world.looks(30) == ["c1"]
    assert world.held() == {"c2"}
    (entry, _) = (await world.ask("history", container="c1"))["entries"]
    assert entry["ended"]["cause"] == "orphan"
    assert "doesn't know its sandbox" in entry["ended"]["detail"]
    assert "30 s apart" in entry["ended"]["detail"]
    assert world.metric("orphans_freed_total") == 2
    assert world.metric("orphan_looks_total", outcome="judged") == 4
    assert {told.lease.owner.pod_name for told in world.told} == {"web-c1"}
    assert {line["pod"] for line in world.said("freed an orphan")} == {"shop/web-c1"}
    assert await world.looks(30, 30) == []
    assert world.metric("orphan_leases", state="suspected") == 0


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in (Fault.NONE, Fault.EMPTY)])
async def test_a_runtime_that_gives_no_answer_frees_nothing(world, fault):
    """I8."""
    await world.search_with()
    await world.pod("c1")
    await world.pod("c2")
    world.ends("c1")
    world.fake.fault = fault
    assert await world.looks(200, 60, 60) == []
    assert world.metric("orphan_looks_total", outcome="blind") == 3
    (line,) = world.said("orphans can't be searched for")  # once, not with each look
    assert str(world.fake.path) in line["reason"]
    world.fake.fault = Fault.NONE
    assert await world.looks(60, 60) == ["c1"]
    assert world.said("orphans are searched for again") == [{}]


async def test_a_list_that_is_empty_while_pods_run_frees_nothing(world):
    """I15."""
    await world.search_with()
    await world.pod("c1")
    await world.pod("c2")
    world.ends("c1")
    world.fake.fault = Fault.EMPTY
    assert await world.looks(200, 60, 60) == []
    assert world.held() == {"c1", "c2"}
    assert "is there" in world.said("orphans can't be searched for")[0]["reason"]


async def test_a_runtime_that_is_not_there_yet_frees_nothing(world, tmp_path):
    await world.search_with()
    await world.pod("c1")
    world.ends("c1")
    world.search._runtime = lambda: find_runtime([tmp_path / "no.sock", tmp_path / "none.sock"])
    assert await world.looks(200, 60) == []
    assert "neither" in world.said("orphans can't be searched for")[0]["reason"]


async def test_a_namespace_without_sandbox_holds_its_address_and_is_told_once(world):
    await world.search_with()
    await world.pod("c1")
    await world.pod("c2")
    world.fake.remove("c1")
    assert await world.looks(3600, 60, 60) == []
    assert world.metric("orphan_leases", state="held") == 2
    assert len(world.said("an address may be in use unknown to the runtime")) == 2  # one for each family


async def test_the_sequence_guards_who_came_meanwhile(world):
    """I7: between the verdict and its end the attachment was released, and its address given to somebody else."""
    await world.search_with()
    (first, _) = await world.pod("c1")
    await world.pod("c2")
    world.ends("c1")
    await world.looks(200)
    verdict = (await world.search.search(free=False)).verdict
    world.clock.advance(31)
    verdict = (await world.search.search(free=False)).verdict
    assert {orphan.lease.owner.container_id for orphan in verdict.orphans} == {"c1"}
    await world.free("c1")
    world.clock.advance(60)  # its cooldown
    await world.give("c9", "shop/web-c9", ips=(str(first.address),))
    assert await world.search._free(verdict.orphans) == ()
    assert world.held() == {"c2", "c9"}


async def test_an_address_that_is_given_while_the_runtime_answers_is_left_alone(world):
    """C8."""
    await world.search_with()
    await world.pod("c1")
    await world.looks(200)
    world.fake.fault = Fault.STALL
    task = asyncio.ensure_future(world.search.search())
    while world.fake.asked[-1:] != [LIST] or len(world.fake.asked) < 2:
        await MACHINE.sleep(0.001)
    await world.give("c2", "shop/web-c2")
    assert (await task).freed == ()
    world.fake.fault = Fault.NONE
    assert await world.looks(31, 31) == []


async def test_what_the_disk_refuses_is_freed_later(world, monkeypatch):
    await world.search_with()
    await world.pod("c1")
    await world.pod("c2")
    world.ends("c1")
    await world.looks(200)
    refused = LedgerUnavailable("the disk is full")

    def refuse(changes, then=None):
        then(refused)
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(refused)
        return failed

    with monkeypatch.context() as patch:
        patch.setattr(world.ledger, "submit", refuse)
        with pytest.raises(LedgerUnavailable):
            await world.looks(60)
    assert world.held() == {"c1", "c2"}
    assert await world.looks(60) == ["c1"]


async def test_it_waits_until_all_leases_are_known_and_then_goes_on_by_itself(world):
    """I15: nothing is freed while a lost ledger is being made again."""
    await world.search_with()
    await world.pod("c1")
    await world.pod("c2")
    world.ends("c1")
    world.not_ready = "the ledger is being rebuilt"
    running = asyncio.ensure_future(world.search.run())
    try:
        for _ in range(8):
            world.clock.advance(30)
            await let_run()
        assert world.fake.asked == []
        world.not_ready = ""
        while "c1" in world.held():
            world.clock.advance(30)
            await MACHINE.sleep(0.01)
        assert world.held() == {"c2"}
    finally:
        running.cancel()


async def test_with_no_leases_nobody_is_asked(world):
    await world.search_with()
    assert await world.looks(200, 60) == []
    assert world.fake.asked == []


async def test_without_a_runtime_pods_and_namespaces_decide(world):
    pods = Pods(frozenset({"uid-web-c1", "uid-web-c2"}))
    seen = [pods]
    await world.search_with(runtime=False, pods=lambda: seen[-1])
    for container in ("c1", "c2", "c3"):
        await world.pod(container)
    (world.settings.netns_dir[0] / "c2").unlink()  # its pod is there
    assert await world.looks(200, 60) == []  # c3's pod has gone, its namespace hasn't
    (world.settings.netns_dir[0] / "c3").unlink()
    seen.append(Unreadable("no contact for 80 s"))
    assert await world.looks(60, 60) == []
    seen.append(pods)
    assert await world.looks(60, 60) == ["c3"]
