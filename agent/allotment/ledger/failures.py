"""What an error of SQLite or of the operating system means for the ledger: the one place that reads their codes.

- FULL: no room. SQLite has rolled back; the file is well, and works again once there is room (measured).
- DISK: the disk failed, or the file isn't what we wrote. It must not be touched again: after a failed fsync the
  kernel's cache looks well while the disk is not, and a later checkpoint makes a malformed file of it (measured).
- BUSY: somebody else holds a lock, or memory is short. Nothing was written, nothing is wrong with the file.
- CALLER: the change can't be written as it is, and never will be.
"""

from __future__ import annotations

import enum
import errno
import os
import sqlite3
from pathlib import Path  # noqa: TC003  # part of a public signature

__all__ = ["Trouble", "describe", "free_bytes", "is_full", "trouble_of"]

_LOW = 1 << 20

_PRIMARY = {
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_IOERR: "disk",
    sqlite3.SQLITE_CORRUPT: "disk",
    sqlite3.SQLITE_NOTADB: "disk",
    sqlite3.SQLITE_READONLY: "disk",
    sqlite3.SQLITE_CANTOPEN: "disk",
    sqlite3.SQLITE_PERM: "disk",
    sqlite3.SQLITE_NOLFS: "disk",
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_NOMEM: "busy",
    sqlite3.SQLITE_INTERRUPT: "busy",
    sqlite3.SQLITE_PROTOCOL: "busy",
}
_EXTENDED = {
    sqlite3.SQLITE_IOERR_NOMEM: "busy",
}


class Trouble(enum.Enum):
    """The four kinds; see the module."""

    FULL = "full"
    DISK = "disk"
    BUSY = "busy"
    CALLER = "caller"


def trouble_of(error: BaseException, folder: Path) -> Trouble:
    """The kind of `error`, met while working on the ledger in `folder`."""
    if isinstance(error, OSError):
        return Trouble.FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Trouble.DISK
    code = getattr(error, "sqlite_errorcode", None)
    if not isinstance(error, sqlite3.Error) or code is None:
        return Trouble.CALLER
    if code == sqlite3.SQLITE_IOERR_SHMSIZE and free_bytes(folder) < _LOW:
        # The index of the WAL could not grow. It holds nothing of its own, so lack of room is all that this says.
        return Trouble.FULL
    return Trouble(_EXTENDED.get(code) or _PRIMARY.get(code & 0xFF, "caller"))


def is_full(error: BaseException) -> bool:
    """Whether this is for want of room, in any of the ways that is told."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", 0) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)


def describe(error: BaseException) -> str:
    """The error for a person, with SQLite's own name for it where there is one."""
    name = getattr(error, "sqlite_errorname", "")
    return f"{error} ({name})" if name else str(error) or type(error).__name__


def free_bytes(folder: Path) -> int:
    """Room on the disk of `folder` for this process, in bytes; 0 when the disk doesn't even answer that."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    # Root may use what is kept back for root; asking for less than that would call a disk full that is not.
    return (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize
