"""One agent with callers around it: containers that come and go, retry, hang up and ask again, while it is killed."""

import asyncio
import contextlib
import itertools
import json
import random
import re

import agents
from agents import now
from allotment.addressing.errors import AllotmentError
from allotment.cni.client import AsyncClient
from allotment.cni.exchange import SPOOL, Reply
from allotment.cni.frames import encode_call
from allotment.ledger import LedgerReader
from allotment.ledger.history import RowsQuery
from crash.told import Told

COOLDOWN = 1
NETWORK = "blue"
MANIFESTS = {"blue.yaml": agents.network(NETWORK, cooldown=COOLDOWN)}
TRY_AGAIN, EXHAUSTED, CHECK_FAILED = 11, 101, 103
WHOLE_HISTORY = 10**6
_PATIENCE = 60.0
_PODS = 4
"""Containers that one caller cares for at a time."""


class World:
    """Callers of `agent`, and what they were told. One of `seed`'s many worlds; a context manager (async)."""

    def __init__(self, agent, seed, *, callers=10, shims=2):
        self.agent = agent
        self.told = Told(COOLDOWN)
        self.random = random.Random(seed)
        self.calls = 0
        self.answers = 0
        self._conf = agent.folder / "conf.json"
        self._conf.write_bytes(agents.conf(NETWORK))
        self._client = AsyncClient(agent.socket, timeout=_PATIENCE)
        self._names = itertools.count()
        self._open = asyncio.Event()
        self._busy = 0
        self._calm = asyncio.Event()
        kinds = [self._call] * callers + [self._call_shim] * shims
        self._callers = [self._caller(random.Random(f"{seed}-{number}"), kind) for number, kind in enumerate(kinds)]
        self._tasks = []

    async def __aenter__(self):
        self._tasks = [asyncio.create_task(caller) for caller in self._callers]
        return self

    async def __aexit__(self, *_):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- what the test does

    def let(self):
        """Callers may begin new calls."""
        self._open.set()

    def hold(self):
        """Callers begin no new calls; what they are in goes on."""
        self._open.clear()

    async def quiet(self):
        """Hold, and wait until no call is under way. The agent must be alive, or no caller may be a shim that waits."""
        self.hold()
        while self._busy:
            self._check()
            self._calm.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._calm.wait(), 0.2)
        self._check()

    async def spend(self, seconds):
        """Let that much time of load pass, or less when the agent ends or a caller finds something wrong."""
        end = asyncio.ensure_future(asyncio.to_thread(self.agent.process.wait, seconds))
        try:
            await asyncio.wait([end, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end
        self._check()

    def read(self, *, drained=False):
        """Judge what a dead agent left on its disk; returns its leases."""
        with LedgerReader(self.agent.state) as reader:
            assert reader.problems() == []
            leases = reader.content().book.leases
            self.told.judge(leases, settle=False, drained=drained)
            self.told.history(reader.history(RowsQuery(limit=WHOLE_HISTORY)), leases)
        return leases

    async def look(self):
        """Judge a living agent while nobody calls it: then nothing is open any more."""
        await self.quiet()
        await until(lambda: not self.spooled(), "the spool is not replayed", self.agent)
        self.told.judge(await asyncio.to_thread(self.agent.leases), settle=True)

    async def see_taken_back(self):
        """Whose callers hung up on this agent, which lives, is left with nothing (I2, C23). After a `look`."""
        await self.quiet()

        def are_gone():
            held = self.agent.held()
            return not any(item.hung_up and key in held for key, item in self.told.attachments.items())

        await until(are_gone, "what was given to callers who hung up is not taken back", self.agent)

    def spooled(self):
        return (
            [path for path in self.agent.spool.glob("*") if path.suffix == ".del"] if self.agent.spool.exists() else []
        )

    async def delete_all(self):
        """DEL for every container there ever was, as a runtime does in the end; then nobody holds anything."""
        await self.look()
        for item in list(self.told.attachments.values()):
            await self._call(item, "DEL", self.random)
        assert await asyncio.to_thread(self.agent.leases) == []
        self.told.judge([], settle=True)

    # -- callers

    async def _caller(self, chance, call):
        pods = []
        while True:
            await self._open.wait()
            # Most containers come but once; some are started again under their own name (podman, nerdctl).
            pods = [item for item in pods if (item.certain != () and not item.ending) or chance.random() < 0.2]
            while len(pods) < _PODS:
                pods.append(self.told.attachment(NETWORK, f"pod-{next(self._names)}"))
            item = chance.choice(pods)
            self._busy += 1
            try:
                await call(item, self._choose(chance, item), chance)
            finally:
                self._busy -= 1
                self._calm.set()
            await asyncio.sleep(0)  # noqa: TID251  # gives the others their turn

    def _choose(self, chance, item):
        if item.ending:
            return "ADD"
        if item.certain == ():
            return chance.choices(("ADD", "DEL", "hang up", "twice"), (8, 1, 1, 1))[0]
        if item.certain is None:  # most runtimes ask again, some give up
            return chance.choices(("ADD", "DEL"), (1, 2) if item.ending_since else (3, 1))[0]
        return chance.choices(("DEL", "ADD", "twice", "CHECK", "hang up", "drop"), (8, 2, 1, 1, 1, 1))[0]

    async def _call(self, item, what, chance):
        match what:
            case "ADD":
                self.told.add_sent(item)
                self._added(item, await self._ask("ADD", item))
            case "twice":
                await self._add_twice(item, chance)
            case "hang up":
                self.told.add_sent(item, hangs_up=True)
                reply = await self._hang_up("ADD", item, chance)
                item.hung_up = item.hung_up and reply is None
                self._added(item, reply)
            case "drop":
                self.told.delete_sent(item, now())
                self._deleted(item, await self._hang_up("DEL", item, chance))
            case "DEL":
                self.told.delete_sent(item, now())
                self._deleted(item, await self._ask("DEL", item))
            case "CHECK":
                held = item.certain
                reply = await self._ask("CHECK", item)
                assert reply is None or reply.exit_code != CHECK_FAILED, f"{item} held {held}, and CHECK: {reply.body}"

    async def _add_twice(self, item, chance):
        """The runtime gave up on one plugin process, which may be gone or not, and started another (C23)."""
        self.told.add_sent(item)
        other = self._hang_up("ADD", item, chance) if chance.random() < 0.5 else self._ask("ADD", item)
        replies = [reply for reply in await asyncio.gather(self._ask("ADD", item), other) if reply is not None]
        given = [reply for reply in replies if reply.exit_code == 0]
        for reply in given:
            self._added(item, reply)
        if not given and len(replies) == 2:
            self._added(item, replies[0])

    def _added(self, item, reply):
        code = 0 if reply is None or reply.exit_code == 0 else json.loads(reply.body)["code"]
        assert code in (0, TRY_AGAIN, EXHAUSTED), f"{item}: {reply.body}"
        if code == EXHAUSTED:
            self.told.refused_for_good(item)
        elif reply is not None and code == 0:
            self.told.add_answered(item, agents.told(reply.body), now())

    def _deleted(self, item, reply):
        if reply is not None and reply.exit_code == 0 and reply.flags != SPOOL:
            self.told.delete_answered(item)

    async def _ask(self, verb, item):
        self.calls += 1
        try:
            reply = await self._client.call(agents.environment(verb, item.container), agents.conf(item.network))
        except AllotmentError:
            await asyncio.sleep(0.02)  # noqa: TID251  # it is away: nobody asks again without a pause
            return None
        self.answers += 1
        return reply

    async def _hang_up(self, verb, item, chance):
        """Ask, and be gone before the answer comes, or after it without a word; one that was quicker is returned."""
        self.calls += 1
        if chance.random() < 0.3:
            return await self._go_silently(verb, item)
        call = asyncio.ensure_future(
            self._client.call(agents.environment(verb, item.container), agents.conf(item.network))
        )
        try:
            await asyncio.wait([call], timeout=chance.uniform(0.0, 0.004))
        finally:
            call.cancel()
        await asyncio.wait([call])
        if call.cancelled() or isinstance(call.exception(), AllotmentError):
            return None
        return call.result()

    async def _go_silently(self, verb, item):
        """Hear the answer, or some of it, and never acknowledge it: as a plugin that is killed while it prints."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_unix_connection(self.agent.socket)
            try:
                writer.write(encode_call(agents.environment(verb, item.container), agents.conf(item.network)))
                await reader.readexactly(16)
            finally:
                writer.close()

    async def _call_shim(self, item, what, chance):
        """By the plugin itself, which waits for an agent that is away, and keeps a DEL for it."""
        verb = "ADD" if what in ("ADD", "hang up", "twice", "CHECK") else "DEL"
        short = verb == "DEL" and chance.random() < 0.5
        if verb == "ADD":
            self.told.add_sent(item)
        else:
            self.told.delete_sent(item, now())
        code, body = await self._run_shim(verb, item, chance.choice((20, 100)) if short else None)
        if verb == "ADD":
            self._added(item, Reply(body, code))
        else:
            assert code == 0, f"{item}: DEL failed: {body}"
            # It is released, or kept; the container is not touched again before that is seen to be so.
            item.ending = item.certain is None

    async def _run_shim(self, verb, item, timeout_ms):
        self.calls += 1
        with self._conf.open("rb") as body:  # whole from the start, however busy this process is
            process = await asyncio.create_subprocess_exec(
                agents.shim_binary(),
                stdin=body,
                stdout=asyncio.subprocess.PIPE,
                env=self.agent.shim_environment(verb, item.container, timeout_ms=timeout_ms),
            )
        try:
            answer, _ = await asyncio.wait_for(process.communicate(), _PATIENCE)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        self.answers += 1
        return process.returncode, answer

    # -- inside

    def _check(self):
        for task in self._tasks:
            if task.done():
                task.result()


@contextlib.contextmanager
def explained(agent):
    """A failure that names containers or addresses tells what the agent's log says of them."""
    try:
        yield
    except AssertionError as error:
        names = set(re.findall(r"pod-\d+|10\.4\.[\d.]+\d|fd00:4::[0-9a-f]+", str(error)))
        words = [f'"{name}"' for name in names] + ['"serving"', '"stopped"', "ledger", '"replayed']
        lines = [line for line in agent.log(1 << 30).splitlines() if any(word in line for word in words)]
        error.add_note("\n".join(lines[-60:]))
        raise


async def until(condition, what, agent, limit=_PATIENCE):
    """Wait for a condition; a failure that says `what` when it does not come."""
    end = now() + limit
    while not condition():
        assert now() < end, f"{what}: {agent.log()}"
        await asyncio.sleep(0.01)  # noqa: TID251  # looks at the condition again
