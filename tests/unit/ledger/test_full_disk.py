"""A disk that is really full: releases go on, grants are refused with what to do, and service resumes by itself."""

import contextlib
import os
import subprocess

import pytest

from allotment.addressing.book import BookState
from allotment.addressing.errors import LedgerUnavailable
from allotment.ledger import Ledger, LedgerState, RowsQuery
from allotment.ledger.ballast import Ballast
from unit.ledger.examples import BOOT, granted, lease, opened, released, state_of, until

BALLAST = 512 << 10


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 2 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def fill(folder):
    """Take all the room there is."""
    with (folder / "filler").open("ab", buffering=0) as file:
        for size in (65536, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert os.statvfs(folder).f_bfree == 0


async def grant_until_refused(ledger, *, first):
    """The leases that still went into room the log had already; the error of the one that did not."""
    for number in range(first, first + 5000):
        try:
            await ledger.commit(granted(lease(number % 250, network=f"net-{number}", sequence=number)))
        except LedgerUnavailable as error:
            return number - 1, error
    pytest.fail("the disk is full, and grants go on")


def numbered(number):
    return lease(number % 250, network=f"net-{number}", sequence=number)


@pytest.mark.root
async def test_grants_stop_and_releases_go_on(small_disk):
    """I2, and DESIGN 5: ENOSPC stops neither DEL nor the pods' end."""
    async with opened(small_disk, ballast_bytes=BALLAST, retry_pause=60.0) as ledger:
        for number in range(1, 51):
            await ledger.commit(granted(numbered(number)))
        fill(small_disk)
        last, error = await grant_until_refused(ledger, first=51)
        for part in (str(small_disk), "is full", "KiB free", "resumes by itself"):
            assert part in error.message
        assert ledger.health().state is LedgerState.FULL
        assert ledger.fault() == "", "a full disk must not make the node NotReady"
        assert not (small_disk / "ledger.ballast").exists()
        for number in range(1, 51):
            await ledger.commit(released(numbered(number)))
        with pytest.raises(LedgerUnavailable, match="is full"):
            await ledger.commit(granted(numbered(9000)))
        with pytest.raises(LedgerUnavailable, match="is full"):
            await ledger.put_object("Network", "blue", b"x")
        assert len(await ledger.history(RowsQuery(limit=1000))) == 50
        (small_disk / "filler").unlink()
        await ledger.commit(granted(numbered(9001)))  # no waiting: the next request finds the room
        assert ledger.health().state is LedgerState.OPEN
        assert (small_disk / "ledger.ballast").stat().st_size == BALLAST
    held = {each.sequence for each in state_of(small_disk).leases}
    assert held == {*range(51, last + 1), 9001}


@pytest.mark.root
async def test_service_resumes_without_being_asked(small_disk):
    async with opened(small_disk, ballast_bytes=BALLAST, retry_pause=0.02) as ledger:
        fill(small_disk)
        await grant_until_refused(ledger, first=1)
        (small_disk / "filler").unlink()
        await until(lambda: ledger.health().state is LedgerState.OPEN)


@pytest.mark.root
async def test_an_agent_that_starts_on_a_full_disk_takes_releases(small_disk):
    async with opened(small_disk, ballast_bytes=BALLAST) as ledger:
        for number in range(1, 11):
            await ledger.commit(granted(numbered(number)))
    fill(small_disk)  # around the ballast: opening has to make do with what that gives
    async with opened(small_disk, ballast_bytes=BALLAST) as ledger:
        assert len(ledger.load().leases) == 10
        await grant_until_refused(ledger, first=11)
        await ledger.commit(released(numbered(1)))
    async with opened(small_disk, ballast_bytes=BALLAST) as ledger:
        assert ledger.health().state is LedgerState.FULL
        await ledger.commit(released(numbered(2)))
        with pytest.raises(LedgerUnavailable, match="is full"):
            await ledger.commit(granted(numbered(9000)))
        (small_disk / "filler").unlink()
        await ledger.commit(granted(numbered(9000)))
    assert {1, 2}.isdisjoint({each.sequence for each in state_of(small_disk).leases})


@pytest.mark.root
def test_a_ledger_that_can_not_be_made_says_that_the_disk_is_full(small_disk):
    fill(small_disk)
    with pytest.raises(LedgerUnavailable, match="disk is full"):
        Ledger.open(small_disk, boot=BOOT, snapshot=BookState)
    (small_disk / "filler").unlink()
    assert Ledger.open(small_disk, boot=BOOT, snapshot=BookState).load() == BookState()


def test_the_ballast_is_real_room(tmp_path):
    ballast = Ballast(tmp_path / "b", 1 << 20)
    assert ballast.make()
    assert (tmp_path / "b").stat().st_blocks * 512 >= 1 << 20
    os.truncate(tmp_path / "b", 0)
    os.truncate(tmp_path / "b", 1 << 20)  # a hole of that size is no ballast
    assert ballast.make()
    assert (tmp_path / "b").stat().st_blocks * 512 >= 1 << 20
    assert ballast.drop()
    assert not ballast.drop()
    assert not Ballast(tmp_path / "b", 1 << 60).make()
    assert list(tmp_path.iterdir()) == []
