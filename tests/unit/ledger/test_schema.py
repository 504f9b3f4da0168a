"""The tables, and how older and newer files are met."""

import sqlite3

import pytest

from allotment.addressing.book import BookState
from allotment.addressing.errors import LedgerDamaged, LedgerTooNew
from allotment.addressing.lease import Owner
from allotment.ledger import Ledger
from allotment.ledger.rows import LEASE_COLUMNS, Decoder
from allotment.ledger.schema import APPLICATION_ID, STEPS, VERSION, migrate
from unit.ledger.examples import granted, lease, opened, state_of


def memory():
    return sqlite3.connect(":memory:", isolation_level=None)


def test_a_new_file_is_marked_as_ours_and_all_tables_are_strict():
    connection = memory()
    assert migrate(connection) == 0
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    strict = {row[1]: row[5] for row in connection.execute("PRAGMA table_list") if row[2] == "table"}
    names = {"meta", "lease", "rest", "history", "object"}
    assert {name: strict[name] for name in names} == dict.fromkeys(names, 1)


def test_the_primary_key_refuses_a_second_owner():
    """I1: the disk itself refuses it."""
    connection = memory()
    migrate(connection)
    row = ["blue", "10.0.0.1", "10.0.0.0/24", "c", "eth0", "", "", "", "", "pod", 1, "b", 1.0, 1.0, "", ""]
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO lease VALUES ({marks})", row)
    row[3] = "another"
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(f"INSERT INTO lease VALUES ({marks})", row)


def test_an_older_file_is_brought_forward_with_what_it_holds():
    connection = memory()
    migrate(connection)
    connection.execute("INSERT INTO meta VALUES ('sequence', 7)")
    newer = (*STEPS, ("CREATE TABLE more (a TEXT NOT NULL) STRICT", "INSERT INTO more VALUES ('x')"))
    assert migrate(connection, steps=newer) == VERSION
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION + 1,)
    assert connection.execute("SELECT a FROM more").fetchall() == [("x",)]
    assert connection.execute("SELECT value FROM meta").fetchall() == [(7,)]
    assert migrate(connection, steps=newer) == VERSION + 1


def test_leases_of_before_virtual_machines_belong_to_none():
    connection = memory()
    migrate(connection, steps=STEPS[:1])
    row = ["blue", "10.4.1.1", "10.4.1.0/24", "c", "eth0", "", "", "", "", "pod", 1, "b", 1.0, 1.0, ""]
    connection.execute(f"INSERT INTO lease VALUES ({', '.join('?' * len(row))})", row)
    assert migrate(connection) == 1
    (found,) = connection.execute(f"SELECT {LEASE_COLUMNS} FROM lease").fetchall()
    assert Decoder().lease(found).owner == Owner("blue", "c", "eth0")


def test_a_step_that_fails_leaves_the_file_as_it_was():
    connection = memory()
    migrate(connection)
    newer = (*STEPS, ("CREATE TABLE more (a TEXT) STRICT", "INSERT INTO nowhere VALUES (1)"))
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, steps=newer)
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'more'").fetchone() == (0,)


async def test_a_newer_file_is_refused_and_left_alone(tmp_path):
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(1)))
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    before = (tmp_path / "ledger.db").read_bytes()
    with pytest.raises(LedgerTooNew, match=f"schema {VERSION + 1}"):
        Ledger.open(tmp_path, boot="b", snapshot=BookState)
    assert (tmp_path / "ledger.db").read_bytes() == before
    with pytest.raises(LedgerTooNew):
        state_of(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 500], ids=["empty", "text"])
def test_another_file_under_our_name_is_damage(tmp_path, content):
    (tmp_path / "ledger.db").write_bytes(content)
    with pytest.raises(LedgerDamaged):
        Ledger.open(tmp_path, boot="b", snapshot=BookState)


def test_somebody_elses_database_is_damage(tmp_path):
    connection = sqlite3.connect(tmp_path / "ledger.db")
    connection.execute("CREATE TABLE lease (a)")
    connection.close()
    with pytest.raises(LedgerDamaged, match="not a ledger"):
        Ledger.open(tmp_path, boot="b", snapshot=BookState)
