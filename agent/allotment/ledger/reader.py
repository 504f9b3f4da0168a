"""The ledger read by another process than the one that runs it; nothing is written, made or changed.

With the agent running, or ended without closing, `-wal` and `-shm` are there: the file is opened read-only with a
read-only `-shm`, which neither makes files nor takes part in recovery. Without `-shm` SQLite would make one (or
refuse), so then file and log are copied to a temporary folder and opened there; the copy is taken again when
something changed meanwhile.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Self

from allotment.addressing.errors import LedgerDamaged, LedgerTooNew, LedgerUnavailable
from allotment.ledger.connection import connect
from allotment.ledger.failures import describe
from allotment.ledger.files import LedgerFiles
from allotment.ledger.history import HistoryRow, RowsQuery, read_history
from allotment.ledger.integrity import check_length, check_mark, problems
from allotment.ledger.rows import RowError
from allotment.ledger.schema import VERSION, version_of
from allotment.ledger.state import Content, read_content

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["LedgerReader"]

_TRIES = 20


class LedgerReader:
    """Reads the ledger in `folder`; a context manager. All it says is from one moment, that of opening it."""

    def __init__(self, folder: Path) -> None:
        """Open it.

        Raises:
            LedgerUnavailable: there is none, or it can't be read now.
            LedgerDamaged: it can't be opened as what it should be.
            LedgerTooNew: a newer release wrote it.
        """
        self._files = LedgerFiles(folder)
        self._cleanup = contextlib.ExitStack()
        self._is_copy = False
        # A whole file that is about to take the other's place is the truth already (`allotment.ledger.files`).
        database = self._database = self._files.next if self._files.next.exists() else self._files.database
        if not database.exists():
            raise LedgerUnavailable(f"there is no ledger in {folder}; is that the agent's state folder?")
        try:
            self._connection = self._connect(database)
            self._connection.execute("BEGIN")
            version = version_of(self._connection)
        except BaseException as error:
            self._cleanup.close()
            if isinstance(error, OSError):
                raise LedgerUnavailable(f"the ledger in {folder} can't be read: {error}") from error
            if isinstance(error, sqlite3.Error):
                raise LedgerDamaged(f"the ledger in {folder} can't be read: {describe(error)}") from error
            raise
        if version != VERSION:
            self._cleanup.close()
            told = f"the ledger in {folder} has schema {version}, not {VERSION}"
            if version > VERSION:
                raise LedgerTooNew(f"{told}: a newer release wrote it")
            raise LedgerUnavailable(f"{told}: start the agent once, to bring it forward")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def content(self) -> Content:
        """Everything but the history: leases, rests, sequence, objects, ledger ID, boot ID.

        Raises:
            LedgerDamaged: it can't be read.
        """
        try:
            return read_content(self._connection)[0]
        except (sqlite3.Error, RowError) as error:
            raise LedgerDamaged(f"the ledger is damaged: {describe(error)}") from error

    def history(self, query: RowsQuery) -> list[HistoryRow]:
        """Ended leases that fit, newest end first.

        Raises:
            LedgerDamaged: it can't be read.
        """
        try:
            return read_history(self._connection, query)
        except (sqlite3.Error, RowError) as error:
            raise LedgerDamaged(f"the ledger is damaged: {describe(error)}") from error

    def problems(self) -> list[str]:
        """All that is wrong with it, for people; empty when all is well."""
        found = problems(self._connection)
        if not found:
            try:
                check_mark(self._files, self.content())
                if self._is_copy:  # in place, file and log may change between two looks
                    check_length(self._connection, self._database, Path(f"{self._database}-wal"))
            except LedgerDamaged as error:
                found.append(error.message)
        return found

    def close(self) -> None:
        """Give everything back."""
        self._cleanup.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _connect(self, database: Path) -> sqlite3.Connection:
        if database == self._files.database and self._files.shm.exists() and self._files.wal.exists():
            with contextlib.suppress(sqlite3.OperationalError):  # they went away just now: the agent ended
                return self._connect_in_place(database)
        return self._connect_copy(database)

    def _connect_in_place(self, database: Path) -> sqlite3.Connection:
        address = f"file:{urllib.parse.quote(str(database))}?mode=ro&readonly_shm=1"
        connection = sqlite3.connect(address, uri=True, isolation_level=None)
        try:
            connection.execute("SELECT count(*) FROM meta").fetchone()
        except BaseException:
            connection.close()
            raise
        self._cleanup.callback(connection.close)
        return connection

    def _connect_copy(self, database: Path) -> sqlite3.Connection:
        copy = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="allotment-ledger-"))) / "ledger.db"
        sources = {database: copy}
        if database == self._files.database:
            sources[self._files.wal] = copy.with_name("ledger.db-wal")
        for _ in range(_TRIES):
            before = [_identity(source) for source in sources]
            for source, target in sources.items():
                target.unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(source, target)
            if before == [_identity(source) for source in sources]:
                connection = connect(copy)
                self._is_copy = True
                self._cleanup.callback(connection.close)
                return connection
        raise LedgerUnavailable(f"the ledger {database} changes while it is being read; try again")


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)
