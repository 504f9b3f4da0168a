"""The tables of the ledger, and how an older file becomes a current one.

The file is marked as ours (`PRAGMA application_id`) and carries the number of its schema (`PRAGMA user_version`).
`STEPS` holds one entry for each number; a file is brought forward step by step, in one transaction. A file from a
newer release is refused, never guessed at.

Addresses are TEXT as people write them, so that `sqlite3 ledger.db` shows them plainly. The primary key of `lease`
is (network, address): the disk itself refuses two owners of one address (I1). In `rest` the two ends of a run are in
the wide form (`010.004.001.007`, `[fd00:0004:…:0007]`), in which the order of text is the order of addresses.

What changes in one ADD is one row of `lease` (and at most one of `rest`); the tables it touches are trees without
a second index, because each further page costs a write on the way of every ADD.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from allotment.addressing.errors import LedgerTooNew

__all__ = ["APPLICATION_ID", "STEPS", "VERSION", "migrate", "version_of"]

APPLICATION_ID: Final = 0x414C4C54  # "ALLT"

_FIRST: Final = (
    """
    CREATE TABLE meta (
        name  TEXT NOT NULL PRIMARY KEY,
        value ANY  NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE lease (
        network       TEXT    NOT NULL,
        address       TEXT    NOT NULL,
        block         TEXT    NOT NULL,
        container_id  TEXT    NOT NULL,
        interface     TEXT    NOT NULL,
        pod_namespace TEXT    NOT NULL,
        pod_name      TEXT    NOT NULL,
        pod_uid       TEXT    NOT NULL,
        conf_name     TEXT    NOT NULL,
        kind          TEXT    NOT NULL,
        sequence      INTEGER NOT NULL,
        boot          TEXT    NOT NULL,
        since         REAL    NOT NULL,
        wall          REAL    NOT NULL,
        netns         TEXT    NOT NULL,
        PRIMARY KEY (network, address)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE rest (
        network  TEXT NOT NULL,
        first    TEXT NOT NULL,
        last     TEXT NOT NULL,
        block    TEXT NOT NULL,
        boot     TEXT NOT NULL,
        released REAL NOT NULL,
        wall     REAL NOT NULL,
        PRIMARY KEY (network, first)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE history (
        id            INTEGER PRIMARY KEY,
        network       TEXT    NOT NULL,
        address       TEXT    NOT NULL,
        container_id  TEXT    NOT NULL,
        interface     TEXT    NOT NULL,
        pod_namespace TEXT    NOT NULL,
        pod_name      TEXT    NOT NULL,
        pod_uid       TEXT    NOT NULL,
        conf_name     TEXT    NOT NULL,
        kind          TEXT    NOT NULL,
        sequence      INTEGER NOT NULL,
        began         REAL    NOT NULL,
        ended         REAL    NOT NULL,
        cause         TEXT    NOT NULL,
        detail        TEXT    NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE object (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (kind, name)
    ) STRICT
    """,
)

_VMS: Final = (
    "ALTER TABLE lease ADD COLUMN vm TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE history ADD COLUMN vm TEXT NOT NULL DEFAULT ''",
)

STEPS: Final[tuple[tuple[str, ...], ...]] = (_FIRST, _VMS)
"""Step n, the statements that bring a file of schema n to n + 1. A released step is never edited: add another."""

VERSION: Final = len(STEPS)


def version_of(connection: sqlite3.Connection) -> int:
    """The number of the file's schema; 0 is a file without tables."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(connection: sqlite3.Connection, *, steps: tuple[tuple[str, ...], ...] = STEPS) -> int:
    """Bring the file to the current schema, all steps or none, and return the number it had before.

    Raises:
        LedgerTooNew: a newer release wrote it.
        sqlite3.Error: the disk refused; the file is as it was.
    """
    before = version_of(connection)
    if before > len(steps):
        raise LedgerTooNew(
            f"the ledger has schema {before}, this release knows schemas up to {len(steps)}: install the release that "
            "wrote it, or a newer one"
        )
    if before == len(steps):
        return before
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in steps[before:]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return before
