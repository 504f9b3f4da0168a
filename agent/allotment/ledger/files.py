"""The files of a ledger, how a whole new one is put in place, and how an old one is set aside.

    ledger.db, -wal, -shm    the ledger (SQLite)
    ledger.mark              how far it had come (`allotment.ledger.mark`)
    ledger.ballast           room kept back for releases (`allotment.ledger.ballast`)
    ledger.db.new            a file being written; of no worth until it is whole
    ledger.db.next           a whole file that takes the place of ledger.db
    ledger-….set-aside/      what was replaced or damaged; never deleted by us

A replacement takes these steps, each on disk before the next: write `.new`; rename it to `.next`; move `ledger.db`,
then its `-wal` and `-shm`, into a set-aside folder; rename `.next` to `ledger.db`. Whenever `.next` exists it is the
truth, so a start that finds one goes on from there (`finish_replacement`). A write-ahead log of another file can
therefore never lie beside a new `ledger.db`, where SQLite would play it into it.

In the process that runs the ledger nobody but SQLite may open `ledger.db` or `ledger.db-shm`: closing any descriptor
of a file drops all POSIX locks that the process holds on it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from pathlib import Path
from typing import Final

from allotment.ledger.ballast import drop_ballast
from allotment.observe.clock import Clock, SystemClock

__all__ = ["LedgerFiles", "finish_replacement", "set_aside", "sync_folder"]

_SQLITE: Final = ("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-journal")


class LedgerFiles:
    """Where things are, in the state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "ledger.db"
        self.wal = folder / "ledger.db-wal"
        self.shm = folder / "ledger.db-shm"
        self.mark = folder / "ledger.mark"
        self.ballast = folder / "ledger.ballast"
        self.draft = folder / "ledger.db.new"
        self.next = folder / "ledger.db.next"

    def clear_draft(self) -> None:
        """Remove a half-written new file, which nobody relies on.

        Raises:
            OSError: it can't be removed.
        """
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{self.draft}{suffix}").unlink(missing_ok=True)

    def remains(self) -> list[str]:
        """Names of files that a ledger left although `ledger.db` itself is not there."""
        return [path.name for path in (self.wal, self.mark) if path.exists()]


def finish_replacement(files: LedgerFiles, reason: str, *, clock: Clock | None = None) -> bool:
    """Put `ledger.db.next` in its place, if there is one, and say whether there was.

    Can be repeated after a failure or a crash at any point.

    Raises:
        OSError: the disk refused.
    """
    if not files.next.exists():
        return False
    if any((files.folder / name).exists() for name in _SQLITE):
        _move(files.folder, _SQLITE, reason, clock)
    files.next.rename(files.database)
    sync_folder(files.folder)
    return True


def set_aside(folder: Path, reason: str, *, clock: Clock | None = None) -> Path:
    """Move the ledger in `folder` into a folder of its own beside it, with `reason`, and return that folder.

    The next `Ledger.open` makes a new ledger. Nothing is deleted, except the ballast where the disk is full.

    Raises:
        OSError: the disk refused; repeat it.
    """
    files = LedgerFiles(folder)
    # The database goes first: what is left of a ledger without its database is seen as such by the next start.
    names = (*_SQLITE, files.next.name, files.mark.name)
    try:
        return _move(folder, names, reason, clock)
    except OSError:
        if not drop_ballast(files.ballast):
            raise
        return _move(folder, names, reason, clock)


def sync_folder(folder: Path) -> None:
    """Have the folder's entries on disk.

    Raises:
        OSError: the disk refused.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move(folder: Path, names: tuple[str, ...], reason: str, clock: Clock | None) -> Path:
    target = _new_folder(folder, clock)
    with contextlib.suppress(OSError):  # without the reason is better than not at all
        (target / "reason.txt").write_text(reason + "\n", encoding="utf-8")
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            (folder / name).rename(target / name)
    sync_folder(target)
    sync_folder(folder)
    return target


def _new_folder(folder: Path, clock: Clock | None) -> Path:
    wall = (clock or SystemClock("")).wall()
    stamp = dt.datetime.fromtimestamp(wall, dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    number = 1
    while True:
        suffix = "" if number == 1 else f"-{number}"
        target = folder / f"ledger-{stamp}{suffix}.set-aside"
        try:
            target.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return target
