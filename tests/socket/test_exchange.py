"""The real shim against the real server."""

import asyncio
import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from allotment.addressing.errors import NotAdmitted
from allotment.cni.exchange import SPOOL, Reply
from allotment.cni.frames import decode_spool_entry
from allotment.cni.server import CniServer, Limits, bind
from allotment.testing.clock import ManualClock


class Addresses:
    """A handler that gives numbers, one for each container, and takes them back."""

    def __init__(self):
        self.held = {}
        self.acknowledgements = 0
        self.gate = None
        self.error = None
        self.entered = 0
        self.cancelled = 0

    async def call(self, call):
        self.entered += 1
        container = call.env["CNI_CONTAINERID"]
        if self.error is not None:
            raise self.error
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if call.env["CNI_COMMAND"] == "DEL":
            self.held.pop(container, None)
            return Reply(b"")
        self.held.setdefault(container, len(self.held))
        return Reply(json.dumps({"number": self.held[container]}).encode())

    def acknowledged(self, call):
        self.acknowledgements += 1

    async def lost(self, call, reply):
        self.held.pop(call.env["CNI_CONTAINERID"], None)

    async def query(self, name, arguments):
        return arguments


@asynccontextmanager
async def serving(path, handler, **limits):
    server = CniServer(handler, bind(path), clock=ManualClock(), limits=Limits(**limits))
    server.start()
    try:
        yield server
    finally:
        if handler.gate is not None:
            handler.gate.set()
        await server.drain(30)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            turn = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.002, turn.set_result, None)
            await turn


async def run(shim, command="ADD", **more):
    """A shim to its end, beside the server on this loop."""
    done = await asyncio.get_running_loop().run_in_executor(None, lambda: shim.run(command, **more))
    return done.returncode, done.stdout


async def test_add_and_del(either, place):
    handler = Addresses()
    async with serving(either.socket_path, handler):
        assert await run(either) == (0, b'{"number": 0}')
        assert await run(either) == (0, b'{"number": 0}')
        assert await run(either, "DEL") == (0, b"")
        assert handler.held == {}
        await until(lambda: handler.acknowledgements == 3)


async def test_an_error_reaches_the_runtime(shim, place):
    handler = Addresses()
    handler.error = NotAdmitted("this node is closed for the network blue", "opened by the operator")
    async with serving(shim.socket_path, handler):
        code, output = await run(shim)
    assert code == 1
    assert json.loads(output) == {
        "cniVersion": "1.1.0",
        "code": 11,
        "msg": "this node is closed for the network blue",
        "details": "opened by the operator",
    }


async def test_a_shim_killed_while_it_waits_leaves_no_lease(either, place):
    """The runtime gives up on the first plugin, and starts another for a new sandbox."""
    handler = Addresses()
    handler.gate = asyncio.Event()
    async with serving(either.socket_path, handler) as server:
        child = either.start(CNI_CONTAINERID="first")
        await until(lambda: handler.entered == 1)
        child.kill()
        await until(lambda: handler.cancelled == 1)
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
        handler.gate.set()
        assert (await run(either, CNI_CONTAINERID="second"))[0] == 0
        assert list(handler.held) == ["second"]
        assert server.stats.hung_up == 1


async def test_a_shim_killed_with_its_answer_unprinted_leaves_no_lease(shim, place):
    """I2: killed between reading the answer and having printed it."""
    handler = Addresses()
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    try:
        while True:
            os.write(theirs, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(theirs, True)
    async with serving(shim.socket_path, handler) as server:
        child = shim.start(stdout=theirs)
        os.close(theirs)
        await until(lambda: handler.held)
        assert not server.stats.acknowledged
        child.kill()
        child.wait()
        await until(lambda: not handler.held)
    os.close(ours)
    assert server.stats.lost == 1


async def test_a_shim_stopped_for_too_long_does_not_go_on_with_what_was_taken_back(shim, place):
    """I1: frozen for longer than the agent waits (cgroup freezer, a swapping machine), then going on."""
    handler = Addresses()
    handler.gate = asyncio.Event()
    async with serving(shim.socket_path, handler, acknowledge=0.05) as server:
        child = shim.start()
        await until(lambda: handler.entered == 1)
        child.send_signal(signal.SIGSTOP)
        handler.gate.set()
        await until(lambda: server.stats.lost == 1 and not server.unfinished)
        assert handler.held == {}
        server.limits = Limits()
        child.send_signal(signal.SIGCONT)
        loop = asyncio.get_running_loop()
        output, _ = await loop.run_in_executor(None, lambda: child.communicate(timeout=20))
        # It found the withdrawal behind the answer, asked again, and was given a lease that it could acknowledge.
        assert (child.returncode, output) == (0, b'{"number": 0}')
        await until(lambda: server.stats.acknowledged == 1)
        assert list(handler.held) == ["c0ffee"]


async def test_a_del_for_the_spool_is_replayable(either, place):
    class Full(Addresses):
        async def call(self, call):
            self.seen = call
            return Reply(b"", 0, SPOOL)

    handler = Full()
    async with serving(either.socket_path, handler):
        assert await run(either, "DEL") == (0, b"")
    (path,) = (place / "spool").iterdir()
    entry = decode_spool_entry(path.read_bytes())
    assert (entry.env, entry.body) == (handler.seen.env, handler.seen.body)


async def test_an_agent_replaced_under_load_fails_no_call(shim, place):
    """I11: five agents one after the other, each drained while shims keep coming."""
    handler, failures, finished = Addresses(), [], asyncio.Event()
    gate = asyncio.Semaphore(8)

    async def one(number):
        async with gate:
            code, output = await run(shim, CNI_CONTAINERID=f"c{number}")
            if code:
                failures.append((number, code, output))

    async def all_of_them():
        await asyncio.gather(*(one(number) for number in range(150)))
        finished.set()

    work = asyncio.create_task(all_of_them())
    for _ in range(5):
        async with serving(shim.socket_path, handler, acknowledge=30.0):
            entered = handler.entered
            await until(lambda entered=entered: handler.entered > entered + 10 or finished.is_set())
    async with serving(shim.socket_path, handler):
        await work
    assert failures == []
    assert len(handler.held) == 150


@pytest.mark.slow
async def test_descriptors_threads_and_children_are_flat_over_thousands_of_shims(shim, place, resources):
    """No descriptor, thread or task stays behind, whatever a daemon lives through."""
    handler = Addresses()
    loop, one_thread = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    script = 'i=0; while [ $i -lt 500 ]; do "$0" </dev/null >/dev/null || exit 1; i=$((i+1)); done'

    def batch():
        env = shim.environment()
        children = [subprocess.Popen(["/bin/sh", "-c", script, shim.binary], env=env) for _ in range(4)]
        return [child.wait() for child in children]

    async with serving(shim.socket_path, handler) as server:
        await loop.run_in_executor(one_thread, batch)
        await until(lambda: not server.open_connections)
        before = resources()
        for _ in range(5):
            assert await loop.run_in_executor(one_thread, batch) == [0] * 4
        await until(lambda: not server.open_connections)
        assert resources() == before
        assert server.stats.acknowledged == 12_000
        assert server.unfinished == 0
    one_thread.shutdown()
