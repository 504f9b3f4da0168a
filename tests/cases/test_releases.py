"""Releases that never come, come broken, come twice, or fail half-way.

C2: a runtime, or a main plugin, skips the DEL of the IPAM plugin when the network namespace is gone.
C5: the first DEL fails somewhere inside, what was known is forgotten all the same, and the second says success.
"""

import errno

import pytest

from agents import network
from faults.injection import CHANGES, KILL, Call
from faults.node import faulty_node
from nodes import until

CUT_DOWN = [b'{"type": "allotment"}', b"{}", b"", b"not json", b'{"name": 7, "ipam": []}']
"""What is left of a configuration when a runtime has lost its cache, or somebody has edited it."""


@pytest.fixture
def paths(tmp_path):
    """What CNI_NETNS can be in a DEL."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    return {
        "as it was": "/run/netns/c1",
        "not set": None,
        "empty": "",
        "gone": tmp_path / "gone",
        "a regular file": tmp_path / "file",
        "a folder": tmp_path / "folder",
        "a loop of links": tmp_path / "loop",
        "of a process that has ended": "/proc/2147483647/ns/net",
        "relative": "netns/c1",
        "with a line break": "/run/netns/c1\nCNI_COMMAND=ADD",
        "too long": "/" + "x" * 5000,
    }


def test_a_del_releases_whatever_became_of_the_network_namespace(node, paths):
    """C2: the path is evidence for people, and no condition for a release."""
    for what, path in paths.items():
        node.give("c1")
        got = node.run("DEL", "c1", CNI_NETNS=path)
        assert (what, got.code, node.leases()) == (what, 0, [])


@pytest.mark.parametrize("config", CUT_DOWN, ids=lambda config: config.decode() or "nothing")
def test_a_del_with_a_configuration_cut_down_releases_in_every_network(make_node, config):
    """C2: the container ID and the interface are enough."""
    node = make_node({"blue.yaml": network(), "red.yaml": network("red", v4="10.5.0.0/24", v6="fd00:5::/120")})
    node.start()
    node.give("c1")
    node.give("c1", of="red")
    node.give("c1", interface="net1")
    node.give("c2")

    assert node.run("DEL", "c1", config=config).ok
    assert (
        sorted((lease.container, lease.interface) for lease in node.leases())
        == [("c1", "net1")] * 2 + [("c2", "eth0")] * 2
    )
    assert node.run("DEL", "c1", config=config).ok


def test_a_del_releases_where_the_network_is_no_more(node):
    """C2: the manifest went first, the pod after it."""
    node.give("c1")
    node.write("note.yaml", "# all networks are gone, and that is meant\n")
    node.remove("blue.yaml")
    until(lambda: node.network().phase == "draining", "the network does not drain")
    assert node.refuse("c2").code == 7

    assert node.run("DEL", "c1", CNI_NETNS="").ok
    assert node.leases() == []
    until(lambda: node.finalizers() is None, "the finalizer stays though the last lease is gone")
    assert node.run("DEL", "c1", CNI_NETNS="").ok


def test_a_del_releases_what_the_first_attempt_left(node):
    """C2: one call under another network's name finds nothing and says success; the right one still finds its lease."""
    node.give("c1")
    node.free("c1", of="red")
    node.free("c1", interface="eth1")
    assert len(node.leases()) == 2
    node.free("c1")
    assert node.leases() == []


def test_gc_alone_frees_what_a_main_plugin_never_releases(node):
    """C2: `host-device` and its like skip IPAM when the namespace is gone; the runtime's list is all there is."""
    told = {f"c{number}": node.give(f"c{number}") for number in range(20)}
    node.give("elsewhere", config={"name": "other-conf"})
    valid = [f"c{number}" for number in range(0, 20, 2)]

    node.collect(*valid)
    assert {lease.container for lease in node.leases()} == {*valid, "elsewhere"}
    assert {tuple(sorted(told[container])) for container in valid} <= set(node.held().values())
    node.collect()
    assert {lease.container for lease in node.leases()} == {"elsewhere"}
    assert {entry.ended.cause for entry in node.history() if entry.ended} == {"gc"}


