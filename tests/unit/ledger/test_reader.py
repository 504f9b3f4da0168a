"""The ledger read from outside, with the agent running and with it down; nothing on the disk changes by that."""

import hashlib
import os
import sqlite3
import subprocess
import sys

import pytest

from allotment.addressing.book import BookState
from allotment.addressing.errors import LedgerDamaged, LedgerUnavailable
from allotment.ledger import LedgerReader, RowsQuery
from unit.ledger.examples import BOOT, copy_as_killed, granted, lease, opened, released, rest_of

LOOK = """
import sys
from pathlib import Path
from allotment.ledger import LedgerReader, RowsQuery
with LedgerReader(Path(sys.argv[1])) as reader:
    content = reader.content()
    print(content.ledger_id, len(content.book.leases), len(reader.history(RowsQuery())), reader.problems())
"""


def look(folder):
    """As the CLI does, from a process of its own."""
    done = subprocess.run([sys.executable, "-c", LOOK, folder], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def trace(folder):
    """All names with content and times."""
    return {
        path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in folder.iterdir()
    }


async def test_with_the_agent_running(tmp_path):
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(1), lease(2)))
        await ledger.commit(released(lease(1)))
        names = sorted(tmp_path.iterdir())
        assert look(tmp_path) == f"{ledger.ledger_id} 1 1 []"
        assert sorted(tmp_path.iterdir()) == names
        await ledger.commit(granted(lease(3)))
        assert look(tmp_path) == f"{ledger.ledger_id} 2 1 []"


async def test_a_reader_sees_one_moment(tmp_path):
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(1)))
        with LedgerReader(tmp_path) as reader:
            await ledger.commit(granted(lease(2)))
            assert len(reader.content().book.leases) == 1


@pytest.mark.parametrize("end", ["closed", "killed", "killed, with shm"])
async def test_with_the_agent_down(tmp_path, end):
    (tmp_path / "live").mkdir()
    folder = tmp_path / "live"
    async with opened(folder) as ledger:
        await ledger.commit(granted(lease(1), lease(2)))
        await ledger.commit(released(lease(1)))
        await ledger.put_object("Network", "blue", b"x")
        if end != "closed":
            copy_as_killed(folder, tmp_path / "killed")
        if end == "killed, with shm":
            subprocess.run(["cp", folder / "ledger.db-shm", tmp_path / "killed"], check=True)
    if end != "closed":
        folder = tmp_path / "killed"
    before = trace(folder)
    assert look(folder) == f"{ledger.ledger_id} 1 1 []"
    with LedgerReader(folder) as reader:
        content = reader.content()
        assert content.book == BookState((lease(2),), (rest_of(lease(1)),), 2)
        assert (content.boot, content.objects) == (BOOT, {("Network", "blue"): b"x"})
        assert [row.sequence for row in reader.history(RowsQuery(container_id="c-1"))] == [1]
        assert reader.problems() == []
    assert trace(folder) == before


def test_where_there_is_no_ledger(tmp_path):
    with pytest.raises(LedgerUnavailable, match="no ledger"):
        LedgerReader(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_what_is_wrong_is_told(tmp_path):
    async with opened(tmp_path) as ledger:
        for number in range(1, 60):
            await ledger.commit(granted(lease(number)))
    size = (tmp_path / "ledger.db").stat().st_size
    os.truncate(tmp_path / "ledger.db", size - 100)
    with LedgerReader(tmp_path) as reader:
        assert reader.problems() != []
    (tmp_path / "ledger.db").write_bytes(b"x" * 10_000)
    with pytest.raises(LedgerDamaged):
        LedgerReader(tmp_path)


async def test_people_can_read_it_with_sqlite_alone(tmp_path):
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(7)))
        await ledger.commit(released(lease(7)))
        await ledger.commit(granted(lease(9)))
    connection = sqlite3.connect(tmp_path / "ledger.db")
    assert connection.execute("SELECT pod_name FROM lease WHERE address = '10.4.1.9'").fetchall() == [("pod-9",)]
    assert connection.execute("SELECT first FROM rest").fetchall() == [("010.004.001.007",)]
    assert connection.execute("SELECT cause, detail FROM history").fetchall() == [("del", "request 7")]
    connection.close()


@pytest.mark.parametrize("moved", [False, True])
async def test_a_replacement_cut_short_is_read_without_a_problem(tmp_path, moved):
    """The new file is whole and the truth, whether or not the old one is still in its place."""
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(1)))
    (tmp_path / "ledger.db.next").write_bytes((tmp_path / "ledger.db").read_bytes())
    if moved:
        (tmp_path / "ledger.db").unlink()
    with LedgerReader(tmp_path) as reader:
        assert len(reader.content().book.leases) == 1
        assert reader.problems() == []
