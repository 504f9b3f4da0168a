"""How the ledger is, as told to status, metrics and doctor."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

__all__ = ["LedgerHealth", "LedgerObserver", "LedgerState", "SilentObserver"]


class LedgerState(enum.StrEnum):
    """OPEN takes everything; FULL takes only releases; FAILED takes nothing until a new file could be written."""

    OPEN = "open"
    FULL = "full"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    """A look at the ledger. Sizes and room are in bytes; `since` is the seconds that `state` has lasted.

    `reason` is empty when all is well. `last_error` stays after the ledger recovered. `replaced` counts how often a
    new file had to be written after a failure of the disk.
    """

    state: LedgerState
    since: float
    reason: str
    database_bytes: int
    wal_bytes: int
    free_bytes: int
    last_commit_seconds: float
    last_commit_requests: int
    last_error: str
    replaced: int


class LedgerObserver(Protocol):
    """Is told what happens, on the event loop's thread; must return quickly."""

    def committed(self, *, seconds: float, requests: int) -> None:
        """One transaction is on disk, fdatasync included, for so many requests."""
        ...

    def refused(self, kind: str) -> None:
        """The disk refused: `kind` is `full`, `disk` or `busy`."""
        ...

    def changed(self, state: LedgerState, reason: str) -> None:
        """The ledger is in another state from now on."""
        ...


class SilentObserver:
    """Hears and says nothing."""

    def committed(self, *, seconds: float, requests: int) -> None:
        """Say nothing."""

    def refused(self, kind: str) -> None:
        """Say nothing."""

    def changed(self, state: LedgerState, reason: str) -> None:
        """Say nothing."""
