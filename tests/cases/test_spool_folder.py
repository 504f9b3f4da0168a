"""What may lie in the spool besides kept DELs, and what the folder itself may become: the agent goes on serving."""

import os
import socket
import subprocess
import sys

import pytest

from agents import environment, network, now
from allotment.cni.frames import encode_call, encode_spool_entry
from allotment.observe.clock import read_boot_id
from nodes import until

PIPE, FOLDER, LINK, SOCKET = "a-pipe.del", "b-folder.del", "c-link.del", "d-socket.del"


def keep(node, container):
    """A kept DEL as the shim leaves it."""
    request = encode_call(environment("DEL", container), node.conf("blue"))
    draft = node.spool / f".{container}"
    draft.write_bytes(encode_spool_entry(read_boot_id(), int(now() * 1e9), request))
    draft.rename(node.spool / f"z-{container}.del")


def litter(folder):
    """Everything but a file with a DEL in it."""
    os.mkfifo(folder / PIPE)
    draft = folder / ".draft"  # the agent looks at once
    draft.mkdir()
    (draft / "within").write_text("x")
    draft.rename(folder / FOLDER)
    (folder / LINK).symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(folder / SOCKET))
    (folder / "e-empty.del").write_bytes(b"")
    (folder / "f-\udcff.del").write_bytes(b"ALS1 and then nothing of use")
    (folder / "g-long.del").write_bytes(b"x" * (3 << 20))


def entries(node):
    return [path.name for path in node.spool.glob("*.del")]


@pytest.fixture
def node(make_node):
    """On the machine's own boot, so that kept DELs mean something."""
    node = make_node({"blue.yaml": network(cooldown=0)})
    node.start()
    return node


def test_what_is_no_kept_del_is_put_aside_and_holds_nobody_up(node):
    node.give("c1")
    litter(node.spool)
    keep(node, "c1")
    until(lambda: not entries(node), "the spool is not worked off")
    assert len(list((node.spool / "unreadable").iterdir())) == 7
    assert node.leases() == []
    assert node.give("c1")
    node.stop()


def test_a_pipe_in_the_spool_does_not_stop_the_look_of_a_person(node):
    [address, _] = node.give("c1")
    node.kill()
    os.mkfifo(node.spool / PIPE)
    command = [sys.executable, "-m", "allotment.cli", "explain", address]
    done = subprocess.run(
        [*command, "--socket", node.socket, "--state-dir", node.state], capture_output=True, timeout=30, check=True
    )
    assert b"c1" in done.stdout


@pytest.mark.parametrize("twice", ["a folder of that name is there", "a file is where they are put"])
def test_what_cannot_be_put_aside_stays_and_is_told_once(node, twice):
    if twice.startswith("a folder"):
        (node.spool / "unreadable" / FOLDER / "within").mkdir(parents=True)
    else:
        (node.spool / "unreadable").write_text("")
    node.give("c1")
    litter(node.spool)
    keep(node, "c1")
    until(lambda: node.said("by hand") and not node.leases())
    for _ in range(3):
        assert node.give("c1"), "its spool is looked into before it is told of leases that it has"
    assert node.running
    assert node.log(1 << 22).count(f"{FOLDER} is no kept DEL") == 1
    node.stop()
    node.start()
    assert node.give("c2")


def test_a_spool_that_cannot_be_looked_into_is_not_taken_for_an_empty_one(node):
    """I8: who is told of a lease again must know that no kept DEL ends it; everything else goes on."""
    given = node.give("c1")
    (node.spool).rename(node.spool.with_name("elsewhere"))
    node.spool.write_text("")
    assert "can't be looked into" in node.refuse("c1").message
    assert node.give("c2")
    node.free("c2")
    assert node.running
    node.spool.unlink()
    node.spool.with_name("elsewhere").rename(node.spool)
    assert node.give("c1") == given
    keep(node, "c1")
    until(lambda: not node.leases(), "the spool is no longer heard")


def test_a_spool_that_is_removed_is_heard_again_when_it_is_back(node):
    node.give("c1")
    node.spool.rmdir()
    assert node.give("c1")
    node.spool.mkdir()
    keep(node, "c1")
    until(lambda: not node.leases(), "the spool is no longer heard")
