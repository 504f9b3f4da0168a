"""The search on a real book, a real ledger and a runtime with faults: what it frees, when, and what it tells."""

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from allotment.addressing.address import parse_address
from allotment.addressing.errors import LedgerUnavailable
from allotment.cri.messages import LIST, STATUS, Sandbox
from allotment.cri.runtime import Runtime, find_runtime
from allotment.node.notices.board import Notices
from allotment.node.notices.notice import Subject
from allotment.node.notices.table import About
from allotment.node.orphans.search import OrphanSearch
from allotment.node.orphans.verdicts import Pods, Unreadable
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
            Notices(self.metrics, self.told.append),
            runtime=(lambda: Runtime(self.fake.path, timeout=0.2)) if runtime else None,
            pods=pods,
            waits=lambda: self.not_ready,
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
    (v4, v6, together) = world.told
    assert v4.subject == v6.subject == Subject(About.POD, "web-c1", "shop", "uid-web-c1")
    assert "doesn't know its sandbox" in v4.message
    assert together.subject == Subject(About.ALLOCATION, network="blue")
    assert together.message == f"{v4.message}; {v6.message}"
    assert world.metric("notices_total", reason="OrphanFreed") == 2
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
    reasons = [line["reason"] for line in world.said("orphans can't be searched for")]
    assert reasons
    # Told again only when it is another reason: a line that is cut ends in one of two ways.
    assert all(before != after for before, after in itertools.pairwise(reasons))
    assert all(str(world.fake.path) in reason for reason in reasons)
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


async def test_with_no_leases_and_no_networks_nobody_is_asked(world):
    await world.search_with()
    world.attachments.apply([])
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


# -- pods without a lease ----------------------------------------------------------------------------------------------


def stranger(name, *addresses, **more):
    ips = tuple(map(parse_address, addresses))
    return replace(sandbox(name), ips=ips, netns=f"/run/netns/{name}", **more)


async def test_a_running_pod_without_a_lease_is_given_one_by_two_looks(world):
    """I1: its address would be given to somebody else."""
    await world.search_with()
    world.fake.start(stranger("c7", "10.4.1.2", "fd00:4::2"))
    await world.looks(10, 29)
    assert world.held() == set()
    await world.looks(1)
    leases = list(world.book.leases())
    assert {(str(lease.address), lease.owner.pod_name, lease.netns) for lease in leases} == {
        ("10.4.1.2", "web-c7", "/run/netns/c7"),
        ("fd00:4::2", "web-c7", "/run/netns/c7"),
    }
    assert {str(lease.address) for lease in await world.give("c8", "shop/web-c8")} == {"10.4.1.3", "fd00:4::3"}
    assert len(await world.free("c7", "shop/web-c7")) == 2  # its DEL finds them
    assert world.metric("adopted_leases_total") == 2
    assert world.fake.asked.count(STATUS) == 1  # what doesn't change is asked once


async def test_others_are_not_adopted(world):
    await world.search_with()
    world.fake.start(
        stranger("c1", "10.4.1.2", host_network=True),
        stranger("c2", "10.4.1.3", ready=False),
        stranger("c3", "192.0.2.1"),
        stranger("c4", "10.4.1.1"),  # the gateway of the block
        stranger("c5"),
    )
    await world.looks(10, 60, 60)
    assert world.held() == set()


async def test_a_look_without_an_answer_in_between_makes_two_looks_of_none(world):
    await world.search_with()
    world.fake.start(stranger("c7", "10.4.1.2"))
    await world.looks(10)
    world.fake.fault = Fault.ERROR
    await world.looks(30)
    world.fake.fault = Fault.NONE
    await world.looks(30)
    assert world.held() == set()
    await world.looks(30)
    assert world.held() == {"c7"}


async def test_one_whose_lease_ends_meanwhile_is_not_adopted(world):
    """The runtime's list is older than the DEL; the sandbox is there no more when it is looked at again."""
    await world.search_with()
    await world.pod("c1")
    await world.free("c1", "shop/web-c1")
    await world.looks(10)
    world.fake.remove("c1")
    await world.looks(60, 60)
    assert world.held() == set()


async def test_two_pods_with_one_address_are_told_and_touched_by_nobody(world):
    await world.search_with()
    (held, _) = await world.pod("c1")
    world.fake.start(stranger("c7", str(held.address)), stranger("c8", "10.4.1.9"), stranger("c9", "10.4.1.9"))
    await world.looks(10)
    assert world.search.conflicts == ()  # one look alone may be wrong
    await world.looks(30, 30)
    assert [(str(each.address), [user.name for user in each.users]) for each in world.search.conflicts] == [
        ("10.4.1.2", ["shop/web-c1", "shop/web-c7"]),
        ("10.4.1.9", ["shop/web-c8", "shop/web-c9"]),
    ]
    assert world.held() == {"c1"}
    assert world.metric("address_conflicts") == 2
    assert len(world.said("two use one address")) == 2
    first = [notice for notice in world.told if "10.4.1.2 is used by" in notice.message]
    assert [notice.subject for notice in first] == [
        Subject(About.POD, "web-c1", "shop", "uid-web-c1"),
        Subject(About.POD, "web-c7", "shop", "uid-web-c7"),
        Subject(About.ALLOCATION, network="blue"),
        Subject(About.NETWORK, "blue"),
    ]
    assert len(world.told) == 8, "a conflict is told once, however long it lasts"
    world.fake.remove("c7", "c8")
    await world.looks(30, 30)
    assert world.search.conflicts == ()
    assert world.held() == {"c1", "c9"}


async def test_when_one_of_two_with_one_address_ends_the_other_has_the_lease_before_anybody_is_given_it(world):
    """I1: at the DEL, and not only when the next look is due."""
    await world.search_with()
    world.attachments.on_change(world.search.poke)
    (held, _) = await world.pod("c1")
    world.fake.start(stranger("c7", str(held.address)))
    await world.looks(10, 30)
    assert len(world.search.conflicts) == 1
    running = asyncio.ensure_future(world.search.run())
    await let_run()
    world.ends("c1")
    await world.free("c1", "shop/web-c1")
    async with asyncio.timeout(10):
        while world.held() != {"c7"}:
            await MACHINE.sleep(0.01)  # the clock of the search stands still
    running.cancel()


async def test_an_address_that_two_networks_have_tells_of_neither(world):
    red = network("red")
    await world.search_with()
    await world.see(BLUE, allocation(BLUE), red, allocation(red))
    world.fake.start(stranger("c7", "10.4.1.2"))
    await world.looks(10, 60, 60)
    assert world.held() == set()


async def test_a_pod_whose_add_is_under_way_is_left_to_it(world, monkeypatch):
    """The disk is slow: the lease is not there yet, and the sandbox is listed already."""
    await world.search_with()
    world.fake.start(stranger("c7", "10.4.1.2"))
    await world.looks(10)
    waiting, submit = [], world.ledger.submit
    with monkeypatch.context() as patch:
        patch.setattr(world.ledger, "submit", lambda *written: waiting.append(written) or asyncio.Future())
        adding = asyncio.ensure_future(world.give("c7", "shop/web-c7"))
        await let_run()
        assert waiting
    await world.looks(60)
    assert world.said("pods without a lease not looked for")
    submit(*waiting[0])
    await let_run()
    adding.cancel()