def test_a_list_that_is_missing_is_not_an_empty_one(node):
    """C2, I8: GC without its list frees nothing, and says so."""
    node.give("c1")
    got = node.call("GC")
    assert got.code == 7
    assert "a list that is missing is not an empty one" in got.message
    assert len(node.leases()) == 2


# -- C5


@pytest.fixture(scope="module")
def failing():
    """A node on a disk that fails when it is told to."""
    with faulty_node({"blue.yaml": network(cooldown=0)}, dir="/dev/shm") as node:
        node.start()
        yield node


def steps_of_a_del(node):
    """How many changes of the disk one DEL makes, its answer and what it sets off included."""
    node.give("counted")
    node.disk_control.count(CHANGES, match="ledger.db")
    node.free("counted")
    node.disk_control.disarm()
    return node.disk_control.seen


def once(node, container):
    """The history of a container's leases: each ended exactly once."""
    entries = [entry for entry in node.history(container=container) if entry.ended]
    assert len({entry.sequence for entry in entries}) == len(entries)
    return entries


@pytest.mark.parametrize(
    "error", [pytest.param(errno.EIO, id="EIO"), pytest.param(errno.ENOSPC, id="ENOSPC", marks=pytest.mark.slow)]
)
def test_a_del_that_fails_on_the_disk_is_finished_by_the_retry_exactly_once(failing, error):
    """C5, I7: at each write, sync and rename. The caller is told to keep its DEL, or the release is on disk."""
    for step in range(1, steps_of_a_del(failing) + 1):
        container = f"del-{errno.errorcode[error]}-{step}"
        failing.give(container)
        failing.disk_control.arm(CHANGES, first=step, times=1, error=error, match="ledger.db")
        first = failing.call("DEL", container)
        failing.disk_control.disarm()

        assert first.code in (0, 11), first
        if first.ok:
            assert failing.leases() == []
        else:
            assert first.flags == 1, "the shim is not told to keep it"
            until(lambda name=container: failing.call("DEL", name).ok, "the disk is back, and the retry fails")
        assert failing.leases() == []
        assert len(once(failing, container)) == 2
        until(lambda: failing.call("STATUS").ok, "service does not resume")
        # A disk that fails again soon is given half a minute; the next agent knows nothing of this failure.
        failing.kill()
        failing.start()
        assert failing.leases() == []


def test_a_del_during_which_the_agent_is_killed_is_finished_by_the_retry_exactly_once(failing):
    """C5, I2: SIGKILL at each change of the disk; the runtime asks the next agent."""
    for step in range(1, steps_of_a_del(failing) + 1):
        container = f"del-killed-{step}"
        failing.give(container)
        failing.disk_control.arm(Call.WRITE | CHANGES, first=step, times=1, error=KILL, match="ledger.db")
        shim = failing.begin("DEL", container, timeout_ms=20000)
        if failing.wait_or_answer(shim):
            failing.start()
        failing.disk_control.disarm()

        assert failing.finish(shim).ok
        until(lambda: not failing.leases(), "the lease outlives its DEL")
        failing.free(container)
        assert len(once(failing, container)) == 2


def test_a_del_kept_while_the_disk_fails_is_replayed_when_it_is_back(failing):
    """C5: the agent can't write the release down, the shim keeps the DEL, and nobody has to ask again."""
    failing.give("kept")
    failing.disk_control.arm(CHANGES, error=errno.EIO, match="ledger.db")
    assert failing.run("DEL", "kept").ok
    assert len(failing.leases()) == 2, "nothing may be released in memory alone"
    assert failing.status().spool.waiting == 1
    failing.disk_control.disarm()

    until(lambda: not failing.leases(), "the kept DEL is not replayed")
    until(lambda: failing.status().spool.waiting == 0, "the entry stays")
    assert {entry.ended.cause for entry in once(failing, "kept")} == {"spool"}
