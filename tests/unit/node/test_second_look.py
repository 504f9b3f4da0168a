"""What a DEL can't be sure of is looked at again: leases that its pod has by other containers (DESIGN of DEL, C20)."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from allotment.addressing.lease import Cause, Moment
from allotment.cni.request import parse_request
from allotment.cri.messages import Sandbox
from allotment.cri.runtime import Runtime
from allotment.node.attaching.second_look import SecondLook
from allotment.observe.clock import SystemClock
from allotment.testing.clock import let_run
from allotment.testing.cri import FakeRuntime, Fault
from looking import World, allocation, network

BLUE = network(cooldownSeconds=0)
POD = "shop/web-0"
CONF = {"cniVersion": "1.1.0", "name": "blue-net", "type": "ptp", "ipam": {"type": "allotment", "network": "blue"}}
MACHINE = SystemClock("")


class Looking(World):
    """A world whose DELs are looked after; `release` is one, of a container of `POD` unless said."""

    def __init__(self, folder):
        super().__init__(folder)
        self.fake = FakeRuntime(folder / "cri.sock")
        self.log = CapturingLogger()

    async def begin(self):
        await self.start(BLUE, allocation(BLUE))
        self.second_look = SecondLook(
            self.book, self.attachments, self.clock, self.log, runtime=lambda: Runtime(self.fake.path, timeout=0.2)
        )
        self.attachments.after_del(self.second_look.consider)
        self.looking = asyncio.create_task(self.second_look.run())
        return self

    async def end(self):
        self.looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.looking
        await self.stop()

    async def pod(self, container, pod=POD, *, known=True, mounted=True):
        leases = await self.give(container, pod)
        if known:
            self.fake.start(Sandbox(container, name="web-0", namespace="shop", uid="uid-web-0", ready=True))
        if mounted:
            Path(leases[0].netns).symlink_to("/proc/self/ns/net")  # on another file system, as a mounted one is
        self.clock.advance(1)
        return leases

    def gone(self, container):
        self.fake.remove(container)
        (self.settings.netns_dir[0] / container).unlink(missing_ok=True)

    async def release(self, container, pod=POD, *, config=None, before=None):
        request = parse_request(self._env("DEL", container, pod), json.dumps(config or CONF).encode())
        cause = Cause.DEL if before is None else Cause.SPOOL
        return await self.attachments.delete(request, f"del-{container}", before=before, cause=cause)

    def held(self):
        return {lease.owner.container_id for lease in self.book.leases()}

    async def settled(self):
        """Wait until nothing is open any more; the runtime was asked."""
        asked = len(self.fake.asked)
        await until(lambda: not self.second_look.busy)
        assert len(self.fake.asked) > asked


@pytest.fixture
async def world(tmp_path):
    world = Looking(tmp_path)
    with world.fake:
        await world.begin()
        yield world
        await world.end()


async def until(probe):
    async with asyncio.timeout(10):
        while not probe():
            await MACHINE.sleep(0.01)


async def test_what_a_sandbox_of_the_pod_left_without_a_del_ends_with_the_pods_next_del(world):
    await world.pod("old")
    world.gone("old")
    await world.pod("new")
    released = await world.release("new")
    assert {lease.owner.container_id for lease in released} == {"new"}
    await until(lambda: world.held() == set())
    entries = (await world.ask("history", container="old"))["entries"]
    assert {entry["ended"]["cause"] for entry in entries} == {"workload"}
    assert "del-new" in entries[0]["ended"]["detail"]


@pytest.mark.parametrize("known", [True, False], ids=["known", "in the making"])
async def test_the_pods_new_sandbox_is_never_touched(world, known):
    """The kubelet's garbage collection repeats the DEL of the old one; a new one may not be listed yet."""
    await world.pod("old")
    await world.release("old")
    await world.pod("new", known=known)
    await world.release("old")
    await world.settled()
    assert world.held() == {"new"}


async def test_a_lease_is_kept_that_the_runtime_knows_though_its_namespace_is_gone(world):
    await world.pod("new", mounted=False)
    await world.release("old")
    await world.settled()
    assert world.held() == {"new"}


async def test_another_pod_of_the_same_name_is_none_of_its_business(world):
    """C20: a StatefulSet's pod, made again; the last DEL of the old one comes late."""
    await world.pod("new", mounted=False, known=False)
    request_of_old = "shop/web-0"
    env = world._env("DEL", "old", request_of_old)
    env["CNI_ARGS"] = env["CNI_ARGS"].replace("uid-web-0", "uid-of-the-first")
    await world.attachments.delete(parse_request(env, json.dumps(CONF).encode()), "del-old")
    env["CNI_ARGS"] = env["CNI_ARGS"].replace("K8S_POD_UID=uid-of-the-first", "")
    await world.attachments.delete(parse_request(env, json.dumps(CONF).encode()), "del-old")
    await let_run()
    assert world.fake.asked == []
    assert world.held() == {"new"}


async def test_a_del_that_was_kept_means_nothing_that_is_newer(world):
    written = Moment(world.clock.boot, world.clock.seconds())
    world.clock.advance(1)
    await world.pod("new", mounted=False, known=False)
    await world.release("old", before=written)
    await let_run()
    assert world.fake.asked == []
    assert world.held() == {"new"}


async def test_a_conf_that_is_cut_down_means_the_pods_leases_in_every_network(world):
    await world.pod("left", mounted=False, known=False)
    await world.release("other", config={"type": "allotment"})
    await until(lambda: world.held() == set())


@pytest.mark.parametrize("fault", [Fault.STALL, Fault.ERROR, Fault.OTHER_PROTOCOL])
async def test_a_runtime_that_cant_be_asked_frees_nothing_and_holds_up_no_del(world, fault):
    """I8, I11: the DEL has long been answered."""
    await world.pod("left", mounted=False, known=False)
    world.fake.fault = fault
    async with asyncio.timeout(5):
        assert await world.release("other") == ()
    await until(lambda: any("left to the search" in call.args[0] for call in world.log.calls))
    assert world.held() == {"left"}
    world.fake.fault = Fault.NONE
    await world.release("other")  # the runtime repeats it
    await until(lambda: world.held() == set())


async def test_a_lease_whose_namespace_cant_be_looked_at_ends_once_it_can_be_in_the_making_no_more(world):
    leases = await world.give("left", POD, netns="/somewhere/else")
    assert leases
    world.clock.advance(599)
    await world.release("other")
    await world.settled()
    assert world.held() == {"left"}
    world.clock.advance(1)
    await world.release("other")
    await until(lambda: world.held() == set())
