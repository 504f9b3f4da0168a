"""Many callers, bad callers, and much time: everybody is answered, and nothing adds up in the agent (C60)."""

import asyncio
import contextlib
import itertools
import resource
import socket
import threading

import pytest

import agents
from agents import network, now
from allotment.addressing.errors import TryAgain
from allotment.cni.client import AsyncClient
from allotment.cni.frames import ACKNOWLEDGED, ReplyParser, encode_call
from allotment.testing.hostile import HostileClient
from nodes import Node, until

WIDE = {"blue.yaml": network(v4="10.64.0.0/20", v6="fd00:64::/116", block=20, block6=116, cooldown=0)}
SMALL = {"blue.yaml": network(v4="10.64.0.0/22", v6="fd00:64::/118", block=22, block6=118, cooldown=0)}
"""Every address of it has been used after the warm-up: memory grows with what was ever used."""
CALLERS = 2000
PAIRS = 50_000
WARM_UP = 5_000
THREADS = 8
GROWTH_KIB = 6 * 1024
"""What resident memory may gain over PAIRS: a tenth of a KiB for each would be a leak, and more than this."""
PATIENCE = 120.0


@pytest.fixture(autouse=True)
def room():
    """As many descriptors as may be had for this process, which is all the callers at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < CALLERS + 200:
        pytest.skip(f"{CALLERS} callers need more than {hard} descriptors (ulimit -Hn)")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def wide(make_node):
    node = make_node(WIDE)
    node.start()
    return node


def is_as_before(node, before):
    """Whether nothing is left open; those who cut the line may still stand in the queue."""
    after = node.usage()
    return after.descriptors <= before.descriptors + 3 and after.threads <= before.threads + 1


def holds_nothing(node):
    with contextlib.suppress(TryAgain):  # the queue of callers is full
        return node.leases() == []
    return False


def at_rest(node):
    """Usage of an agent that nobody asks anything."""

    def is_at_rest():
        status = node.status_or_none()  # none while the queue of callers is full
        return status is not None and status.in_flight == 0

    until(is_at_rest, "requests are left over")
    return node.usage()


async def ask_all(node, verb, containers):
    """All at once; the replies, in order, and the seconds each took. As the plugin, they ask again."""
    client = AsyncClient(node.socket, timeout=PATIENCE)

    async def ask(container):
        began = now()
        while now() < began + PATIENCE:
            try:
                reply = await client.call(agents.environment(verb, container), agents.conf())
            except TryAgain:  # the queue of callers is full
                await asyncio.sleep(0.01)  # noqa: TID251  # before it asks again
            else:
                return reply, now() - began
        raise AssertionError(f"{verb} {container} never got through")

    done = await asyncio.gather(*(ask(container) for container in containers))
    return [reply for reply, _ in done], [seconds for _, seconds in done]


@pytest.mark.parametrize(
    "descriptors", [None, pytest.param(128, marks=pytest.mark.slow)], ids=["enough", "few descriptors"]
)
async def test_two_thousand_at_once_are_all_answered_each_with_its_own(make_node, descriptors):
    """I1; also where the agent may not have that many open: the others wait in the kernel's queue."""
    node = make_node(WIDE)
    await asyncio.to_thread(node.start, descriptors=descriptors)
    before = await asyncio.to_thread(at_rest, node)
    containers = [f"c{number}" for number in range(CALLERS)]
    replies, _ = await ask_all(node, "ADD", containers)
    assert [reply for reply in replies if reply.exit_code] == []
    told = {("blue", name): agents.told(reply.body) for name, reply in zip(containers, replies, strict=True)}
    assert len({address for addresses in told.values() for address in addresses}) == 2 * CALLERS
    assert await asyncio.to_thread(node.held) == told
    replies, _ = await ask_all(node, "DEL", containers)
    assert [reply for reply in replies if reply.exit_code] == []
    assert await asyncio.to_thread(node.leases) == []
    await asyncio.to_thread(until, lambda: is_as_before(node, before), "descriptors or threads are left over")


async def test_a_flood_of_dels_of_unknown_containers_delays_no_add(wide):
    """A runtime that clears up after a crash sends one for each container it ever had."""
    dels = asyncio.create_task(ask_all(wide, "DEL", [f"unknown-{number}" for number in range(500)]))
    adds, took = await ask_all(wide, "ADD", [f"c{number}" for number in range(20)])
    assert all(reply.exit_code == 0 for reply in adds)
    replies, _ = await dels
    assert all(reply.exit_code == 0 for reply in replies)
    assert max(took) < 5.0
    assert len(await asyncio.to_thread(wide.leases)) == 40


