"""CASES C63: two agents on one state folder. The second says who holds it; the first notices nothing."""

import json
import os
import signal
import subprocess
import sys

import pytest

from allotment.addressing.errors import LedgerUnavailable, StateFolderHeld
from allotment.ledger import StateLock
from allotment.testing.clock import ManualClock
from unit.ledger.examples import granted, lease, opened

HOLD = """
import sys
from pathlib import Path
from allotment.ledger import StateLock
from allotment.testing.clock import ManualClock
lock = StateLock.take(Path(sys.argv[1]), node="node-7", clock=ManualClock())
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    command = [sys.executable, "-c", HOLD, tmp_path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def take(folder):
    return StateLock.take(folder, node="node-1", clock=ManualClock())


def test_the_second_is_told_who_holds_it(holder, tmp_path):
    before = (tmp_path / "agent.lock").read_bytes()
    for _ in range(3):
        with pytest.raises(StateFolderHeld) as caught:
            take(tmp_path)
        for part in (str(tmp_path), f"process {holder.pid}", "node-7", "2023-11-14T22:13:20+00:00", "--state-dir"):
            assert part in caught.value.message
    assert (tmp_path / "agent.lock").read_bytes() == before
    assert holder.poll() is None


def test_who_was_killed_before_is_not_taken_for_who_holds_it_now(holder, tmp_path, monkeypatch):
    """Whoever has just taken it hasn't yet written down who it is."""
    written = tmp_path / "agent.lock"
    current = json.loads(written.read_text())
    gone = subprocess.Popen(["true"])
    gone.wait()
    written.write_text(json.dumps(current | {"pid": gone.pid}))
    monkeypatch.setattr("allotment.ledger.lock.time.sleep", lambda _: written.write_text(json.dumps(current)))
    with pytest.raises(StateFolderHeld, match=f"process {holder.pid} of node node-7"):
        take(tmp_path)


def test_a_holder_that_is_out_of_sight_is_named_all_the_same(holder, tmp_path):
    """In another PID namespace, such as another pod's."""
    written = tmp_path / "agent.lock"
    current = json.loads(written.read_text())
    written.write_text(json.dumps(current | {"pid": 1 << 22}))  # more than there can be (proc(5), pid_max)
    with pytest.raises(StateFolderHeld, match=f"process {1 << 22} of node node-7"):
        take(tmp_path)


def test_the_lock_ends_with_its_process_however_it_ends(holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    lock = take(tmp_path)
    assert json.loads((tmp_path / "agent.lock").read_text())["pid"] == os.getpid()
    lock.release()


def test_it_can_be_taken_again_after_release(tmp_path):
    lock = take(tmp_path)
    with pytest.raises(StateFolderHeld):
        take(tmp_path)
    lock.release()
    lock.release()
    take(tmp_path).release()
    assert (tmp_path / "agent.lock").exists()


async def test_no_commit_of_the_ledger_lets_go_of_it(tmp_path):
    """The lock is on a file of its own, which nothing renames or replaces."""
    lock = take(tmp_path)
    identity = (tmp_path / "agent.lock").stat().st_ino
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(1)))
        with pytest.raises(StateFolderHeld):
            take(tmp_path)
    assert (tmp_path / "agent.lock").stat().st_ino == identity
    lock.release()


def test_a_folder_that_can_not_be_used(tmp_path):
    with pytest.raises(LedgerUnavailable, match="nowhere"):
        take(tmp_path / "nowhere")
