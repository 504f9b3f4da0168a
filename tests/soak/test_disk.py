"""The agent on a disk that fills, breaks, turns read-only or goes away: real file systems, and the whole process.

What a runtime must see: an ADD that can't be written down is refused with the disk named, a pod can always end, what
was acknowledged holds, and once the disk is well, so is the agent, by itself.
"""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import agents
from agents import network
from allotment.ledger import LedgerReader
from faults.injection import CHANGES, HOLD, Call
from faults.node import faulty_node
from nodes import Node, until

TRY_AGAIN, NOT_SERVING = 11, 50
POD_COUNT = 20
BLUE = {"blue.yaml": network(cooldown=0)}
SMALL = ["--ballast-mib", "1", "--add-wait", "0.5"]


@contextlib.contextmanager
def mounted(folder, *arguments):
    """A file system at `folder`, for as long as the context lasts."""
    subprocess.run(["mount", *arguments, str(folder)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


@pytest.fixture
def small_disk(launcher, tmp_path):
    """A node whose state folder is on a disk of 8 MiB."""
    with (
        Node(launcher, BLUE, folder=tmp_path, flags=SMALL) as node,
        mounted(node.state, "-t", "tmpfs", "-o", "size=8m,mode=0700", "none"),
    ):
        node.start()
        yield node
        node.kill()  # before its disk goes


@pytest.fixture
def failing():
    """A node whose disk can be made to fail, and the control of that."""
    with faulty_node(BLUE) as node:
        node.start()
        yield node, node.disk_control


def fill(folder):
    """Take all the room there is; the file that does."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


def pods(count, prefix="pod"):
    return [f"{prefix}-{number}" for number in range(count)]


def give_until_refused(node):
    """ADD after ADD until one is refused: what was given, and the refusal. Some may still fit into the log."""
    given = {}
    for container in pods(300, "late"):
        answer = node.call("ADD", container)
        if not answer.ok:
            return given, answer
        given["blue", container] = held_as(answer.addresses)
    raise AssertionError("a full disk takes 300 leases")


def held_as(addresses):
    return tuple(sorted(address.split("/")[0] for address in addresses))


@pytest.mark.root
def test_a_full_disk_refuses_adds_and_takes_dels_until_there_is_room_again(small_disk):
    """C3, I2: 11 and never 50, for a node that says 50 loses its pods."""
    node = small_disk
    held = {("blue", pod): held_as(node.give(pod)) for pod in pods(POD_COUNT)}
    filler = fill(node.state)
    more, refusal = give_until_refused(node)
    held |= more
    assert refusal.code == TRY_AGAIN
    assert "full" in refusal.message
    assert str(node.state) in refusal.message
    assert node.call("STATUS").ok, "a full disk is no reason to evict pods"
    assert node.held() == held
    assert held_as(node.call("ADD", "pod-0").addresses) == held["blue", "pod-0"], "what is held is repeated"

    for pod in pods(POD_COUNT // 2):
        assert node.call("DEL", pod).flags == 0, "the DEL has to be kept by the shim"
        del held["blue", pod]
    assert node.refuse("still-full").code == TRY_AGAIN
    assert node.held() == held

    filler.unlink()
    until(lambda: node.call("ADD", "resumed").ok, "service does not resume by itself")
    assert node.call("DEL", "resumed").ok
    node.kill()
    node.start()
    assert node.held() == held
    for pod in pods(POD_COUNT):
        node.free(pod)


@pytest.mark.root
def test_an_agent_that_dies_on_a_full_disk_starts_on_it(small_disk):
    """I2: also where the ballast was given up before. Releases go on as if nothing had been."""
    node = small_disk
    held = {("blue", pod): held_as(node.give(pod)) for pod in pods(POD_COUNT)}
    filler = fill(node.state)
    more, _ = give_until_refused(node)
    held |= more
    for _ in range(3):
        node.kill()
        fill(node.state)
        node.start()
        assert node.held() == held
        assert node.call("STATUS").ok
    assert node.refuse("full").code == TRY_AGAIN
    node.kill()
    filler.unlink()
    node.start()
    assert node.held() == held
    assert node.call("ADD", "resumed").ok


@pytest.mark.root
def test_a_network_that_comes_while_the_disk_is_full_is_admitted_when_there_is_room(small_disk):
    """I4: nothing is given before the finalizer is on disk."""
    node = small_disk
    filler = fill(node.state)
    give_until_refused(node)
    fill(node.state)  # what the ballast left
    node.write("green.yaml", network("green", v4="10.5.0.0/24", v6="fd00:5::/120"))
    until(lambda: node.network("green"), "the new network is not seen")
    refusal = node.refuse("g1", of="green")
    assert refusal.code == TRY_AGAIN, refusal
    assert node.finalizers("green.n1") in (None, [])
    filler.unlink()
    until(lambda: node.call("ADD", "g1", of="green").ok, "the network is not admitted")
    assert node.finalizers("green.n1") == ["allotment.dev/node"]


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS], ids=["EIO", "EROFS"])
def test_while_the_disk_is_broken_status_is_50_and_dels_are_kept(failing, error):
    """C3: the agent itself can serve nothing. What it holds it still knows, and pods can end: the shim keeps it."""
    node, control = failing
    held = {("blue", pod): held_as(node.give(pod)) for pod in pods(POD_COUNT)}
    control.arm(CHANGES, error=error, match="/state/")
    refusal = node.refuse("late")
    assert refusal.code == TRY_AGAIN
    until(lambda: node.call("STATUS").code == NOT_SERVING, "STATUS says that all is well")
    assert str(node.state) in node.call("STATUS").message
    assert node.refuse("late").code == TRY_AGAIN
    assert node.held() == held
    assert node.run("DEL", "pod-0").ok
    assert node.status().spool.waiting == 1
    assert node.held() == held, "a release counts once it is on disk"

    control.disarm()
    until(lambda: node.call("STATUS").ok, "service does not resume by itself")
    until(lambda: node.status().spool.waiting == 0, "the kept DEL is not replayed")
    del held["blue", "pod-0"]
    assert node.held() == held
    assert node.call("ADD", "after").ok
    node.free("after")
    assert len(list(node.state.glob("*.set-aside"))) == 1, "the file that the disk failed under is used on"
    node.kill()
    node.start()
    assert node.held() == held


def test_one_error_of_the_disk_costs_a_new_file_and_nothing_else(failing):
    """FACTS: a file is never trusted after an I/O error. STATUS never says 50 for what is over at once."""
    node, control = failing
    held = {("blue", pod): held_as(node.give(pod)) for pod in pods(POD_COUNT)}
    control.arm(Call.SYNC, error=errno.EIO, times=1, match="ledger.db-wal")
    first = node.call("ADD", "c1")
    assert first.ok or first.code == TRY_AGAIN
    second = node.call("ADD", "c1")
    assert second.ok, second
    assert node.call("STATUS").ok
    held["blue", "c1"] = held_as(second.addresses)
    assert node.held() == held
    assert len(list(node.state.glob("*.set-aside"))) == 1
    node.kill()
    with LedgerReader(node.state) as reader:
        assert agents.addresses_of(reader.content().book.leases) == held
        assert reader.problems() == []


@pytest.mark.parametrize("how", [pytest.param("all of it", marks=pytest.mark.slow), "the ledger"])
def test_state_that_is_removed_under_the_agent_is_written_anew(failing, how):
    """I2: a file that nobody can find again takes commits like any other; that must not be called durable."""
    node, _ = failing
    held = {("blue", pod): held_as(node.give(pod)) for pod in pods(POD_COUNT)}
    if how == "all of it":
        shutil.rmtree(node.state)
    else:
        for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
            (node.state / name).unlink()
    first = node.call("ADD", "first")
    assert first.code == TRY_AGAIN, "it was said to be on disk, and is nowhere"
    if how == "all of it":
        until(lambda: node.call("STATUS").code == NOT_SERVING, "STATUS says that all is well")
        assert node.run("DEL", "pod-0").ok
        node.state.mkdir(mode=0o700)
        until(lambda: ("blue", "pod-0") not in node.held(), "the kept DEL is not replayed")
        del held["blue", "pod-0"]
    until(lambda: node.call("ADD", "second").ok, "service does not resume by itself")
    held["blue", "second"] = held_as(node.call("ADD", "second").addresses)
    until(lambda: node.finalizers() == ["allotment.dev/node"], "the Allocation is not recorded again")
    node.kill()
    node.start()
    assert node.held() == held


def test_an_add_whose_disk_is_slow_is_answered_before_the_agent_ends(failing):
    """SIGTERM while an ADD waits for its sync: it is finished, acknowledged and holds, and the exit is a clean one."""
    node, control = failing
    control.arm(Call.SYNC, error=HOLD, match="ledger.db-wal")
    shim = node.begin("ADD", "c1")
    until(lambda: control.seen, "the ADD has not come to the disk")
    node.send(signal.SIGTERM)
    assert node.process.wait(0.3) is None, "it ended with a request in flight"
    assert shim.poll() is None
    control.disarm()
    answer = node.finish(shim)
    assert answer.ok, answer
    assert node.wait() == 0, node.log()
    assert node.await_notice("STOPPING")
    node.start()
    assert node.held() == {("blue", "c1"): held_as(answer.addresses)}


def test_a_caller_that_hangs_up_on_a_slow_disk_is_left_with_nothing_though_the_agent_ends(failing):
    """C23: its lease is on the way to the disk, is taken back once it is there, and SIGTERM waits for that."""
    node, control = failing
    control.arm(Call.SYNC, error=HOLD, match="ledger.db-wal")
    first = node.begin("ADD", "first")
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.2)
    control.disarm()
    assert node.finish(first).ok
    # Once it has seen the disk slow, the agent no longer stands still for it.
    control.arm(Call.SYNC, error=HOLD, match="ledger.db-wal")
    shim = node.begin("ADD", "gone")
    until(lambda: node.status().in_flight == 1 and control.seen, "the ADD has not come to the disk")
    shim.kill()
    shim.communicate()
    until(lambda: node.said('"caller gone"'), "the agent does not see that its caller is gone")
    node.send(signal.SIGTERM)
    assert node.await_notice("STOPPING")
    assert node.process.wait(0.3) is None, "it ended while a lease was being taken back"
    control.disarm()
    assert node.wait() == 0, node.log()
    with LedgerReader(node.state) as reader:
        assert {lease.owner.container_id for lease in reader.content().book.leases} == {"first"}


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("mkfs.ext4") is None or not Path("/dev/loop-control").exists(),
    reason="ext4 on a loop device is needed (apt-get install e2fsprogs)",
)
def test_a_file_system_that_turns_read_only_stops_adds_and_keeps_dels(launcher, tmp_path):
    """ext4 does so after an error of its own. It is mounted anew by a person; then nothing acknowledged is missing."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", image], check=True, capture_output=True)
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(Node(launcher, BLUE, folder=tmp_path, flags=SMALL))
        disk = stack.enter_context(contextlib.ExitStack())
        disk.enter_context(mounted(node.state, "-o", "loop,errors=remount-ro", str(image)))
        device = node.state.stat().st_dev
        name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").readlink().name
        node.start()
        held = {("blue", pod): held_as(node.give(pod)) for pod in pods(POD_COUNT)}
        Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("a test")
        until(lambda: not node.call("ADD", "late").ok, "a file system that is read-only takes leases")
        late = {key: addresses for key, addresses in node.held().items() if key not in held}
        until(lambda: node.call("STATUS").code == NOT_SERVING, "STATUS says that all is well")
        assert node.run("DEL", "pod-0").ok
        assert node.status().spool.waiting == 1
        node.send(signal.SIGTERM)
        node.wait()
        disk.close()
        subprocess.run(["e2fsck", "-f", "-p", image], check=False, capture_output=True)
        stack.enter_context(mounted(node.state, "-o", "loop", str(image)))
        node.start()
        until(lambda: node.status().spool.waiting == 0, "the kept DEL is not replayed")
        found = node.held()
        del held["blue", "pod-0"]
        assert held.items() <= found.items(), "an acknowledged lease is lost"
        assert found.keys() - held.keys() <= late.keys() | {("blue", "late")}
        assert node.call("ADD", "after").ok
        node.stop()
