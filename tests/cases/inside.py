"""The whole daemon inside the test's own process, on a clock that the test moves.

    async with Inside(folder, {"blue.yaml": text}) as daemon:
        await daemon.give("c1")
        daemon.clock.advance(30)

Time passes only when the test says so, and in small steps while it waits for something to come true (`until`).
"""

import asyncio
import contextlib

import structlog

from agents import PATIENCE, conf, environment, now
from allotment.cni.client import AsyncClient
from allotment.node.daemon import Agent
from allotment.node.manifests.source import ManifestSource
from allotment.node.manifests.state_folder import StateFolder
from allotment.node.settings import Settings
from allotment.observe.metrics import Metrics
from allotment.observe.systemd import Notifier
from allotment.testing.clock import ManualClock
from nodes import answer

_STEP = 0.01


class Inside:
    """One agent after the other on the same folders; `start` and `stop` may be repeated."""

    def __init__(self, folder, manifests, *, clock=None, listener=None, **settings):
        self.clock = clock or ManualClock(boot="boot-1")
        self.manifests = folder / "manifests"
        self.manifests.mkdir(parents=True)
        for name, text in manifests.items():
            (self.manifests / name).write_text(text)
        self.settings = Settings(
            node="n1",
            manifests=self.manifests,
            state_dir=folder / "state",
            socket=folder / "run" / "cni.sock",
            netns_dir=(folder / "none",),
            cni_cache_dir=folder / "none",
            http=None,
            ballast_mib=0,
            **settings,
        )
        (folder / "run").mkdir()
        self._running = None
        self._listener = listener
        self._log = structlog.wrap_logger(
            structlog.ReturnLogger(), processors=[lambda _logger, _name, event: str(event)]
        )

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *_):
        if self._running is not None:
            await self.stop()

    def make_source(self):
        """The source of the next agent; a test may put another in its place."""
        state = StateFolder(self.settings.state_dir)
        return ManifestSource(self.settings.manifests, state, self.settings.node, self.clock, self._log)

    async def start(self):
        """Start, and wait until it serves. Raises what the agent ends with, if it ends."""
        self.agent = Agent(
            self.settings,
            clock=self.clock,
            log=self._log,
            metrics=Metrics("test"),
            notifier=Notifier({}),
            make_source=self.make_source,
            listener=self._listener,
        )
        self._running = asyncio.create_task(self.agent.run())
        await self.until(lambda: self._running.done() or not self.agent.not_ready, "it does not serve")
        if self._running.done():
            running, self._running = self._running, None
            running.result()

    async def stop(self):
        """Stop in an orderly way."""
        running, self._running = self._running, None
        self.agent.stop()
        while not running.done():
            await self._pass(running)
        running.result()

    async def until(self, probe, otherwise="it has not come true"):
        """Let time pass in small steps until this is true."""
        end = now() + PATIENCE
        while not probe():
            assert now() < end, otherwise
            await self._pass()

    async def _pass(self, *until):
        self.clock.advance(_STEP)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.002):
                await asyncio.wait(until) if until else await asyncio.Future()

    async def ended(self, work):
        """Let time pass in small steps until this is done; its result."""
        task = asyncio.ensure_future(work)
        await self.until(task.done, "it does not end")
        return task.result()

    # -- calls, for which time stands still

    async def call(self, verb, container="", **config):
        """One CNI call, acknowledged."""
        client = AsyncClient(self.settings.socket, timeout=PATIENCE)
        reply = await client.call(environment(verb, container), conf("blue", **config))
        return answer(reply.exit_code, reply.body, reply.flags)

    async def give(self, container):
        """ADD, which must succeed; the addresses."""
        got = await self.call("ADD", container)
        assert got.ok, got
        return tuple(address.split("/")[0] for address in got.addresses)

    async def free(self, container):
        """DEL, which must succeed."""
        got = await self.call("DEL", container)
        assert got.ok, got

    async def query(self, name):
        """The answer to a question of the CLI, as it is sent."""
        return await AsyncClient(self.settings.socket, timeout=PATIENCE).query(name, b"{}")
