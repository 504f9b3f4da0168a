"""The first steps of the agent: one agent per state folder, and a ledger that says what was written, or a new one.

A ledger that is damaged, or gone though others say that there was one, is set aside and never deleted. A note that the
new one's leases have to be made again from what runs is on disk before it is made, and stays until that is done
(`Started.settle`), so that a crash in between starts it over.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allotment.addressing.errors import LedgerDamaged, LedgerUnavailable
from allotment.addressing.lease import Moment
from allotment.ledger import Ledger, StateLock, set_aside, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.book import LeaseBook
    from allotment.ledger import LedgerObserver
    from allotment.node.settings import Settings
    from allotment.observe.clock import Clock

__all__ = ["Started", "start_ledger"]

_NOTE = "ledger.rebuild"
_NONE = "there was no ledger"


@dataclass(slots=True)
class Started:
    """The open ledger; `lost` says why its leases have to be made again from what runs, and is empty if not so."""

    ledger: Ledger
    lost: str
    _note: Path

    @property
    def had_ledger(self) -> bool:
        """Whether there is known to have been a ledger before the one that is to be filled (`lost` says what was)."""
        return bool(self.lost) and self.lost != _NONE

    def lose(self, reason: str) -> None:
        """There was another ledger before this one: `lost` says so from here on, also to the next start.

        Raises:
            LedgerUnavailable: that can't be written down now.
        """
        try:
            _write(self._note, reason)
        except OSError as error:
            raise LedgerUnavailable(f"{self._note} can't be written: {error.strerror}") from error
        self.lost = reason

    def settle(self) -> None:
        """The leases are found and on disk: the note goes.

        Raises:
            LedgerUnavailable: it can't be removed now.
        """
        try:
            self._note.unlink(missing_ok=True)
            sync_folder(self._note.parent)
        except OSError as error:
            raise LedgerUnavailable(f"{self._note} can't be removed: {error.strerror}") from error
        self.lost = ""


@contextlib.contextmanager
def start_ledger(
    settings: Settings, clock: Clock, book: LeaseBook, observer: LedgerObserver, log: FilteringBoundLogger
) -> Iterator[Started]:
    """Lock the state folder, open the ledger, and load the book with every lease there is (I15).

    Raises:
        StateFolderHeld: another agent runs on this folder; the message says which.
        LedgerTooNew, LedgerUnavailable: the ledger can't be opened; what to do is in the message.
    """
    folder = settings.state_dir
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerUnavailable(f"the state folder {folder} can't be made: {error.strerror}") from error
    lock = StateLock.take(folder, node=settings.node, clock=clock)
    try:
        ledger, lost = _open(settings, clock, book, observer, log)
        found = ledger.load()
        now = Moment(clock.boot, clock.seconds())
        book.load(found.leases, found.rests, sequence=found.sequence, now=now)
        yield Started(ledger, lost, folder / _NOTE)
    finally:
        lock.release()


def _open(
    settings: Settings, clock: Clock, book: LeaseBook, observer: LedgerObserver, log: FilteringBoundLogger
) -> tuple[Ledger, str]:
    """The ledger, and why its leases have to be made again (empty if they needn't)."""
    folder = settings.state_dir
    note = folder / _NOTE

    def open_it() -> Ledger:
        return Ledger.open(
            folder,
            boot=clock.boot,
            snapshot=book.snapshot,
            clock=clock,
            history_rows=settings.history_rows,
            ballast_bytes=settings.ballast_mib << 20,
            observer=observer,
        )

    try:
        # A crash in the middle of a replacement leaves the whole new file under its second name.
        there = any((folder / name).exists() for name in ("ledger.db", "ledger.db.next"))
        if not there and not note.exists():
            _write(note, _NONE)
        try:
            ledger = open_it()
        except LedgerDamaged as damage:
            _write(note, damage.message)
            aside = set_aside(folder, damage.message, clock=clock)
            log.warning("ledger set aside", reason=damage.message, folder=str(aside))
            ledger = open_it()
        return ledger, note.read_text(encoding="utf-8").strip() if note.exists() else ""
    except OSError as error:
        raise LedgerUnavailable(
            f"the state folder {folder} can't be used: {error.strerror}; see to the disk it is on"
        ) from error


def _write(note: Path, reason: str) -> None:
    with note.open("w", encoding="utf-8") as file:
        file.write(reason + "\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(note.parent)
