"""What a whole agent in a cluster does while nothing happens: what it watches, and that it writes nothing.

Time is made to pass, for the agent's clock and for the event loop's alike; the API server and the runtime are fakes at
real sockets.
"""

import asyncio
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import structlog

from agents import conf, environment
from allotment.api.meta import GUARD_FINALIZER, NODE_FINALIZER
from allotment.cni.client import AsyncClient
from allotment.cri.messages import Sandbox
from allotment.kube.client import Client
from allotment.kube.resources import ALLOCATIONS, NETWORKS, NODES
from allotment.node.cluster import ClusterSource
from allotment.node.daemon import Agent
from allotment.node.settings import Settings
from allotment.observe.metrics import Metrics
from allotment.observe.systemd import Notifier
from allotment.testing.api_server import ApiServer
from allotment.testing.clock import ManualClock
from allotment.testing.cri import FakeRuntime
from looking import allocation, network

NODE = "node-1"
PATIENCE = 20.0
READS = {"get", "list", "watch"}


class Time:
    """The time of the agent and of the loop, which goes on a second at a time."""

    def __init__(self):
        self.clock = ManualClock()
        self._loop = asyncio.get_running_loop()
        self._machine = self._loop.time
        self._ahead = 0.0
        self._loop.time = lambda: self._machine() + self._ahead

    async def passes(self, seconds):
        for _ in range(seconds):
            self._ahead += 1.0
            self.clock.advance(1.0)
            for _ in range(5):  # sockets and threads have their turn as well
                await asyncio.to_thread(lambda: None)

    async def until(self, probe, otherwise):
        limit = self._machine() + PATIENCE
        while not probe():
            assert self._machine() < limit, otherwise
            await self.passes(1)


class Idle:
    """An agent with a lease, admitted to its network."""

    def __init__(self, stack, folder):
        self.stack = stack
        self.folder = folder
        self.time = Time()
        self.runtime = stack.enter_context(FakeRuntime(folder / "cri.sock"))

    async def begin(self):
        self.server = await self.stack.enter_async_context(ApiServer())
        made = allocation(network("blue"), name=f"blue.{NODE}", finalizers=[GUARD_FINALIZER])
        made["spec"]["node"] = NODE
        self.server.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.server.put(NETWORKS, network("blue"))
        self.server.put(ALLOCATIONS, made)
        client = await self.stack.enter_async_context(Client(self.server.access, self.time.clock))
        log = structlog.get_logger()
        source = ClusterSource(client, self.server.url, NODE, self.time.clock, log)
        settings = Settings(
            node=NODE,
            state_dir=self.folder / "state",
            socket=self.folder / "cni.sock",
            http=None,
            netns_dir=(self.folder / "netns",),
            cni_cache_dir=self.folder / "cni",
            runtime_socket=(self.runtime.path,),
        )
        agent = Agent(
            settings,
            clock=self.time.clock,
            log=log,
            metrics=Metrics("1"),
            notifier=Notifier(),
            make_source=lambda: source,
            pods=source,
            events=source.tell,
            make_claims=source.claim_desk,
        )
        task = asyncio.create_task(agent.run())

        async def end():
            agent.stop()
            await asyncio.wait_for(task, PATIENCE)

        self.stack.push_async_callback(end)
        await self.time.passes(1)
        await self.time.until(lambda: not agent.not_ready, "it does not get ready")
        self.runtime.start(Sandbox("c1", name="c1", namespace="test", uid="uid-c1", ready=True))
        asked = asyncio.create_task(AsyncClient(settings.socket).call(environment("ADD", "c1"), conf("blue")))
        await self.time.until(asked.done, "no address is given")
        assert asked.result().exit_code == 0, asked.result()
        found = lambda: self.server.find(ALLOCATIONS, f"blue.{NODE}")  # noqa: E731
        await self.time.until(
            lambda: NODE_FINALIZER in found().metadata.finalizers and found().status.blocks[:1], "it is not admitted"
        )
        await self.time.until(lambda: found().status.blocks[0].in_use == "1", "the lease is not told of")


@pytest.fixture
async def idle():
    with tempfile.TemporaryDirectory(prefix="al-") as folder:
        async with AsyncExitStack() as stack:
            stage = Idle(stack, Path(folder))
            await stage.begin()
            yield stage


async def test_an_idle_agent_watches_its_own_nodes_objects_alone_and_writes_nothing(idle):
    """Any number of agents has to be able to do this, beside any number of objects."""
    begun = [request for request in idle.server.requests if request.verb == "watch"]
    assert {request.kind: request.query.get("fieldSelector", "") for request in begun} == {
        "networks.allotment.dev": "",
        "allocations.allotment.dev": f"spec.node={NODE}",
        "ipreservations.allotment.dev": "",
        "ipamconfigs.allotment.dev": "metadata.name=default",
        "claims.allotment.dev": f"spec.node={NODE}",
        "pods": f"spec.nodeName={NODE}",
    }
    assert Counter(idle.server.watches).most_common(1)[0][1] == 1, "a kind is watched twice"
    so_far, looks = len(idle.server.requests), len(idle.runtime.asked)
    for _ in range(2):
        await idle.time.passes(50)
        idle.server.bookmark()
        await idle.time.passes(15)
    after = idle.server.requests[so_far:]
    assert [(each.verb, each.kind, each.name) for each in after if each.verb not in READS] == []
    assert after == [], "it asks for what its watches tell"
    assert len(idle.runtime.asked) - looks >= 3, "no time has passed for it"
