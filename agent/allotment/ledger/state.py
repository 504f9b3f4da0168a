"""The whole content of a ledger: read at start, written when a new file is made."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from allotment.addressing.book import BookState
from allotment.ledger.changes import SEQUENCE_EVERY, Counters
from allotment.ledger.connection import connect
from allotment.ledger.rows import LEASE_COLUMNS, REST_COLUMNS, Decoder, RowError, row_of_lease, row_of_rest
from allotment.ledger.schema import migrate

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping
    from pathlib import Path

    from allotment.addressing.address import Address
    from allotment.addressing.lease import Lease, Rest

__all__ = ["Content", "new_ledger_id", "read_content", "write_file"]

# ruff: noqa: S608  # statements are put together from constants alone
_RECENT: Final = 1000


@dataclass(frozen=True, slots=True)
class Content:
    """All that a ledger holds, except its history.

    `history_rows` is the number of the last history row, which a new file goes on from.
    """

    ledger_id: str
    boot: str
    book: BookState
    objects: Mapping[tuple[str, str], bytes] = field(default_factory=dict)
    released: int = 0


def new_ledger_id() -> str:
    """An ID for a ledger that begins now."""
    return str(uuid.uuid4())


def read_content(connection: sqlite3.Connection) -> tuple[Content, Counters]:
    """Read everything, checking each row and what the rows say together.

    Raises:
        RowError: they can't be what was written.
        sqlite3.Error: the file can't be read.
    """
    meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    decoder = Decoder()
    leases = tuple(decoder.lease(row) for row in connection.execute(f"SELECT {LEASE_COLUMNS} FROM lease"))
    rests = tuple(decoder.rest(row) for row in connection.execute(f"SELECT {REST_COLUMNS} FROM rest"))
    objects = {(kind, name): body for kind, name, body in connection.execute("SELECT kind, name, body FROM object")}
    counters = _counters(connection, meta, leases)
    _refuse_twice(leases)
    _refuse_leased_rests(leases, rests)
    book = BookState(leases=leases, rests=rests, sequence=counters.granted)
    return Content(str(meta["ledger_id"]), str(meta["boot"]), book, objects, counters.released), counters


def write_file(path: Path, content: Content) -> None:
    """Write a new, whole ledger to `path`, where there must be none, and have it on disk.

    Raises:
        sqlite3.Error, OSError: the disk refused; what is at `path` is worth nothing.
    """
    path.touch(mode=0o600, exist_ok=False)  # SQLite gives its other files the same permissions
    connection = connect(path)
    try:
        # No journal is needed for a file that is thrown away unless it becomes whole; it is synced once, below.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        migrate(connection)
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO meta (name, value) VALUES (?, ?)",
            [
                ("ledger_id", content.ledger_id),
                ("boot", content.boot),
                ("sequence", content.book.sequence),
                ("released", content.released),
            ],
        )
        _fill(connection, content)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fill(connection: sqlite3.Connection, content: Content) -> None:
    connection.executemany(
        f"INSERT INTO lease ({LEASE_COLUMNS}) VALUES ({_marks(LEASE_COLUMNS)})",
        (row_of_lease(lease) for lease in content.book.leases),
    )
    connection.executemany(
        f"INSERT INTO rest ({REST_COLUMNS}) VALUES ({_marks(REST_COLUMNS)})",
        (row_of_rest(rest) for rest in content.book.rests),
    )
    connection.executemany(
        "INSERT INTO object (kind, name, body) VALUES (?, ?, ?)",
        ((kind, name, body) for (kind, name), body in content.objects.items()),
    )


def _marks(columns: str) -> str:
    return ", ".join("?" * len(columns.split(",")))


def _counters(connection: sqlite3.Connection, meta: dict[str, object], leases: tuple[Lease, ...]) -> Counters:
    stored = meta.get("sequence")
    floor = meta.get("released")
    if not isinstance(stored, int) or not isinstance(floor, int):
        raise RowError("the ledger's counters are missing")
    for name in ("ledger_id", "boot"):
        if not isinstance(meta.get(name), str):
            raise RowError(f"the ledger's {name} is missing")
    oldest, newest = connection.execute("SELECT min(id), max(id) FROM history").fetchone()
    newest = newest or 0
    granted = max((lease.sequence for lease in leases), default=0)
    # `meta` knows of the numbers of released leases but for the latest, whose history rows tell them.
    latest = newest - SEQUENCE_EVERY
    highest = "SELECT coalesce(max(sequence), 0) FROM history WHERE id > ? AND id <= ?"
    (past,) = connection.execute(highest, (latest - _RECENT, latest)).fetchone()
    if past > stored:
        raise RowError(f"history tells of lease {past}, which is above the counter {stored}")
    (recent,) = connection.execute(highest, (latest, newest)).fetchone()
    return Counters(
        granted=max(stored, granted, recent),
        stored=stored,
        released=max(newest, floor),
        oldest=oldest or max(newest, floor) + 1,
    )


def _refuse_twice(leases: tuple[Lease, ...]) -> None:
    """Find an address with two rows (the primary key forbids it; a torn page does not ask the primary key)."""
    seen: set[tuple[str, Address]] = set()
    for lease in leases:
        place = (lease.owner.network, lease.address)
        if place in seen:
            raise RowError(f"address {lease.address} of network {lease.owner.network} is leased twice")
        seen.add(place)


def _refuse_leased_rests(leases: tuple[Lease, ...], rests: tuple[Rest, ...]) -> None:
    """Find a leased address that is said to rest too: no order of whole transactions leaves that."""
    resting = {(rest.network, rest.first) for rest in rests if rest.first == rest.last}
    for lease in leases:
        if (lease.owner.network, lease.address) in resting:
            raise RowError(f"address {lease.address} of network {lease.owner.network} is leased and rests at once")
