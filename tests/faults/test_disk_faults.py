"""I1, I2, I3, I7 on a disk that kills, fills or fails at every single write, sync, rename, truncate and unlink.

The quick tier samples the points; `-m slow` takes every one of them.
"""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from allotment.addressing.book import BookState
from allotment.ledger import Ledger, LedgerReader
from faults.injection import CHANGES, KILL, Call, Faults
from faults.journal import judge, read_journal

ROUNDS = 6
FAILURE = 40
"""A change of the disk in the middle of a run; failing it makes the ledger write a new file."""
REPLACEMENT = 40
"""More changes of the disk than writing the new file takes."""


class Bench:
    """A worker whose disk fails below `folder`, and the folder as it is before each run."""

    def __init__(self, home, faults, process):
        self.folder = home / "state"
        self.journal = home / "journal"
        self.control = faults.control
        self._process = process
        self.origin = home / "origin"

    def run(self, *, seed=1, lift=False, rounds=ROUNDS):
        """One run; returns how its process ended, and what it told and left behind."""
        self.journal.unlink(missing_ok=True)
        before = state_of(self.folder)
        command = {"folder": str(self.folder), "journal": str(self.journal), "seed": seed, "rounds": rounds}
        self._process.stdin.write(json.dumps(command | {"lift": lift}) + "\n")
        self._process.stdin.flush()
        status = json.loads(self._process.stdout.readline())["status"]
        self.control.disarm()
        return status, read_journal(self.journal, before)

    def reset(self, *, used):
        """A folder without a ledger, or with one that was in use when its agent was killed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if not used:
            self.folder.mkdir()
            return
        if not self.origin.exists():
            self.folder.mkdir()
            assert self.run(seed=100)[0] == 0
            self.control.arm(Call.SYNC, first=5, match="-wal")
            assert self.run(seed=101)[0] == -9
            self.folder.rename(self.origin)
        shutil.copytree(self.origin, self.folder)

    def points(self, *, used):
        """How many changes of the disk one run makes."""
        self.reset(used=used)
        self.control.count(CHANGES)
        assert self.run()[0] == 0
        return self.control.seen


@pytest.fixture(scope="module")
def bench():
    home = Path(tempfile.mkdtemp(prefix="allotment-test-", dir="/dev/shm"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home)
        faults = stack.enter_context(Faults(home / "state"))
        process = subprocess.Popen(
            [sys.executable, "-m", "faults.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=faults.environment() | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        stack.callback(process.wait)
        stack.callback(process.stdout.close)
        stack.callback(process.stdin.close)
        yield Bench(home, faults, process)


def state_of(folder):
    """What a ledger holds, read without touching it."""
    if not (folder / "ledger.db").exists() and not (folder / "ledger.db.next").exists():
        return BookState()
    with LedgerReader(folder) as reader:
        return reader.content().book


def reopen(folder):
    """What the agent finds when it starts again; the ledger is closed orderly afterwards."""

    async def look():
        ledger = Ledger.open(folder, boot="boot-1", snapshot=BookState, ballast_bytes=0)
        state = ledger.load()
        await ledger.close()
        return state

    return asyncio.run(look())


def sample(total, every, seed):
    """Each `every`th point, always with the first and the last."""
    return sorted({1, total, *range(1 + seed % every, total + 1, every)})


def every(quick):
    """The two tiers: sampled points, and all of them."""
    return pytest.mark.parametrize("step", [quick, pytest.param(1, marks=pytest.mark.slow)])


@every(25)
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("half", [False, True], ids=["whole", "torn"])
def test_killed_at_any_change_of_the_disk(bench, step, used, half):
    """I1, I2, I3: whatever was acknowledged before the kill is there after it, and a new run goes on from there."""
    for point in sample(bench.points(used=used), step, 3 + half):
        bench.reset(used=used)
        bench.control.arm(CHANGES, first=point, error=KILL, half=half)
        status, told = bench.run()
        if bench.control.seen >= point:  # the number of syncs varies a little with what shares a transaction
            assert status == -9, f"point {point}: {told.notes}"
        judge(told, reopen(bench.folder))
        status, told = bench.run(seed=2, rounds=2)
        assert status == 0, f"point {point}: {told.notes}"
        judge(told, reopen(bench.folder), exact=True)


@every(25)
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("times", [1, 0], ids=["once", "on"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_refused_at_any_change_of_the_disk(bench, step, used, times, code):
    """I2: nothing half-done, nothing lost, and service resumes by itself once the disk is back."""
    for point in sample(bench.points(used=used), step, code + times):
        bench.reset(used=used)
        bench.control.arm(CHANGES, first=point, times=times, error=code)
        status, told = bench.run(lift=True)
        assert status == 0, f"point {point}: {told.notes}"
        if told.notes[0].startswith("unavailable"):  # the disk failed while the ledger was being opened
            judge(told, state_of(bench.folder), exact=True)
            status, told = bench.run(seed=2)
            assert status == 0, f"point {point}: {told.notes}"
        else:
            assert told.notes[0].startswith("resumed open"), f"point {point}: {told.notes}"
        judge(told, reopen(bench.folder), exact=True)


@every(12)
def test_killed_while_a_failed_file_is_replaced(bench, step):
    """I2: a kill at any point between the failure and the end of the replacement loses nothing acknowledged."""
    for point in sample(REPLACEMENT, step, 2):
        bench.reset(used=True)
        bench.control.arm(CHANGES, first=FAILURE, times=1, error=errno.EIO, kill=FAILURE + point)
        status, told = bench.run()
        assert status == -9, f"point {point}: {told.notes}"
        judge(told, reopen(bench.folder))


def test_a_failed_file_is_never_touched_again(bench):
    """FACTS: a file that is checkpointed after an I/O error is malformed after a remount."""
    bench.reset(used=True)
    bench.control.arm(Call.SYNC, first=4, times=1, error=errno.EIO, match="-wal")
    status, told = bench.run(lift=True)
    assert status == 0
    assert told.notes[0] == "resumed open"
    [aside] = bench.folder.glob("*.set-aside")
    assert "I/O error" in (aside / "reason.txt").read_text()
    assert (aside / "ledger.db-wal").stat().st_size > 0
    left = (aside / "ledger.db").read_bytes()
    bench.reset(used=True)
    reopen(bench.folder)
    assert left == (bench.folder / "ledger.db").read_bytes(), "more than opening it changed the file"


@every(5)
def test_unreadable_at_any_point_of_opening(bench, step):
    """A ledger that can't be read says so; it never opens with a part of what it holds (I2, I15)."""
    bench.reset(used=True)
    whole = state_of(bench.folder)
    bench.control.count(Call.READ)
    bench.run(rounds=0)
    for point in sample(bench.control.seen, step, 2):
        bench.reset(used=True)
        bench.control.arm(Call.READ, first=point, times=1, error=errno.EIO)
        status, told = bench.run(rounds=0)
        assert status == 0, f"point {point}: {told.notes}"
        if told.notes[0].startswith("closed"):
            assert told.notes[0].split()[1] == str(len(whole.leases)), f"point {point}"
        else:
            assert told.notes[0].split()[0] in ("damaged", "unavailable"), f"point {point}: {told.notes}"
