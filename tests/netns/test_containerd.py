"""The CRI client against a real containerd: what it tells of sandboxes that run, are stopped, and are gone."""

import time

import pytest
import structlog

from allotment.addressing.errors import TryAgain
from allotment.node.notices.board import Notices
from allotment.node.orphans.search import OrphanSearch
from allotment.observe.metrics import Metrics
from containerd import NODE, Containerd, is_there
from looking import World, allocation, network

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not is_there(), reason="needs containerd, runc, ctr, unshare and a C compiler"),
]


@pytest.fixture(scope="module")
def containerd():
    with Containerd() as containerd:
        yield containerd


async def test_it_says_who_it_is(containerd):
    version = await containerd.runtime.version()
    assert (version.name, version.api) == ("containerd", "v1")
    assert version.version


async def test_what_it_tells_of_a_pod(containerd):
    containerd.give("10.9.0.7/24", "fd09::7/64")
    before = time.time_ns()
    identity = await containerd.run("web-0", uid="u-1", attempt=3)
    (listed,) = await containerd.runtime.sandboxes()
    assert (listed.id, listed.name, listed.namespace, listed.uid) == (identity, "web-0", "shop", "u-1")
    assert (listed.attempt, listed.ready) == (3, True)
    assert (listed.labels["app"], listed.annotations["note"]) == ("web-0", "of web-0")
    assert before <= listed.created_ns <= time.time_ns()

    found = await containerd.runtime.statuses([identity, "0" * 64])
    assert found.keys() == {identity}
    status = found[identity]
    assert (status.name, status.uid, status.attempt, status.labels["app"]) == ("web-0", "u-1", 3, "web-0")
    assert [str(address) for address in status.ips] == ["10.9.0.7", "fd09::7"]
    assert status.netns.startswith("/var/run/netns/cni-")
    assert not status.host_network

    verb, container, arguments = containerd.asked()[-1]
    assert (verb, container) == ("ADD", identity), "the ID that the CNI is called with is the sandbox's"
    assert arguments["K8S_POD_UID"] == "u-1"

    await containerd.stop(identity)
    (listed,) = await containerd.runtime.sandboxes()
    assert (listed.id, listed.ready) == (identity, False)
    await containerd.remove(identity)
    assert await containerd.runtime.sandboxes() == ()
    assert await containerd.runtime.statuses([identity]) == {}


async def test_what_it_tells_of_a_pod_in_the_hosts_network(containerd):
    identity = await containerd.run("proxy", network=NODE)
    try:
        status = (await containerd.runtime.statuses([identity]))[identity]
        assert (status.host_network, status.ips, status.netns) == (True, (), "")
    finally:
        await containerd.stop(identity)
        await containerd.remove(identity)


async def test_an_orphan_of_it_is_freed_and_a_pod_without_a_lease_is_adopted(containerd, tmp_path):
    """The search with a real runtime: one pod's DEL was lost, another's ADD never came to us."""
    world = await World(tmp_path).start(network(), allocation(network()))
    search = OrphanSearch(
        world.book,
        world.attachments,
        world.clock,
        Metrics("1"),
        structlog.get_logger(),
        Notices(Metrics("1")),
        runtime=lambda: containerd.runtime,
    )
    sandboxes = []
    try:
        for name, address in (("web-0", "10.4.1.2"), ("web-1", "10.4.1.3"), ("web-2", "10.4.1.77")):
            containerd.give(f"{address}/24")
            sandboxes.append(await containerd.run(name))
            if name != "web-2":
                await world.give(sandboxes[-1], f"shop/{name}", ips=(address,))
        await containerd.stop(sandboxes[0])
        for _ in range(3):  # it is stopped, and known
            world.clock.advance(100)
            await search.search()
        assert {lease.owner.container_id for lease in world.book.leases()} == set(sandboxes)
        await containerd.remove(sandboxes.pop(0))
        for _ in range(2):
            world.clock.advance(30)
            await search.search()
        held = {str(lease.address): lease.owner.pod_name for lease in world.book.leases(None)}
        assert held == {"10.4.1.3": "web-1", "fd00:4::3": "web-1", "10.4.1.77": "web-2"}
    finally:
        for sandbox in sandboxes:
            await containerd.stop(sandbox)
            await containerd.remove(sandbox)
        await world.stop()


async def test_one_that_is_killed_is_not_taken_for_an_empty_one(containerd):
    """I8."""
    containerd.kill()
    try:
        with pytest.raises(TryAgain, match=str(containerd.runtime.socket)):
            await containerd.runtime.sandboxes()
    finally:
        containerd.start()
    assert await containerd.runtime.sandboxes() is not None
