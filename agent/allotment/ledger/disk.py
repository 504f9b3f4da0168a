"""The ledger's file and the disk under it: well, full or failing, and how it becomes well again.

OPEN ──no room──▶ FULL: the ballast is given up; what takes room is refused, releases are written. It ends when the
ballast could be made again, tried by every request and every few seconds.
OPEN, FULL ──I/O error──▶ the file is abandoned; a new one is written from what memory says was acknowledged and put
in its place. When that fails: FAILED, everything is refused, and it is tried again with a growing pause.

All but looking is done by whoever holds the writer's hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from allotment.ledger.failures import Trouble, describe, free_bytes, is_full, trouble_of
from allotment.ledger.health import LedgerState
from allotment.ledger.replacement import replace

if TYPE_CHECKING:
    from pathlib import Path

    from allotment.ledger.ballast import Ballast
    from allotment.ledger.callers import Callers
    from allotment.ledger.database import Database
    from allotment.ledger.files import LedgerFiles
    from allotment.ledger.state import Content
    from allotment.observe.clock import Clock

__all__ = ["RETRY_PAUSE", "Disk"]

RETRY_PAUSE: Final = 0.5
"""Seconds until a disk in trouble is tried again, the first time; doubled each time up to `_PAUSE_MOST`."""
_PAUSE_MOST: Final = 30.0
_CALM: Final = 600.0


class Disk:
    """Owns the open file and its state. `retry_pause` is in seconds; memory is asked through `callers`."""

    def __init__(
        self,
        database: Database,
        files: LedgerFiles,
        ballast: Ballast,
        callers: Callers,
        *,
        history_limit: int,
        retry_pause: float,
        clock: Clock,
    ) -> None:
        self.database = database
        self.state = LedgerState.OPEN
        self.reason = ""
        self.changed_at = clock.seconds()
        self.last_error = ""
        self.replaced = 0
        """How often a new file was put in the place of one that the disk failed under."""
        self._files = files
        self._ballast = ballast
        self._callers = callers
        self._history_limit = history_limit
        self._clock = clock
        self._pause = self._first_pause = retry_pause
        self._due = 0.0
        self._replaced_at = float("-inf")
        if not ballast.make():
            self._enter(LedgerState.FULL, self._full_reason())

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """The state folder."""
        return self._files.folder

    @property
    def database_file(self) -> Path:
        """Where the ledger's file is."""
        return self._files.database

    @property
    def is_sound(self) -> bool:
        """Whether the file holds what was acknowledged and nothing else, as far as is known."""
        return not self.database.abandoned

    @property
    def is_well(self) -> bool:
        """Whether everything can be written."""
        return self.state is LedgerState.OPEN and self.is_sound

    # -- when it is tried again -----------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether a disk in trouble is to be tried again now."""
        return self._clock.seconds() >= self._due

    @property
    def pause(self) -> float | None:
        """Seconds until then; None while there is no trouble."""
        return None if self.state is LedgerState.OPEN else max(0.0, self._due - self._clock.seconds())

    def make_due(self) -> None:
        """The pause is over, whatever the clock says of it."""
        self._due = self._clock.seconds()

    def _put_off(self, now: float) -> None:
        self._due = now + self._pause
        self._pause = min(self._pause * 2, _PAUSE_MOST)

    # -- trouble --------------------------------------------------------------------------------------------------

    def refused(self, error: Exception) -> Trouble:
        """Take note that the disk refused a write; what that means."""
        trouble = trouble_of(error, self._files.folder)
        self.last_error = describe(error)
        self._callers.refused(trouble.value)
        return trouble

    def filled(self) -> str:
        """It has run full: give up the ballast. Returns the reason, for callers."""
        self._ballast.drop()
        reason = self._full_reason()
        self._enter(LedgerState.FULL, reason)
        return reason

    def try_ballast(self) -> None:
        """See whether a full disk has room again."""
        now = self._clock.seconds()
        if self._ballast.make():
            self._enter(LedgerState.OPEN, "")
        elif now >= self._due:
            self._put_off(now)
        self.reason = self._full_reason() if self.state is LedgerState.FULL else self.reason

    def failed(self, error: Exception) -> None:
        """It has failed under the file: never touch that again, and replace it, now or later."""
        self.last_error = describe(error)
        self.database.abandon()
        now = self._clock.seconds()
        if now - self._replaced_at > _CALM:
            self._pause = self._first_pause
            self.replace()
        else:  # a disk that fails again and again is not worn out with whole files
            self._enter(LedgerState.FAILED, self.failed_reason(error))
            self._put_off(now)

    def replace(self) -> None:
        """Put a new file with what memory knows in the place of the one that failed; not on the event loop."""
        try:
            content = self._callers.ask_memory()
            database = self._new_database(content)
        except Exception as error:  # noqa: BLE001  # whatever it is, the answer is to try again later
            self.last_error = describe(error)
            self._enter(LedgerState.FAILED, self.failed_reason(error))
            self._put_off(self._clock.seconds())
            return
        self.database.close_moved()
        self.database = database
        self.replaced += 1
        self._replaced_at = self._clock.seconds()
        has_ballast = self._ballast.make()
        self._enter(LedgerState.OPEN if has_ballast else LedgerState.FULL, "" if has_ballast else self._full_reason())

    def leave(self) -> None:
        """Leave a file that holds all that was acknowledged, closed; when the disk fails now, a new one."""
        for _ in range(2):
            if self.database.abandoned:
                self.replace()
            if self.database.abandoned:
                break
            try:
                self.database.close()
            except Exception as error:  # noqa: BLE001  # whatever it is, the file is not to be closed
                self.last_error = describe(error)
                self.database.abandon()
            else:
                break

    # -- inside ---------------------------------------------------------------------------------------------------

    def _new_database(self, content: Content) -> Database:
        reason = f"the disk failed while this ledger was in use: {self.last_error}"
        try:
            return replace(self._files, content, reason, history_limit=self._history_limit, clock=self._clock)
        except Exception as error:
            if not (is_full(error) and self._ballast.drop()):
                raise
        return replace(self._files, content, reason, history_limit=self._history_limit, clock=self._clock)

    def _enter(self, state: LedgerState, reason: str) -> None:
        self.reason = reason
        if state is self.state:
            return
        if state is LedgerState.FULL:
            self._pause = self._first_pause
            self._put_off(self._clock.seconds())
        self.state = state
        self.changed_at = self._clock.seconds()
        self._callers.changed(state, reason)

    def _full_reason(self) -> str:
        free = free_bytes(self._files.folder)
        return (
            f"the disk of the state folder {self._files.folder} is full ({free // 1024} KiB free, "
            f"{self._ballast.needs // 1024} KiB needed): no address is given until there is room; free some space "
            "there, service then resumes by itself"
        )

    def failed_reason(self, error: Exception) -> str:
        """Why nothing can be written, for callers."""
        return (
            f"the disk of the state folder {self._files.folder} fails ({describe(error)}): nothing can be written "
            "down; see to the disk, service then resumes by itself"
        )
