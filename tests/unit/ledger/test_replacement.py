"""I2: a new file takes the place of one that the disk failed under, and a crash on the way loses nothing."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from allotment.addressing.book import BookState
from allotment.addressing.errors import InternalError, LedgerUnavailable
from allotment.ledger import LedgerState, RowsQuery
from allotment.ledger.state import Content, write_file
from allotment.observe.clock import SystemClock
from unit.ledger.examples import BOOT, copy_as_killed, granted, lease, opened, released, rest_of, state_of, until


def disk_error():
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
    return error


def moved(folder, *, names, into="ledger-x.set-aside"):
    (folder / into).mkdir(exist_ok=True)
    for name in names:
        if (folder / name).exists():
            (folder / name).rename(folder / into / name)


@pytest.fixture
async def crashed(tmp_path):
    """What a crash leaves right after the new file is whole: it, and the old file with its log."""
    (tmp_path / "live").mkdir()
    async with opened(tmp_path / "live") as ledger:
        await ledger.commit(granted(lease(1)))
        copy_as_killed(tmp_path / "live", tmp_path / "crashed")
    folder = tmp_path / "crashed"
    assert (folder / "ledger.db-wal").stat().st_size > 0
    truth = BookState((lease(1), lease(2)), (rest_of(lease(3)),), 3)
    write_file(folder / "ledger.db.next", Content(ledger.ledger_id, "b", truth, {("Network", "blue"): b"x"}, 1))
    return folder, truth


@pytest.mark.parametrize(
    "gone",
    [(), ("ledger.db",), ("ledger.db", "ledger.db-wal"), ("ledger.db", "ledger.db-wal", "ledger.db-shm")],
    ids=["nothing", "file", "file and log", "all"],
)
async def test_a_crash_at_each_step_is_finished_by_the_next_start(crashed, gone):
    folder, truth = crashed
    moved(folder, names=gone)
    assert state_of(folder) == truth.canonical()  # the CLI sees the same before the agent starts
    async with opened(folder) as ledger:
        assert ledger.load().canonical() == truth.canonical()
        assert ledger.objects() == {("Network", "blue"): b"x"}
        await ledger.commit(granted(lease(4)))
        await ledger.commit(released(lease(1)))
        assert [row.sequence for row in await ledger.history(RowsQuery())] == [1]
    assert state_of(folder).sequence == 4
    aside = {path.name for other in folder.glob("*.set-aside") for path in other.iterdir()}
    assert {"ledger.db", "ledger.db-wal"} <= aside
    assert not (folder / "ledger.db.next").exists()


async def test_a_new_file_that_is_not_whole_is_of_no_worth(crashed):
    folder, _ = crashed
    (folder / "ledger.db.next").rename(folder / "ledger.db.new")
    (folder / "ledger.db.new-wal").write_bytes(b"x" * 5000)
    async with opened(folder) as ledger:
        assert [each.sequence for each in ledger.load().leases] == [1]
    assert not list(folder.glob("ledger.db.new*"))


async def test_a_start_that_can_not_finish_says_so_and_loses_nothing(crashed):
    folder, truth = crashed
    shutil.rmtree(folder.parent / "live")
    (folder / "ledger.db").unlink()
    (folder / "ledger.db").mkdir()  # nothing can be renamed over a folder that is not empty
    (folder / "ledger.db" / "x").touch()
    (folder / "ledger.db.next").rename(folder / "keep")
    with pytest.raises(LedgerUnavailable):
        async with opened(folder):
            pass
    (folder / "keep").rename(folder / "ledger.db.next")
    shutil.rmtree(folder / "ledger.db")
    assert state_of(folder) == truth.canonical()


async def test_what_was_acknowledged_moves_to_a_new_file(tmp_path):
    """FACTS: after an I/O error the file is neither committed to nor checkpointed nor reopened."""
    memory = {}
    heard = []

    def snapshot():
        return BookState(tuple(memory.values()), (), 3)

    class Observer:
        def committed(self, *, seconds, requests): ...
        def refused(self, kind): ...
        def changed(self, state, reason):
            heard.append(state)

    def grant(ledger, each):
        future = ledger.submit(granted(each))
        future.add_done_callback(lambda _done: memory.setdefault(each.address, each))
        return future

    async with opened(tmp_path, snapshot=snapshot, observer=Observer()) as ledger:
        await ledger.put_object("Network", "blue", b"x")
        await grant(ledger, lease(1))
        copy_as_killed(tmp_path, tmp_path / "before")
        last = grant(ledger, lease(2))
        ledger._writer.fail(ledger._disk.database, disk_error())
        after = grant(ledger, lease(3))
        await last
        await after
        assert ledger.health().replaced == 1
        assert ledger.health().state is LedgerState.OPEN
        assert "SQLITE_IOERR_FSYNC" in ledger.health().last_error
        [aside] = tmp_path.glob("*.set-aside")
        assert (aside / "ledger.db").read_bytes() == (tmp_path / "before" / "ledger.db").read_bytes()
        assert (aside / "ledger.db-wal").stat().st_size > 0
        identity = ledger.ledger_id
    async with opened(tmp_path) as again:
        assert again.load().canonical() == BookState((lease(1), lease(2), lease(3)), (), 3).canonical()
        assert again.objects() == {("Network", "blue"): b"x"}
        assert again.ledger_id == identity


@pytest.mark.parametrize("how", ["removed", "replaced", "folder removed"])
async def test_a_file_that_is_not_in_its_place_any_more_holds_nothing(tmp_path, how):
    """I2: SQLite writes on in a file that was removed, and the next start would find nothing of it."""
    folder = tmp_path / "state"
    folder.mkdir()
    memory = BookState((lease(1),), (), 1)
    async with opened(folder, snapshot=lambda: memory, retry_pause=0.01) as ledger:
        await ledger.commit(granted(lease(1)))
        if how == "folder removed":
            shutil.rmtree(folder)
        else:
            (folder / "ledger.db").unlink()
        if how == "replaced":
            (folder / "ledger.db").write_bytes(b"")
        with pytest.raises(LedgerUnavailable, match=f"{folder} fails .*; see to the disk"):
            await ledger.commit(granted(lease(2)))
        folder.mkdir(exist_ok=True)
        await until(lambda: ledger.health().replaced == 1)
        memory = BookState((lease(1), lease(3)), (), 3)
        await ledger.commit(granted(lease(3)))
        assert ledger.health().replaced == 1
    async with opened(folder) as again:
        assert again.load().canonical() == memory.canonical()


async def test_a_file_that_failed_confirms_nothing_before_a_new_one_is_in_its_place(tmp_path):
    """I2: what was refused may be in its log, and a crash would bring it to light."""
    async with opened(tmp_path, retry_pause=0.01) as ledger:
        await ledger.confirm()
        ledger._writer.fail(ledger._disk.database, disk_error())
        assert not ledger._disk.is_sound
        await ledger.confirm()
        assert ledger.health().replaced == 1
        (tmp_path / "ledger.db.new").mkdir()  # no new file can be written now
        ledger._writer.fail(ledger._disk.database, disk_error())
        with pytest.raises(LedgerUnavailable):
            await ledger.confirm()
        assert ledger.fault()
        (tmp_path / "ledger.db.new").rmdir()
        await until(lambda: not ledger.fault())
        await ledger.confirm()


async def test_a_disk_that_fails_again_soon_is_given_a_pause(tmp_path):
    """A disk that fails again and again is not worn out with whole files; meanwhile all is refused at once."""
    async with opened(tmp_path, retry_pause=0.05) as ledger:
        await ledger.submit([])
        ledger._writer.fail(ledger._disk.database, disk_error())
        await until(lambda: ledger.health().replaced == 1)
        assert ledger.health().state is LedgerState.OPEN
        ledger._writer.fail(ledger._disk.database, disk_error())
        await until(lambda: ledger.health().state is LedgerState.FAILED)
        assert "fails" in ledger.fault()
        with pytest.raises(LedgerUnavailable, match="fails"):
            await ledger.commit(granted(lease(1)))
        await until(lambda: ledger.health().state is LedgerState.OPEN)
        assert ledger.fault() == ""
        await ledger.commit(granted(lease(1)))
        assert ledger.health().replaced == 2
    assert len(state_of(tmp_path).leases) == 1


async def test_a_snapshot_that_fails_is_asked_for_again(tmp_path):
    answers = [ValueError("not now"), BookState((lease(9),), (), 9)]

    def snapshot():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with opened(tmp_path, snapshot=snapshot, retry_pause=0.02) as ledger:
        ledger.submit([])
        ledger._writer.fail(ledger._disk.database, disk_error())
        await until(lambda: ledger.health().replaced == 1)
    assert state_of(tmp_path).leases == (lease(9),)


async def test_a_disk_that_fails_at_the_end_leaves_a_whole_new_file(tmp_path):
    """I2: also what was acknowledged in the last moment."""
    state = BookState((lease(1),), (), 1)
    async with opened(tmp_path, snapshot=lambda: state, retry_pause=3600.0) as ledger:
        await ledger.commit(granted(lease(1)))
        for count in (1, 2):  # the second time it would wait for an hour
            ledger._writer.fail(ledger._disk.database, disk_error())
            await until(lambda count=count: ledger.health().replaced == 1 if count == 1 else ledger.fault())
    assert ledger.health().replaced == 2
    async with opened(tmp_path) as again:
        assert again.load() == state


async def test_a_fault_of_ours_in_the_writer_is_told_to_all_who_wait(tmp_path):
    """STYLE: nothing dies quietly; whoever watches is told, and nobody waits for ever."""
    async with opened(tmp_path) as ledger:
        watch = asyncio.ensure_future(ledger.watch())
        await ledger.commit(granted(lease(1)))
        ledger._writer._clock = None
        results = await asyncio.gather(*(ledger.submit(granted(lease(n))) for n in (2, 3)), return_exceptions=True)
        assert all(isinstance(result, LedgerUnavailable | InternalError) for result in results)
        with pytest.raises(InternalError):
            await watch
        with pytest.raises(InternalError, match="restart the agent"):
            await ledger.commit([])
        assert ledger.fault() != ""
        ledger._writer._clock = SystemClock(BOOT)
    assert len(state_of(tmp_path).leases) == 1


GIVE_UP = """
import asyncio, sqlite3, sys
from pathlib import Path
from allotment.ledger import Ledger, LedgerState
from unit.ledger.examples import BOOT, BookState, copy_as_killed, granted, lease, until
folder = Path(sys.argv[1])

async def main():
    ledger = Ledger.open(folder, boot=BOOT, snapshot=BookState, ballast_bytes=0)
    await ledger.commit(granted(lease(1)))
    copy_as_killed(folder, folder.with_name("before"))
    (folder / "ledger.db.new").mkdir()
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    ledger._writer.fail(ledger._disk.database, error)
    await until(lambda: ledger.health().state is LedgerState.FAILED)
    if sys.argv[2] == "closes":
        await ledger.close()
    return ledger

ledger = asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["closes", "does not close"])
def test_a_process_that_ends_with_a_failed_file_does_not_checkpoint_it(tmp_path, end):
    """FACTS: it is the checkpoint at close that makes a malformed file of one that lost a page."""
    folder = tmp_path / "live"
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-c", GIVE_UP, folder, end],
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    for name in ("ledger.db", "ledger.db-wal"):
        assert (folder / name).read_bytes() == (tmp_path / "before" / name).read_bytes()
