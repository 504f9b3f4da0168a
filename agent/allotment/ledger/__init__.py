"""The lease ledger on disk: schema, group commit, history, integrity, set-aside.

`Ledger` is what the agent runs, `LedgerReader` what looks at it from outside, `StateLock` what keeps a second agent
away, `set_aside` what makes room for a new ledger when one is damaged.
"""

from allotment.ledger.files import set_aside, sync_folder
from allotment.ledger.health import LedgerHealth, LedgerObserver, LedgerState
from allotment.ledger.history import HistoryRow, RowsQuery
from allotment.ledger.ledger import HISTORY_ROWS, Ledger
from allotment.ledger.lock import StateLock
from allotment.ledger.reader import LedgerReader
from allotment.ledger.state import Content

__all__ = [
    "HISTORY_ROWS",
    "Content",
    "HistoryRow",
    "Ledger",
    "LedgerHealth",
    "LedgerObserver",
    "LedgerReader",
    "LedgerState",
    "RowsQuery",
    "StateLock",
    "set_aside",
    "sync_folder",
]
