"""C60: a Python daemon on netlink leaks descriptors, threads and children, one with each look.

The agent looks into network namespaces when it rebuilds, and `allotment doctor` whenever a person asks; both by the
same two functions. Looks that fail half-way are looks too: a namespace that goes away, a file that is none, an entry
that can't be entered.
"""

import asyncio
import subprocess

import pytest

from agents import network, usage
from allotment.addressing.errors import InternalError
from allotment.net.namespaces import addresses_in
from allotment.node.namespaces import see_namespaces
from namespaces import Namespaces

pytestmark = pytest.mark.root


@pytest.fixture
def spaces():
    with Namespaces() as spaces:
        yield spaces


def assert_no_more_than(before):
    """A leak is one for each of dozens of looks; asyncio's own pool of threads may still be growing."""
    after = usage()
    assert after.descriptors <= before.descriptors + 2
    assert after.threads <= before.threads + 4
    assert after.children <= before.children


async def test_looking_again_and_again_keeps_nothing(spaces):
    for number in range(5):
        spaces.make(f"10.66.0.{number + 2}/24", f"fd66::{number + 2}/64")
    (spaces.folder / "plain").write_text("what `ip netns add` leaves when it fails half-way")
    await look(spaces, 10)
    before = usage()
    await look(spaces, 40)
    assert_no_more_than(before)


async def look(spaces, times):
    for _ in range(times):
        paths = [str(path) for path in spaces.folder.iterdir()]
        found, unread = await see_namespaces([spaces.folder, spaces.folder / "none"], paths)
        assert unread == ()
        assert [len(namespace.addresses) for namespace in found] == [2] * 5


async def test_looks_that_fail_keep_nothing(spaces):
    """A mount namespace lies on nsfs too, and can't be entered as a network; a missing one can't be opened."""
    other = spaces.folder / "mnt"
    other.touch()
    subprocess.run(["mount", "--bind", "/proc/self/ns/uts", str(other)], check=True)
    try:
        await fail(spaces, 10)
        before = usage()
        await fail(spaces, 50)
        assert_no_more_than(before)
    finally:
        subprocess.run(["umount", str(other)], check=True)


async def fail(spaces, times):
    for _ in range(times):
        _, (unread,) = await see_namespaces([spaces.folder], [])
        assert "cannot enter the network namespace" in unread
        with pytest.raises(InternalError, match="cannot enter the network namespace"):
            await addresses_in(spaces.folder / "gone")


async def test_looks_at_namespaces_that_come_and_go_keep_nothing(spaces):
    spaces.make("10.66.0.2/24")
    await see_namespaces([spaces.folder], [])
    before = usage()
    for number in range(30):
        path = spaces.make(f"10.66.1.{number + 2}/24")
        looking = asyncio.create_task(see_namespaces([spaces.folder], []))
        await asyncio.to_thread(spaces.end, path)
        found, unread = await looking
        assert (len(found), unread) in ((1, ()), (2, ()))
    assert_no_more_than(before)


@pytest.mark.slow
def test_an_agent_that_has_rebuilt_is_as_one_that_has_not(make_node, spaces):
    """C60 on the whole: after a rebuild of twenty pods, and a doctor, an agent is as large as one without."""
    for number in range(20):
        spaces.make(f"10.4.0.{number + 2}/24")
    node = make_node({"blue.yaml": network(cooldown=0)}, flags=["--netns-dir", spaces.folder])
    node.start()
    assert len(node.leases()) == 20
    node.give("c1")
    rebuilt = node.usage()
    node.cli("doctor")
    looked_at = node.usage()
    node.kill()
    node.start()
    node.give("c2")
    plain = node.usage()
    for used in (rebuilt, looked_at):
        # What comes and goes by itself is one or two; a leak is one for each namespace.
        assert used.descriptors <= plain.descriptors + 3
        assert used.threads <= plain.threads + 3
        assert used.children == 0
