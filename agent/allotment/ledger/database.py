"""One open ledger file: how it is opened and checked, its transactions, its checkpoints, and its end."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import AllotmentError, InternalError, LedgerDamaged, LedgerUnavailable
from allotment.ledger.changes import Counters, Write, apply, store_sequence
from allotment.ledger.connection import connect, keep_for_ever, roll_back
from allotment.ledger.failures import Trouble, describe, trouble_of
from allotment.ledger.integrity import check_file, check_length, check_mark
from allotment.ledger.mark import MarkFile
from allotment.ledger.rows import RowError
from allotment.ledger.schema import migrate
from allotment.ledger.state import Content, read_content

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from allotment.ledger.files import LedgerFiles

__all__ = ["Database"]

_TRIM_ROWS: Final = 200


class Database:
    """The file at `files.database`. `transact` belongs to the writer's thread, `checkpoint` to the checkpointer's.

    `history_limit` is the number of ended leases that are kept.
    """

    def __init__(self, files: LedgerFiles, ledger_id: str, counters: Counters, *, history_limit: int) -> None:
        """Open a file that is known to be well and to hold `counters`.

        Raises:
            sqlite3.Error: it can't be opened.
        """
        self.ledger_id = ledger_id
        self._files = files
        self._limit = max(1, history_limit)
        self._slack = min(_TRIM_ROWS, self._limit)
        self._counters = counters
        self._writer = connect(files.database)
        self._checkpointer = connect(files.database)
        self._checkpoints = threading.Lock()
        self.abandoned = False
        # The file is not looked at before the first statement; whoever opens it wants to know now.
        self._writer.execute("SELECT count(*) FROM meta").fetchone()
        self._file = _identity(files.database)
        self._mark = MarkFile(files.mark)
        self._mark_progress()

    @classmethod
    def open(cls, files: LedgerFiles, *, boot: str, history_limit: int) -> tuple[Database, Content]:
        """Open the file after checking that it says what was written; bring its schema forward; note the boot.

        Raises:
            LedgerDamaged: it doesn't say what was written.
            LedgerTooNew: a newer release wrote it.
            LedgerUnavailable: it can't be opened now; nothing speaks against the file.
        """
        connection: sqlite3.Connection | None = None
        try:
            connection = connect(files.database)
            check_file(connection)
            check_length(connection, files.database, files.wal)
            migrate(connection)
            content, counters = read_content(connection)
            check_mark(files, content)
            if content.boot != boot:
                connection.execute("UPDATE meta SET value = ? WHERE name = 'boot'", (boot,))
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            database = cls(files, content.ledger_id, counters, history_limit=history_limit)
        except Exception as error:
            if connection is not None:
                keep_for_ever(connection)
            raise _refusal(error, files) from error
        connection.close()
        return database, content

    # -- the writer's side ----------------------------------------------------------------------------------------

    @property
    def released(self) -> int:
        """The number of the last history row."""
        return self._counters.released

    def transact(self, batch: Sequence[Sequence[Write]]) -> list[Exception | None]:
        """Write each element of `batch` whole or not at all, all in one transaction; on disk when this returns.

        Returns for each why it could not be written, or None.

        Raises:
            sqlite3.Error: nothing of the batch was written; `trouble_of` tells why.
        """
        try:
            self._commit(batch)
        except Exception as error:
            if trouble_of(error, self._files.folder) is not Trouble.CALLER:
                with contextlib.suppress(sqlite3.Error):
                    roll_back(self._writer)
                raise
            roll_back(self._writer)
            if len(batch) == 1:
                return [error]
        else:
            return [None] * len(batch)
        return self._commit_apart(batch)

    def _commit(self, batch: Sequence[Sequence[Write]]) -> None:
        counters = self._counters.copy()
        writer = self._writer
        writer.execute("BEGIN IMMEDIATE")
        for writes in batch:
            for write in writes:
                apply(writer, write, counters)
        self._trim(counters)
        writer.execute("COMMIT")
        self._refuse_if_moved()
        self._counters = counters
        self._mark_progress()

    def _commit_apart(self, batch: Sequence[Sequence[Write]]) -> list[Exception | None]:
        """The same where one or more elements can't be written: those alone are left out."""
        results: list[Exception | None] = []
        counters = self._counters.copy()
        writer = self._writer
        try:
            writer.execute("BEGIN IMMEDIATE")
            for writes in batch:
                result, counters = self._attempt(writes, counters)
                results.append(result)
            self._trim(counters)
            writer.execute("COMMIT")
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                roll_back(writer)
            raise
        self._refuse_if_moved()
        self._counters = counters
        self._mark_progress()
        return results

    def _attempt(self, writes: Sequence[Write], before: Counters) -> tuple[Exception | None, Counters]:
        counters = before.copy()
        self._writer.execute("SAVEPOINT one")
        try:
            for write in writes:
                apply(self._writer, write, counters)
        except Exception as error:
            if trouble_of(error, self._files.folder) is not Trouble.CALLER:
                raise
            self._writer.execute("ROLLBACK TO one")
            self._writer.execute("RELEASE one")
            return error, before
        self._writer.execute("RELEASE one")
        return None, counters

    def _trim(self, counters: Counters) -> None:
        """Take the oldest history rows away, few enough that no commit is slow for it."""
        surplus = counters.released - counters.oldest + 1 - self._limit
        if surplus < self._slack:
            return
        store_sequence(self._writer, counters)  # the row with the highest number may be among them
        counters.oldest += min(surplus, _TRIM_ROWS)
        self._writer.execute("DELETE FROM history WHERE id < ?", (counters.oldest,))

    def _refuse_if_moved(self) -> None:
        """See that what was committed can be found: a file that was removed under us takes commits like any other.

        Raises:
            OSError: it is not where the next start looks for it.
        """
        if _identity(self._files.database) != self._file:
            raise OSError(errno.ESTALE, "the ledger's file was removed or replaced while it was in use")

    def _mark_progress(self) -> None:
        self._mark.write(self.ledger_id, self._counters.granted, self._counters.released)

    # -- the checkpointer's side ----------------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Copy what can be copied from the write-ahead log into the file, without making anybody wait.

        Returns the length of the log in pages. Does nothing on an abandoned file.

        Raises:
            sqlite3.Error: the disk refused.
        """
        with self._checkpoints:
            if self.abandoned:
                return 0
            _busy, pages, _done = self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return int(pages)

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Checkpoint and close a file that is well. Without room for the checkpoint the log stays beside it.

        Raises:
            sqlite3.Error: the disk failed; `abandon` it.
        """
        try:
            self.checkpoint()
        except sqlite3.Error as error:
            if trouble_of(error, self._files.folder) is Trouble.DISK:
                raise
        self._checkpointer.close()
        self._writer.close()
        self._mark.close()

    def abandon(self) -> None:
        """Never touch the file again: neither commit nor checkpoint nor close."""
        with self._checkpoints:
            self.abandoned = True
        keep_for_ever(self._writer)
        keep_for_ever(self._checkpointer)
        self._mark.close()

    def close_moved(self) -> None:
        """Close an abandoned file that lies elsewhere now: SQLite doesn't checkpoint a file that was moved."""
        with contextlib.suppress(sqlite3.Error):
            self._checkpointer.close()
        with contextlib.suppress(sqlite3.Error):
            self._writer.close()


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116  # once for every commit, and Path.stat takes twice as long
    return found.st_dev, found.st_ino


