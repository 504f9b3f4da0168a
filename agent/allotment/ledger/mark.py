"""The mark: what the ledger had reached, kept beside it.

SQLite can't tell a write-ahead log that was cut off, removed, or put beside an older copy of the file from one in
which less was ever written: it opens with a part of the leases and says nothing. So after each commit the two
counters that only grow (the highest sequence number given, the number of releases) are written to `ledger.mark`.
A ledger that has not reached its mark has lost something, and that is damage (I2, I15).

The mark costs one small write into the page cache and no sync. It can therefore be behind after a power failure,
which only makes it say less; it can never be ahead, because it is written after the commit is on disk. A mark that
can't be read says nothing.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Mark", "MarkFile", "read_mark"]

_SIZE: Final = 128
_PADDING: Final = b" " * (_SIZE - 10) + b"\n"  # 9 bytes are the checksum's


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the ledger `ledger_id` had come."""

    ledger_id: str
    granted: int
    released: int


def read_mark(path: Path) -> Mark | None:
    """The mark, or None when there is none that can be read."""
    try:
        text = path.read_bytes()[:_SIZE].decode("ascii")
        ledger_id, granted, released, checksum = text.split()
        if int(checksum, 16) != zlib.crc32(_said(ledger_id, int(granted), int(released))):
            return None
        return Mark(ledger_id, int(granted), int(released))
    except (OSError, ValueError):
        return None


class MarkFile:
    """Writes the mark, always in place: one write within one page."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._last = b""

    def write(self, ledger_id: str, granted: int, released: int) -> None:
        """Say that the ledger has come this far. Never fails: what can't be written leaves the mark behind."""
        said = _said(ledger_id, granted, released)
        if said == self._last:
            return
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._file, b"%b %08x" % (said, zlib.crc32(said)) + _PADDING[len(said) :], 0)
        except OSError:
            return
        self._last = said

    def close(self) -> None:
        """Give the file back; a later write opens it again."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file = -1
        self._last = b""


def _said(ledger_id: str, granted: int, released: int) -> bytes:
    return f"{ledger_id} {granted} {released}".encode("ascii")
