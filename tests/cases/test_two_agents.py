"""C63: two agents on one node at once, the lock being on a file that a commit renames: both believe they hold it."""

import errno
import json
import os

import pytest

from agents import network
from faults.injection import CHANGES
from faults.node import faulty_node
from nodes import Node, until

BLUE = {"blue.yaml": network(cooldown=0)}


@pytest.fixture
def second_of(launcher):
    """Makes another agent for the folders of one that there is: same state, same socket."""
    made = []

    def make(first, **options):
        second = Node(launcher, BLUE, flags=first.arguments(), **options)
        second.socket = first.socket
        made.append(second)
        return second

    yield make
    for node in made:
        node.__exit__(None, None, None)


def test_the_second_says_who_has_the_folder_and_the_first_notices_nothing(node, second_of):
    told = node.give("c1")
    listening = node.socket.stat()
    second = second_of(node)
    second.launch()

    assert second.wait() not in (0, None)
    assert f"in use by another agent (process {node.pid} of node n1, since 20" in second.log()
    assert "stop that one, or give this one another --state-dir" in second.log()
    assert not any("READY" in notice for notice in second.notices)
    assert node.running
    assert node.socket.stat().st_ino == listening.st_ino, "the first one's socket was taken away"
    assert node.give("c1") == told
    assert json.loads((node.state / "agent.lock").read_text())["pid"] == node.pid


def test_one_with_another_state_folder_does_not_take_the_socket_over(node, make_node):
    """With a folder of its own no lock stands in its way, and it would give the first one's addresses again (I1)."""
    told = node.give("c1")
    other = make_node(BLUE)
    other.socket = node.socket
    other.launch()

    assert other.wait() not in (0, None)
    assert f"another agent (process {node.pid}) answers at {node.socket}" in other.log()
    assert node.running
    assert node.give("c1") == told


def test_of_many_that_start_at_once_one_serves(make_node, second_of):
    """Nobody is first: whoever wins serves, and all the others say that it does and end."""
    first = make_node(BLUE)
    agents = [first, *(second_of(first) for _ in range(4))]
    for _ in range(3):
        for agent in agents:
            agent.launch()
        until(lambda: sum(agent.running for agent in agents) == 1, "more than one agent stays")
        [winner] = [agent for agent in agents if agent.running]
        assert winner.await_notice("READY")
        for agent in agents:
            if agent is not winner:
                assert agent.wait() != 0
                assert f"in use by another agent (process {winner.pid} of node n1" in agent.log()
        first.give("c1")
        assert len(first.leases()) == 2
        first.free("c1")
        winner.kill()


def test_the_lock_outlives_the_ledgers_file(second_of):
    """The class of this case: the file is renamed over by what happens to the ledger; the lock is on another one."""
    with faulty_node(BLUE) as node:
        node.start()
        node.give("c1")
        before = (node.state / "ledger.db").stat().st_ino
        node.disk_control.arm(CHANGES, first=1, times=1, error=errno.EIO, match="ledger.db-wal")
        node.call("ADD", "c2")
        node.disk_control.disarm()
        until(lambda: node.call("ADD", "c3").ok, "the ledger is not replaced")
        assert (node.state / "ledger.db").stat().st_ino != before

        second = second_of(node)
        second.launch()
        assert second.wait() != 0
        assert f"process {node.pid}" in second.log()
        assert node.call("CHECK", "c1", config={"prevResult": {"ips": []}}).code in (0, 103)


def test_a_lock_file_that_is_tidied_away_is_not_the_lock(node, second_of):
    """Somebody tidies up below /var/lib. Two agents on one ledger would each see the other's work as damage."""
    told = node.give("c1")
    (node.state / "agent.lock").unlink()
    second = second_of(node)
    second.launch()
    assert second.wait() not in (0, None)
    assert "in use by another agent (it has not written down who it is)" in second.log()
    assert node.give("c1") == told
    node.kill()
    node.start()
    assert node.give("c1") == told


def test_the_next_one_starts_as_soon_as_the_first_is_dead(node, second_of):
    """The kernel lets go of the lock, however the process ends."""
    told = node.give("c1")
    second = second_of(node)
    node.kill()
    second.start()
    assert node.give("c1") == told
    second.stop()
    node.start()
    assert node.give("c1") == told


def test_a_lock_file_with_anything_in_it_is_no_obstacle(node):
    """What is written in it is for people; only the kernel's lock counts."""
    node.kill()
    for content in (b"", b'{"pid": 1}', os.urandom(5000)):
        (node.state / "agent.lock").write_bytes(content)
        node.start()
        node.kill()
