"""The ballast: room kept back on the disk for releases.

On a full disk a release would fail like a grant, and then pods could not end. A file of 8 MiB beside the ledger is
given up when the disk fills, and made again when there is room for it and some more (so that it is not given up
again by the very next write).
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from allotment.ledger.failures import free_bytes

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BALLAST_BYTES", "Ballast", "drop_ballast"]

BALLAST_BYTES: Final = 8 << 20


class Ballast:
    """The file at `path`, `size` bytes long; size 0 means to do without."""

    def __init__(self, path: Path, size: int = BALLAST_BYTES) -> None:
        self._path = path
        self._size = size

    @property
    def needs(self) -> int:
        """Free bytes there must be before the ballast is made again."""
        return self._size + self._size // 2

    def make(self) -> bool:
        """Have the ballast on disk. False when there is no room for it.

        A file system that can't reserve room (or another error than want of room) is no reason to stop: then the
        ledger goes without, and this says True.
        """
        if self._size == 0 or self._is_whole():
            return True
        if free_bytes(self._path.parent) < self.needs:
            return False
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, self._size)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            self.drop()
            return error.errno not in (errno.ENOSPC, errno.EDQUOT)
        return True

    def drop(self) -> bool:
        """Give the room up. True when that made room."""
        return drop_ballast(self._path)

    def _is_whole(self) -> bool:
        try:
            found = self._path.stat()
        except OSError:
            return False
        return found.st_size >= self._size and found.st_blocks * 512 >= self._size


def drop_ballast(path: Path) -> bool:
    """Give up the room that the ballast at `path` takes. True when that made room."""
    try:
        path.unlink()
    except OSError:
        return False
    return True
