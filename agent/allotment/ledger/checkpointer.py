"""The checkpointer's thread: keeps the write-ahead log short without ever making a commit wait.

Checkpoints run passively on a connection of their own (measured: SQLite's automatic ones, on the writer, triple the
99th percentile). They wait until the log holds about a mebibyte, or until some seconds have passed: each time the
log starts over, the next commit pays a second sync.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from allotment.ledger.failures import Trouble, trouble_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from allotment.ledger.database import Database

__all__ = ["Checkpointer"]

_BUSY_PAUSE: Final = 0.1
_IDLE_PAUSE: Final = 5.0
_MANY: Final = 100
_LONG_LOG: Final = 1000


class Checkpointer:
    """Checkpoints whichever database was written to last; `report` is told when the disk failed under it."""

    def __init__(self, report: Callable[[Database, Exception], None], folder: Path) -> None:
        self.is_behind = False
        """The log has grown long in spite of us (there was never a gap between commits): the writer has to help."""
        self._report = report
        self._folder = folder
        self._database: Database | None = None
        self._changes = 0
        self._written = threading.Event()
        self._many = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self, database: Database, changes: int) -> None:
        """So many changes were committed to `database`; called by the writer after each commit."""
        self._database = database
        self._changes += changes
        if not self._written.is_set():
            self._written.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ledger-checkpointer", daemon=True)
                self._thread.start()
        if self._changes >= _MANY and not self._many.is_set():
            self._many.set()

    def help(self, database: Database) -> None:
        """Checkpoint in the writer's own thread, between two commits, so that the log can start over.

        Raises:
            sqlite3.Error: the disk refused.
        """
        self.is_behind = False
        database.checkpoint()

    def stop(self) -> None:
        """End the thread; returns when it has ended."""
        self._stopping.set()
        self._many.set()
        self._written.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._written.wait()
            self._many.wait(_IDLE_PAUSE)
            self._stopping.wait(_BUSY_PAUSE)
            self._written.clear()
            self._many.clear()
            if self._stopping.is_set():  # after the two are cleared: `stop` sets them last, and would be unheard
                return
            self._changes = 0
            if self._database is not None:
                self._checkpoint(self._database)

    def _checkpoint(self, database: Database) -> None:
        try:
            self.is_behind = database.checkpoint() > _LONG_LOG
        except Exception as error:  # noqa: BLE001  # handed on to the thread that decides
            # Want of room, or a lock that somebody holds, leaves the log as it is: nothing is lost, and the writer
            # will meet the same by itself.
            if trouble_of(error, self._folder) is Trouble.DISK:
                self._report(database, error)
