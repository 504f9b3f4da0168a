"""Whether a ledger says what was written to it.

At each open: is it ours; SQLite's own `quick_check`; does every row decode, and do the rows agree (`read_content`);
has it reached its mark; is each of its pages there. A ledger of 60,000 leases takes some 0.4 s.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import LedgerDamaged, LedgerTooNew
from allotment.ledger.connection import PAGE
from allotment.ledger.failures import describe
from allotment.ledger.mark import read_mark
from allotment.ledger.rows import RowError
from allotment.ledger.schema import APPLICATION_ID, VERSION, version_of
from allotment.ledger.state import Content, read_content

if TYPE_CHECKING:
    from pathlib import Path

    from allotment.ledger.files import LedgerFiles

__all__ = ["check_file", "check_length", "check_mark", "problems"]

_LOG_HEADER: Final = 32
_FRAME_HEADER: Final = 24


def check_file(connection: sqlite3.Connection) -> None:
    """Look through the file, whatever schema it has.

    Raises:
        LedgerDamaged, sqlite3.Error: it is no ledger, or not whole.
        LedgerTooNew: a newer release wrote it.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise LedgerDamaged("the file ledger.db is not a ledger of Allotment's, or its first page is lost")
    version = version_of(connection)
    if version > VERSION:
        raise LedgerTooNew(
            f"the ledger has schema {version}, this release knows schemas up to {VERSION}: install the release that "
            "wrote it, or a newer one"
        )
    complaints = _complaints(connection, "quick_check(5)")
    if complaints:
        raise LedgerDamaged(f"the ledger is damaged: {'; '.join(complaints)}")


def check_mark(files: LedgerFiles, content: Content) -> None:
    """Compare the content with how far the ledger had come.

    Raises:
        LedgerDamaged: something that was acknowledged is missing.
    """
    mark = read_mark(files.mark)
    if mark is None:
        return
    if mark.ledger_id != content.ledger_id:
        raise LedgerDamaged(
            f"the ledger {files.database} is another ({content.ledger_id}) than the one that was written here last "
            f"({mark.ledger_id}); was it copied here? Where that is meant, remove {files.mark.name}"
        )
    if content.book.sequence < mark.granted or content.released < mark.released:
        raise LedgerDamaged(
            f"the ledger {files.database} has lost what it held: it knows {content.book.sequence} leases given and "
            f"{content.released} taken back, but {mark.granted} and {mark.released} were written; its write-ahead log "
            "was cut off or removed, or the file is an older copy"
        )


def check_length(connection: sqlite3.Connection, database: Path, wal: Path) -> None:
    """See that each page is in the file or in the log; to be asked before a checkpoint, which fills gaps with zeros.

    SQLite reads a page behind the end of the file as zeros, and where it is the rest of a long value nothing looks
    wrong with that.

    Raises:
        LedgerDamaged: the end of the file is missing.
    """
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    size = database.stat().st_size
    missing = set(range(size // PAGE + 1, pages + 1))
    if missing and not missing <= _pages_in_log(wal):
        raise LedgerDamaged(f"the ledger {database} was cut off: it has {size} bytes of {pages * PAGE}")


def _pages_in_log(wal: Path) -> set[int]:
    """The numbers of the pages that the write-ahead log holds (sqlite.org/fileformat2, section 4)."""
    pages: set[int] = set()
    try:
        with wal.open("rb") as file:
            salts = file.read(_LOG_HEADER)[16:24]
            while len(frame := file.read(_FRAME_HEADER + PAGE)) == _FRAME_HEADER + PAGE and frame[8:16] == salts:
                pages.add(int.from_bytes(frame[:4], "big"))
    except FileNotFoundError:
        pass
    return pages


def problems(connection: sqlite3.Connection) -> list[str]:
    """All that is wrong with the file, for people; the thorough check that includes every index."""
    found: list[str] = []
    try:
        found += _complaints(connection, "integrity_check(20)")
        check_file(connection)
        if version_of(connection) == VERSION:
            read_content(connection)
    except (LedgerDamaged, LedgerTooNew) as error:
        found.append(error.message)
    except RowError as error:
        found.append(str(error))
    except sqlite3.Error as error:
        found.append(describe(error))
    return found


def _complaints(connection: sqlite3.Connection, check: str) -> list[str]:
    """What SQLite's own check finds, a line each; nothing when all is well."""
    lines = [line for row in connection.execute(f"PRAGMA {check}") for line in str(row[0]).splitlines()]
    return [line for line in lines if line != "ok" and not line.startswith("***")]