class Pest:
    """Bad callers in a thread, again and again until the context ends; `visits` counts them."""

    def __init__(self, node, behave):
        self.visits = 0
        self._node = node
        self._behave = behave
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(PATIENCE)

    def _run(self):
        for number in itertools.count():
            if self._over.is_set():
                return
            try:
                with HostileClient(self._node.socket) as client:
                    self._behave(client, number)
            except BlockingIOError:  # too many of us wait already
                self._over.wait(0.001)
            self.visits += 1


FRAME = encode_call(agents.environment("ADD", "pest"), agents.conf())
PESTS = {
    "cuts": lambda client, number: client.send(FRAME[: number % len(FRAME)]),
    "garbage": lambda client, number: client.send(bytes([number % 251]) * 65536),
    "floods": lambda client, _: client.send(FRAME[:12] + b"\x00\x0f\x00\x00" + bytes(1 << 19)),
    "connects and goes": lambda _client, _number: None,
    "answers with anything": lambda client, _: client.send(FRAME) and client.receive(16) and client.send(b"\x00"),
}


QUICK = ("floods", "answers with anything")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in PESTS]
)
async def test_bad_callers_harm_nobody_else(wide, kind):
    before = await asyncio.to_thread(at_rest, wide)
    with Pest(wide, PESTS[kind]) as pest:
        for turn in range(5):
            containers = [f"c{turn}-{number}" for number in range(20)]
            adds, took = await ask_all(wide, "ADD", containers)
            assert all(reply.exit_code == 0 for reply in adds)
            assert max(took) < 5.0
            await asyncio.to_thread(until, lambda least=10 * turn: pest.visits > least)
        dels, _ = await ask_all(wide, "DEL", [f"c{turn}-{number}" for turn in range(5) for number in range(20)])
        assert all(reply.exit_code == 0 for reply in dels)
    await asyncio.to_thread(until, lambda: holds_nothing(wide), "a bad caller's ADD has left a lease")
    # A caller that cut its request off holds its connection until the agent's deadline for it, and no longer.
    await asyncio.to_thread(
        until, lambda: wide.usage().descriptors <= before.descriptors + 3, "bad callers' connections are not closed"
    )


@pytest.mark.slow
async def test_callers_that_stall_are_put_out_and_delay_nobody(wide):
    """Each costs one connection, for a bounded time."""
    before = await asyncio.to_thread(at_rest, wide)
    with contextlib.ExitStack() as stack:
        stalled = [stack.enter_context(HostileClient(wide.socket)) for _ in range(200)]
        for number, client in enumerate(stalled):
            client.send(FRAME[: number % len(FRAME)])
        adds, took = await ask_all(wide, "ADD", [f"c{number}" for number in range(100)])
        assert all(reply.exit_code == 0 for reply in adds)
        assert max(took) < 5.0
        ends = await asyncio.gather(*(asyncio.to_thread(client.receive, 1 << 16) for client in stalled))
        assert len(ends) == 200, "the agent closed all of them"
    await asyncio.to_thread(until, lambda: is_as_before(wide, before), "descriptors are left over")


# -- much time


NAME = "container"
CALLS = [encode_call(agents.environment(verb, NAME), agents.conf()) for verb in ("ADD", "DEL")]


def call(path, frame):
    """One call, with as little of this process's time as can be; the exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(path)
        sock.sendall(frame)
        parser, reply = ReplyParser(), None
        while reply is None:
            reply = parser.feed(sock.recv(1 << 16))
        sock.sendall(ACKNOWLEDGED)
        return reply.exit_code


def pairs(node, count, first):
    """So many containers come and go, several at a time."""
    numbers = iter(range(first, first + count))
    done = []
    path = str(node.socket)

    def work():
        for number in numbers:
            name = f"{number:0{len(NAME)}d}".encode()
            done.append([call(path, frame.replace(NAME.encode(), name)) for frame in CALLS])

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done.count([0, 0]) == count, [codes for codes in done if codes != [0, 0]][:3]


@pytest.mark.slow
def test_fifty_thousand_containers_leave_nothing_behind(launcher):
    """C60: descriptors, threads, children and memory are as they were."""
    with Node(launcher, SMALL, fresh=True, flags=["--history-rows", "10000"]) as node:
        node.start()
        pairs(node, WARM_UP, 0)
        before = at_rest(node)
        for part in range(5):
            pairs(node, PAIRS // 5, WARM_UP + part * PAIRS)
            after = at_rest(node)
            until(lambda: is_as_before(node, before), "descriptors or threads are left over")
            assert after.children == 0
        assert after.resident_kib - before.resident_kib < GROWTH_KIB, (before, after)
        assert node.leases() == []
        node.stop()
