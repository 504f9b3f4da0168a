"""The doctor's look at the kernel, on real network namespaces."""

from __future__ import annotations

import asyncio

import pytest

from allotment.node.doctor.examination import Examination
from allotment.node.doctor.findings import Severity
from allotment.node.inquiries.reports import LeaseReport, LeasesReport, StatusReport, decode_answer
from looking import World, allocation, network
from namespaces import Namespaces

pytestmark = pytest.mark.root

BLUE = network(subnets=[{"cidr": "10.213.7.0/24", "hostPrefixLength": 24}])


@pytest.fixture
def namespaces():
    with Namespaces() as made:
        yield made


@pytest.fixture
async def world(tmp_path):
    world = await World(tmp_path).start(BLUE, allocation(BLUE))
    yield world
    await world.stop()


async def examine(world: World) -> list[tuple[str, str, Severity]]:
    """What the doctor finds (check, where, severity), with the agent answering; its pauses cost no time."""
    table = world.queries.table()
    answers = {name: await table[name](b"{}") for name in ("status", "leases")}

    def memory() -> tuple[LeaseReport, ...]:
        return decode_answer(answers["leases"], LeasesReport).leases

    examination = Examination(
        world.settings, world.clock, status=lambda: decode_answer(answers["status"], StatusReport), memory=memory
    )
    running = asyncio.ensure_future(examination.run())
    while not running.done():
        world.clock.advance(0.25)
        await asyncio.wait({running}, timeout=0.005)
    examined = running.result()
    assert not examined.skipped
    return [(finding.check, finding.where, finding.severity) for finding in examined.findings]


async def test_a_pod_with_its_address_is_well(world, namespaces):
    path = namespaces.make("10.213.7.9/24")
    await world.give("c1", "default/web-0", ips=("10.213.7.9",), netns=str(path))
    world.clock.advance(100)
    assert await examine(world) == []


async def test_an_address_without_a_lease_and_a_lease_without_its_address(world, namespaces):
    path = namespaces.make("10.213.7.20/24")
    await world.give("c1", "default/web-0", ips=("10.213.7.9",), netns=str(path))
    world.clock.advance(100)
    assert await examine(world) == [
        ("kernel", f"10.213.7.20 on eth0 in {path}", Severity.PROBLEM),
        ("kernel", "10.213.7.9 in network blue", Severity.WARNING),
    ]


async def test_an_address_in_a_namespace_that_runs_outside_the_leases(world, namespaces):
    """A pod that nobody leased anything is found by the folder of namespaces alone."""
    path = namespaces.make("10.213.7.30/24")
    link = world.settings.netns_dir[0] / "stray"
    link.symlink_to(path)
    assert await examine(world) == [("kernel", f"10.213.7.30 on eth0 in {link}", Severity.PROBLEM)]


async def test_a_lease_whose_namespace_has_gone(world, namespaces):
    path = namespaces.make("10.213.7.9/24")
    await world.give("c1", "default/web-0", ips=("10.213.7.9",), netns=str(path))
    world.clock.advance(100)
    namespaces.end(path)
    assert await examine(world) == [("namespace", "10.213.7.9 in network blue", Severity.PROBLEM)]
