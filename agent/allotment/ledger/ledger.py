"""The ledger as the rest of the agent sees it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from typing import TYPE_CHECKING

from allotment.addressing.book import BookState
from allotment.addressing.errors import InternalError, LedgerDamaged, LedgerUnavailable
from allotment.ledger.ballast import BALLAST_BYTES, Ballast, drop_ballast
from allotment.ledger.callers import Callers, Request
from allotment.ledger.changes import DeleteObject, PutObject
from allotment.ledger.connection import connect
from allotment.ledger.database import Database
from allotment.ledger.disk import RETRY_PAUSE, Disk
from allotment.ledger.failures import Trouble, describe, free_bytes, is_full, trouble_of
from allotment.ledger.files import LedgerFiles, finish_replacement
from allotment.ledger.health import LedgerHealth, LedgerObserver, LedgerState, SilentObserver
from allotment.ledger.history import HistoryRow, RowsQuery, read_history
from allotment.ledger.replacement import create
from allotment.ledger.rows import RowError
from allotment.ledger.state import Content, new_ledger_id
from allotment.ledger.writer import Writer
from allotment.observe.clock import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from allotment.addressing.errors import AllotmentError
    from allotment.addressing.lease import Change

__all__ = ["HISTORY_ROWS", "Ledger"]

HISTORY_ROWS = 100_000


class Ledger:
    """The lease ledger of one node. `open` makes one; all else is called on one event loop.

    The owner of the lease book writes each decision with `submit` and lets it take effect in the callback it gives,
    because the disk may have a change although nobody waits for it any more. `snapshot` must say
    exactly what took effect so: after a failure of the disk it is what the new file holds.
    """

    def __init__(
        self,
        files: LedgerFiles,
        database: Database,
        found: Content,
        *,
        boot: str,
        snapshot: Callable[[], BookState],
        clock: Clock,
        history_rows: int,
        ballast_bytes: int,
        retry_pause: float,
        observer: LedgerObserver,
    ) -> None:
        self.ledger_id = found.ledger_id
        """A UUID that was made with the ledger and stays with it."""
        self.earlier_boot = found.boot
        """The boot ID that the ledger was last opened under; another than `boot` means that the machine restarted."""
        self._boot = boot
        self._snapshot = snapshot
        self._files = files
        self._clock = clock
        self._found: BookState | None = found.book
        self._objects = dict(found.objects)
        callers = Callers(content=self._content, written=self._written, observer=observer)
        self._disk = Disk(
            database,
            files,
            Ballast(files.ballast, ballast_bytes),
            callers,
            history_limit=history_rows,
            retry_pause=retry_pause,
            clock=clock,
        )
        self._writer = Writer(self._disk, callers, clock=clock)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        boot: str,
        snapshot: Callable[[], BookState],
        clock: Clock | None = None,
        history_rows: int = HISTORY_ROWS,
        ballast_bytes: int = BALLAST_BYTES,
        retry_pause: float = RETRY_PAUSE,
        observer: LedgerObserver | None = None,
    ) -> Ledger:
        """Open the ledger in `folder`, which exists and is ours alone (`StateLock`), or make one.

        A replacement of the file that a crash cut short is finished first. `boot` is the kernel's boot ID.
        `history_rows` ended leases are kept. `retry_pause` is the seconds until a failing disk is first tried again.

        Raises:
            LedgerDamaged: it doesn't say what was written: `set_aside`, open again, rebuild.
            LedgerTooNew: a newer release wrote it.
            LedgerUnavailable: it can't be opened or made now; nothing speaks against it.
        """
        files = LedgerFiles(folder)
        try:
            finish_replacement(files, "the disk failed while this ledger was in use", clock=clock)
            files.clear_draft()
            if not files.database.exists():
                _create(files, boot)
        except (OSError, sqlite3.Error) as error:
            hint = "its disk is full; free some space there" if is_full(error) else "see to the disk it is on"
            raise LedgerUnavailable(f"no ledger can be made in {folder}: {describe(error)}; {hint}") from error
        database, found = _open(files, boot, history_rows)
        return cls(
            files,
            database,
            found,
            boot=boot,
            snapshot=snapshot,
            clock=clock or SystemClock(boot),
            history_rows=history_rows,
            ballast_bytes=ballast_bytes,
            retry_pause=retry_pause,
            observer=observer or SilentObserver(),
        )

    def load(self) -> BookState:
        """What the ledger held when it was opened; to be taken once, before the first change.

        Raises:
            InternalError: it was taken before.
        """
        found, self._found = self._found, None
        if found is None:
            raise InternalError("the ledger was loaded before")
        return found

    # -- writing --------------------------------------------------------------------------------------------------

    def submit(
        self, changes: Sequence[Change], then: Callable[[AllotmentError | None], None] | None = None
    ) -> asyncio.Future[None]:
        """Have all of `changes` written, or none; the future is done once the disk has them (fdatasync).

        Many requests share one transaction. What must follow in memory belongs into `then`: it is called once, on the
        loop and before the future is done, with None or with why nothing is written; and also when the future was
        cancelled, because the disk may have the changes all the same. It must not raise.

        The future fails, and `then` is called, with:
            LedgerUnavailable: nothing of it is written, and why.
            InternalError: these changes contradict what is on disk; nothing of it is written.
        """
        return self._writer.submit(changes, then)

    def gather_unless(self, alone: Callable[[], bool]) -> None:
        """Write what is submitted while `alone()` at once, if the disk is quick, and not with the rest of the round."""
        self._writer.alone = alone

    async def commit(self, changes: Sequence[Change]) -> None:
        """`submit`, and wait. The caller lets it take effect in memory before it awaits anything else.

        Raises:
            LedgerUnavailable, InternalError: as `submit` says.
        """
        await self._writer.submit(changes)

    async def put_object(self, kind: str, name: str, body: bytes) -> None:
        """Keep `body` under (kind, name).

        Raises:
            LedgerUnavailable: not now.
        """
        await self._writer.submit((PutObject(kind, name, body),))

    async def delete_object(self, kind: str, name: str) -> None:
        """Keep nothing under (kind, name); that there was nothing is no error.

        Raises:
            LedgerUnavailable: not now.
        """
        await self._writer.submit((DeleteObject(kind, name),))

    async def change_objects(self, put: Mapping[tuple[str, str], bytes], gone: Iterable[tuple[str, str]]) -> None:
        """`put_object` each of `put` and `delete_object` each of `gone`: all of it, or nothing.

        Raises:
            LedgerUnavailable: not now.
        """
        puts = (PutObject(*key, body) for key, body in put.items())
        await self._writer.submit((*puts, *(DeleteObject(*key) for key in gone)))

    def objects(self, kind: str | None = None) -> dict[tuple[str, str], bytes]:
        """The objects that are on disk, by (kind, name)."""
        return {key: body for key, body in self._objects.items() if kind is None or key[0] == kind}

    # -- looking --------------------------------------------------------------------------------------------------

    async def history(self, query: RowsQuery) -> list[HistoryRow]:
        """Ended leases that fit, newest end first.

        Raises:
            LedgerUnavailable: the file can't be read now.
        """
        if self._disk.state is LedgerState.FAILED:
            raise LedgerUnavailable(self._disk.reason)
        database = self._disk.database
        try:
            return await asyncio.to_thread(self._read_history, query)
        except (sqlite3.Error, RowError) as error:
            if trouble_of(error, self._files.folder) is Trouble.DISK:
                self._writer.fail(database, error)
            raise LedgerUnavailable(f"the history can't be read: {describe(error)}") from error

    def health(self) -> LedgerHealth:
        """How the ledger is now; from memory and three calls of stat."""
        disk = self._disk
        seconds, requests = self._writer.last_commit
        return LedgerHealth(
            state=disk.state,
            since=max(0.0, self._clock.seconds() - disk.changed_at),
            reason=disk.reason,
            database_bytes=_size(self._files.database),
            wal_bytes=_size(self._files.wal),
            free_bytes=free_bytes(self._files.folder),
            last_commit_seconds=seconds,
            last_commit_requests=requests,
            last_error=disk.last_error,
            replaced=disk.replaced,
        )

    def fault(self) -> str:
        """Why this node can give no address at all; empty while it can.

        A full disk is not among it: ADD answers that itself, and a node that says 50 loses its pods.
        """
        if self._writer.died is not None:
            return f"the ledger's writer has ended: {self._writer.died!r}"
        return self._disk.reason if self._disk.state is LedgerState.FAILED else ""

    async def confirm(self) -> None:
        """Return once the disk is known to hold what was acknowledged and nothing else; nearly always at once.

        In a file that the disk has failed under, what was refused may be there all the same, and come to light after
        a crash: a lease that was to be released then is gone. Until a new file is in its place nobody may be told of
        a lease, not even of one that memory has had for long.

        Raises:
            LedgerUnavailable: there is none yet.
        """
        if not self._disk.is_sound:
            await self._writer.submit((DeleteObject("", ""),))

    # -- the end --------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Wait until the ledger is closed.

        Raises:
            InternalError: the writer's thread ended by a fault of ours; the process must end too.
        """
        await self._writer.watch()

    async def close(self) -> None:
        """Write what was submitted, checkpoint, and close."""
        await self._writer.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _content(self) -> Content:
        return Content(self.ledger_id, self._boot, self._snapshot(), dict(self._objects), self._disk.database.released)

    def _written(self, request: Request) -> None:
        for write in request.writes:
            if isinstance(write, PutObject):
                self._objects[write.kind, write.name] = write.body
            elif isinstance(write, DeleteObject):
                self._objects.pop((write.kind, write.name), None)

    def _read_history(self, query: RowsQuery) -> list[HistoryRow]:
        with contextlib.closing(connect(self._files.database, read_only=True)) as connection:
            return read_history(connection, query)


def _create(files: LedgerFiles, boot: str) -> None:
    remains = files.remains()
    if remains:
        raise LedgerDamaged(
            f"the ledger {files.database} is gone, though {' and '.join(remains)} says that there was one"
        )
    content = Content(new_ledger_id(), boot, BookState(leases=(), rests=(), sequence=0))
    try:
        create(files, content)
    except (OSError, sqlite3.Error) as error:
        if not (is_full(error) and drop_ballast(files.ballast)):
            raise
        create(files, content)


def _open(files: LedgerFiles, boot: str, history_rows: int) -> tuple[Database, Content]:
    try:
        return Database.open(files, boot=boot, history_limit=history_rows)
    except LedgerUnavailable as error:
        # Even opening takes some room. The ballast is there so that a full disk lets go of what ended.
        if not (error.__cause__ is not None and is_full(error.__cause__) and drop_ballast(files.ballast)):
            raise
        return Database.open(files, boot=boot, history_limit=history_rows)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
