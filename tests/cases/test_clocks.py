"""C61: the clock jumps: a lease is in two hands, a node is not ready, the time is wrong at boot.

Durations are measured on the clock that never jumps; the wall clock here does what wall clocks do to people. The
addresses are few, so that a cooldown that ends too early shows as an address given twice, and one that never ends as
a pod that waits for ever.
"""

import asyncio

import msgspec
import pytest

from agents import network
from allotment.node.inquiries.reports import HistoryReport, LeasesReport, StatusReport
from allotment.testing.clock import ManualClock
from cases.inside import Inside

HOUR, DAY = 3600.0, 86400.0
JUMPS = [
    pytest.param(HOUR, id="an hour on", marks=pytest.mark.slow),
    pytest.param(-HOUR, id="an hour back", marks=pytest.mark.slow),
    pytest.param(DAY, id="a day on"),
    pytest.param(-DAY, id="a day back"),
]
COOLDOWN = 30
ONE = network(cooldown=COOLDOWN, v4="10.4.0.4/30", v6="fd00:4::4/126", block=30, block6=126)
"""One address of IPv4, two of IPv6, for pods."""


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("al")


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_jump_during_a_cooldown_neither_ends_it_nor_prolongs_it(folder, jump):
    """I3, I13: a little before its end nothing is given, a little after it something is."""
    async with Inside(folder, {"blue.yaml": ONE}, add_wait=0.0) as node:
        before = await node.give("c1")
        await node.free("c1")
        released = node.clock.seconds()
        node.clock.jump(jump)
        refused = await node.call("ADD", "c2")
        assert (refused.code, "0 of 1 in use, 1 cooling (next in 30 s)" in refused.message) == (101, True), refused

        node.clock.advance(released + COOLDOWN - 0.5 - node.clock.seconds())
        assert (await node.call("ADD", "c2")).code == 101
        node.clock.jump(-2 * jump)
        assert (await node.call("ADD", "c2")).code == 101
        node.clock.advance(1.0)
        assert (await node.give("c2"))[0] == before[0]


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_jump_while_the_agent_is_away_changes_no_cooldown(folder, jump):
    """I13: the cooldown goes on from the ledger, on the same boot's clock."""
    async with Inside(folder, {"blue.yaml": ONE}, add_wait=0.0) as node:
        await node.give("c1")
        await node.free("c1")
        released = node.clock.seconds()
        await node.stop()
        node.clock.jump(jump)
        await node.start()
        assert (await node.call("ADD", "c2")).code == 101
        node.clock.advance(released + COOLDOWN - 0.5 - node.clock.seconds())
        assert (await node.call("ADD", "c2")).code == 101
        node.clock.advance(1.0)
        await node.give("c2")


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_wrong_time_at_boot_starts_the_cooldown_anew_and_no_more(folder, jump):
    """I13: how long the machine was off isn't known; the leases of before end, and rest from when they are seen."""
    async with Inside(folder, {"blue.yaml": ONE}, add_wait=0.0) as node:
        await node.give("c1")
        await node.stop()
        node.clock.reboot("boot-2")
        node.clock.jump(jump)
        booted = node.clock.seconds()
        await node.start()
        assert (await node.call("ADD", "c2")).code == 101
        node.clock.advance(booted + COOLDOWN - 0.5 - node.clock.seconds())
        assert (await node.call("ADD", "c2")).code == 101
        await node.until(lambda: node.clock.seconds() > booted + COOLDOWN + 1)
        await node.give("c2")


async def test_a_clock_that_is_set_back_while_an_add_waits_changes_nothing_for_it(folder):
    """An ADD waits to be admitted, the clock is set back a day, the admission comes: it is served then."""
    async with Inside(folder, {"broken.yaml": "kind: ["}, add_wait=60.0) as node:
        (node.manifests / "blue.yaml").write_text(ONE)
        await node.until(lambda: b"not admitted" in _asked(node, "status"), "the network is not seen")
        waiting = asyncio.create_task(node.give("c1"))
        for jump in (-DAY, 2 * DAY, -DAY):
            node.clock.jump(jump)
            await node.until(lambda: _requests(node) == 1, "the ADD does not wait")
            assert not waiting.done()
        (node.manifests / "broken.yaml").unlink()
        assert len(await node.ended(waiting)) == 2


def _asked(node, name):
    """What was answered last; asks again in the background, so that it can be used in a probe."""
    task = getattr(node, "asking", None)
    if task is None or task.done():
        node.said = task.result() if task is not None else b""
        node.asking = asyncio.create_task(node.query(name))
    return node.said


def _requests(node):
    said = _asked(node, "status")
    return msgspec.json.decode(said, type=StatusReport).in_flight if said else 0


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_jump_neither_frees_nor_holds_a_lease(folder, jump):
    """U: what is held stays held through jumps, GC and a restart, and its DEL ends it."""
    async with Inside(folder, {"blue.yaml": network(cooldown=0)}, add_wait=0.0) as node:
        told = {f"c{number}": await node.give(f"c{number}") for number in range(5)}
        node.clock.jump(jump)
        listed = [{"containerID": container, "ifname": "eth0"} for container in told]
        assert (await node.call("GC", **{"cni.dev/valid-attachments": listed})).ok
        await node.stop()
        node.clock.jump(-2 * jump)
        await node.start()
        for container, addresses in told.items():
            assert await node.give(container) == addresses
        node.clock.advance(0.01)
        assert (await node.call("GC", **{"cni.dev/valid-attachments": listed[:2]})).ok
        for container in told:
            await node.free(container)
        assert msgspec.json.decode(await node.query("leases"), type=LeasesReport).leases == ()


@pytest.mark.parametrize("wall", [0.0, 4_102_444_800.0], ids=["1970", "2100"])
async def test_a_clock_that_was_never_set_only_looks_odd(folder, wall):
    """A board without a battery boots in 1970, another one far in the future; people are told the time as it is."""
    clock = ManualClock(boot="boot-1", wall=wall)
    async with Inside(folder, {"blue.yaml": ONE}, clock=clock, add_wait=0.0) as node:
        await node.give("c1")
        await node.free("c1")
        clock.jump(1_700_000_000.0 - wall)
        status = msgspec.json.decode(await node.query("status"), type=StatusReport)
        assert 0 <= status.uptime < 60
        history = msgspec.json.decode(await node.query("history"), type=HistoryReport).entries
        assert {entry.given.year for entry in history} == {1970 if wall == 0 else 2100}
        node.clock.advance(COOLDOWN)
        await node.give("c2")
