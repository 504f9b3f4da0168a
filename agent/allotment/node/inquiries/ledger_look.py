"""The ledger from outside: what its files alone say, without opening one (which only SQLite may do)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.ledger.failures import free_bytes
from allotment.node.inquiries.reports import LedgerReport, time_of

if TYPE_CHECKING:
    import os
    from datetime import datetime
    from pathlib import Path

__all__ = ["closed_ledger", "last_write"]

_FILES = ("ledger.db", "ledger.db-wal")


def last_write(folder: Path) -> datetime | None:
    """When the ledger in `folder` was last written to; None when there is none."""
    found = [status.st_mtime for name in _FILES if (status := _status(folder / name)) is not None]
    return time_of(max(found)) if found else None


def closed_ledger(folder: Path, ledger_id: str, reason: str = "") -> LedgerReport:
    """A ledger that nobody runs; `reason` says why it couldn't even be read."""
    return LedgerReport(
        state="closed",
        ledger_id=ledger_id,
        folder=str(folder),
        size=sum(status.st_size for name in _FILES if (status := _status(folder / name)) is not None),
        free=free_bytes(folder),
        last_write=last_write(folder),
        reason=reason,
    )


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
