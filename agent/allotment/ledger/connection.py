"""How the ledger's file is opened; the only place that does."""

from __future__ import annotations

import ctypes
import sqlite3
import urllib.parse
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PAGE", "connect", "keep_for_ever", "roll_back"]

PAGE: Final = 4096
_BUSY_SECONDS: Final = 1.0
_WAL_LIMIT: Final = 16 << 20


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open the file, which exists, with the settings that the ledger's promises rest on.

    Each commit is synced (`synchronous=FULL`, I2). Checkpoints are ours to time (`wal_autocheckpoint=0`). Transactions
    are ours to begin (`isolation_level=None`). The connection may be used from any thread, by one at a time.

    Raises:
        sqlite3.Error: it can't be opened.
    """
    mode = "ro" if read_only else "rw"
    connection = sqlite3.connect(
        f"file:{urllib.parse.quote(str(path))}?mode={mode}",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    for setting in (
        f"page_size = {PAGE}",
        "synchronous = FULL",
        "wal_autocheckpoint = 0",
        f"journal_size_limit = {_WAL_LIMIT}",
        "temp_store = MEMORY",
        "cell_size_check = ON",
        "trusted_schema = OFF",
        # Zeroing what is deleted costs writes, and hides nothing here that the history doesn't tell anyway.
        "secure_delete = OFF",
    ):
        connection.execute(f"PRAGMA {setting}")
    return connection


def roll_back(connection: sqlite3.Connection) -> None:
    """End an open transaction without effect, unless SQLite has done so already.

    Raises:
        sqlite3.Error: the disk refused even that.
    """
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def keep_for_ever(connection: sqlite3.Connection) -> None:
    """See to it that this connection is never closed, not even when the process ends.

    The last connection that closes checkpoints the file. After a failure of the disk that is what turns a file which
    lost a page into a malformed one, so such a connection is left as it is; the kernel takes its descriptors back.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
