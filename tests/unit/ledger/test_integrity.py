"""I2, I15: a ledger opens with all that was acknowledged, or says that it is damaged. Never with a part of it."""

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from allotment.addressing.book import BookState
from allotment.addressing.errors import LedgerDamaged, LedgerUnavailable
from allotment.ledger import Ledger, LedgerReader, set_aside
from allotment.ledger.connection import PAGE
from allotment.testing.clock import ManualClock
from unit.ledger.examples import V6, copy_as_killed, granted, lease, opened, released, state_of

CUTTER = Path(__file__).with_name("cutter.py")
FRAME = PAGE + 24
HEADER = 32


async def killed_ledger(home):
    """A ledger with content in the file and in the log, as its killed agent left it."""
    async with opened(home / "live", history_rows=10) as ledger:
        for number in range(1, 25):
            await ledger.commit(granted(lease(number), lease(100 + number, block=V6)))
        await ledger.put_object("Network", "blue", b"x" * 5000)
        await ledger.commit(released(lease(1), lease(2)))
    async with opened(home / "live") as ledger:
        await ledger.commit(granted(lease(200)))
        await ledger.commit(released(lease(3)))
        copy_as_killed(home / "live", home / "killed")
    return home / "killed"


@pytest.fixture
async def killed():
    home = Path(tempfile.mkdtemp(prefix="allotment-test-", dir="/dev/shm"))
    (home / "live").mkdir()
    try:
        yield await killed_ledger(home)
    finally:
        shutil.rmtree(home)


def places(size, *, start, unit):
    """All edges of the file's units with their neighbours, and a sample of what is between."""
    edges = {start + number * unit + off for number in range(size // unit + 1) for off in (-1, 0, 1, 16)}
    return sorted({place for place in {*edges, *range(0, size, 997)} if 0 <= place < size})


@pytest.mark.parametrize("step", ["edges", pytest.param("every byte", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["ledger.db", "ledger.db-wal", "ledger.mark"])
async def test_cut_off_anywhere(killed, name, step):
    size = (killed / name).stat().st_size
    if step == "edges":
        cuts = places(size, start=HEADER if name.endswith("wal") else 0, unit=FRAME if name.endswith("wal") else PAGE)
    else:
        cuts = range(size)
    done = subprocess.run(
        [sys.executable, CUTTER, killed, name],
        input="\n".join(map(str, cuts)),
        capture_output=True,
        text=True,
        check=True,
    )
    verdicts = dict(line.split() for line in done.stdout.splitlines())
    assert len(verdicts) == len(cuts)
    assert set(verdicts.values()) <= {"whole", "damaged"}, {cut: v for cut, v in verdicts.items() if v == "partial"}
    expected = "whole" if name == "ledger.mark" else "damaged"
    assert expected in verdicts.values()


async def test_a_page_of_zeros(killed):
    size = (killed / "ledger.db").stat().st_size
    for page in range(size // PAGE):
        folder = killed.with_name("zeroed")
        shutil.copytree(killed, folder)
        with (folder / "ledger.db").open("r+b") as file:
            file.seek(page * PAGE)
            file.write(bytes(PAGE))
        try:
            ledger = Ledger.open(folder, boot="b", snapshot=BookState, ballast_bytes=0)
        except LedgerDamaged:
            pass
        else:
            assert ledger.load().canonical() == state_of(killed), f"page {page}"
            await ledger.close()
        shutil.rmtree(folder)


async def test_a_log_that_was_removed(killed):
    (killed / "ledger.db-wal").unlink()
    with pytest.raises(LedgerDamaged, match="has lost what it held"):
        Ledger.open(killed, boot="b", snapshot=BookState)


async def test_an_older_copy_put_back(tmp_path):
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(1)))
    shutil.copy(tmp_path / "ledger.db", tmp_path / "backup")
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(2)))
    shutil.copy(tmp_path / "backup", tmp_path / "ledger.db")
    with pytest.raises(LedgerDamaged, match="older copy"):
        Ledger.open(tmp_path, boot="b", snapshot=BookState)


async def test_another_nodes_ledger_put_here(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        async with opened(tmp_path / name):
            pass
    shutil.copy(tmp_path / "one" / "ledger.db", tmp_path / "other" / "ledger.db")
    with pytest.raises(LedgerDamaged, match="is another"):
        Ledger.open(tmp_path / "other", boot="b", snapshot=BookState)


@pytest.mark.parametrize("left", [["ledger.mark"], ["ledger.db-wal"], ["ledger.db-wal", "ledger.mark"]])
async def test_a_database_that_is_gone_is_not_taken_for_a_new_start(killed, left):
    """I15: an empty answer from a source that should not be empty is doubted."""
    for path in killed.iterdir():
        if path.name not in left:
            path.unlink()
    with pytest.raises(LedgerDamaged, match="is gone"):
        Ledger.open(killed, boot="b", snapshot=BookState)


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("UPDATE lease SET address = 'fd00:4:0::65' WHERE address = 'fd00:4::65'", "fd00:4:0::65"),
        ("UPDATE lease SET block = '10.4.1.0/31/1' WHERE address = '10.4.1.9'", "10.4.1.9"),
        (
            "UPDATE meta SET value = 1 WHERE name = 'sequence'; UPDATE history SET id = 67 WHERE id = 3",
            "above the counter",
        ),
        ("DELETE FROM meta WHERE name = 'sequence'", "counters are missing"),
        ("UPDATE rest SET first = '10.4.1.1' WHERE first = '010.004.001.001'", "10.4.1.1"),
        (
            "INSERT INTO rest SELECT 'blue', '010.004.001.009', '010.004.001.009', '10.4.1.0/24', 'b', 1.0, 1.0",
            "rests at once",
        ),
        ("DROP TABLE rest", "no such table"),
    ],
)
async def test_rows_that_contradict_each_other(killed, statement, complaint):
    connection = sqlite3.connect(killed / "ledger.db")
    connection.executescript(statement)
    connection.commit()
    connection.close()
    with pytest.raises(LedgerDamaged, match=complaint):
        Ledger.open(killed, boot="b", snapshot=BookState)
    with LedgerReader(killed) as reader:
        assert complaint in " ".join(reader.problems())


async def test_set_aside_keeps_everything_and_makes_room(killed):
    content = {path.name: path.read_bytes() for path in killed.iterdir()}
    aside = set_aside(killed, "for a test", clock=ManualClock(wall=1_700_000_000.0))
    assert aside == killed / "ledger-20231114T221320Z.set-aside"
    assert (aside / "reason.txt").read_text() == "for a test\n"
    for name in ("ledger.db", "ledger.db-wal", "ledger.mark"):
        assert (aside / name).read_bytes() == content[name]
    async with opened(killed) as ledger:
        assert ledger.load() == BookState()
        await ledger.commit(granted(lease(1)))
    second = set_aside(killed, "again", clock=ManualClock(wall=1_700_000_000.0))
    assert second.name == "ledger-20231114T221320Z-2.set-aside"


async def test_set_aside_cut_short_is_noticed(killed):
    """A crash while files are moved leaves remains that the next start does not take for a ledger."""
    (killed / "ledger.db").rename(killed / "moved")
    with pytest.raises(LedgerDamaged):
        Ledger.open(killed, boot="b", snapshot=BookState)
    set_aside(killed, "the rest of it")
    async with opened(killed) as ledger:
        assert ledger.load() == BookState()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(LedgerUnavailable, match="nowhere"):
        Ledger.open(tmp_path / "nowhere", boot="b", snapshot=BookState)
