"""A whole new file in the place of one that the disk failed under."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.ledger.changes import Counters
from allotment.ledger.database import Database
from allotment.ledger.files import LedgerFiles, finish_replacement, sync_folder
from allotment.ledger.state import Content, write_file

if TYPE_CHECKING:
    from allotment.observe.clock import Clock

__all__ = ["create", "replace"]


def create(files: LedgerFiles, content: Content) -> None:
    """Write the first file of a ledger. A crash leaves either all of it or none.

    Raises:
        sqlite3.Error, OSError: the disk refused.
    """
    files.clear_draft()
    write_file(files.draft, content)
    files.draft.rename(files.database)
    sync_folder(files.folder)


def replace(files: LedgerFiles, content: Content, reason: str, *, history_limit: int, clock: Clock) -> Database:
    """Write `content` to a new file, put it in the place of the old one and open it.

    The old files are set aside with `reason`. Its history stays with them: reading on in a file that the disk failed
    under would bring its damage along. The connections to the old file must still be open, or it would be
    checkpointed first. A crash at any point leaves a ledger that opens with all of `content`, or with all that the
    old file holds.

    Raises:
        sqlite3.Error, OSError: the disk refused; repeat it with what is true then.
    """
    files.clear_draft()
    write_file(files.draft, content)
    files.draft.rename(files.next)
    sync_folder(files.folder)
    finish_replacement(files, reason, clock=clock)
    sequence = content.book.sequence
    counters = Counters(granted=sequence, stored=sequence, released=content.released, oldest=content.released + 1)
    return Database(files, content.ledger_id, counters, history_limit=history_limit)