def _refusal(error: Exception, files: LedgerFiles) -> AllotmentError:
    """What the one who wanted to open the ledger is told."""
    if isinstance(error, AllotmentError):
        return error
    where = files.database
    if isinstance(error, RowError):
        return LedgerDamaged(f"the ledger {where} is damaged: {error}")
    if not isinstance(error, sqlite3.Error | OSError):
        return InternalError(f"the ledger {where} can't be opened: {error!r}")
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    away = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
    if isinstance(error, OSError) or primary in away or code in _WRITING:
        return LedgerUnavailable(f"the ledger {where} can't be opened: {describe(error)}; see to the disk it is on")
    match trouble_of(error, files.folder):
        case Trouble.FULL:
            return LedgerUnavailable(f"the ledger {where} can't be opened: its disk is full; free some space there")
        case Trouble.BUSY:
            return LedgerUnavailable(f"the ledger {where} can't be opened: {describe(error)}; another process holds it")
        case _:
            return LedgerDamaged(f"the ledger {where} is damaged: {describe(error)}")


_WRITING: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_DELETE,
        sqlite3.SQLITE_IOERR_LOCK,
        sqlite3.SQLITE_IOERR_RDLOCK,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMMAP,
        sqlite3.SQLITE_IOERR_SHMLOCK,
    }
)
"""I/O errors that speak against the disk, not against what is in the file."""
