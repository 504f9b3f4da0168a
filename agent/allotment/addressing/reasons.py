"""Why no address is given, as one word: what Events, conditions and metrics call it.

Which word stands for what is told once, in `allotment.node.notices.table`; docs/reference/events.md comes from there.
"""

from __future__ import annotations

import enum

__all__ = ["Reason"]


class Reason(enum.StrEnum):
    """One for each thing that somebody can do something about."""

    UNKNOWN = "NetworkUnknown"
    NO_ALLOCATION = "NoAllocation"
    NOT_SELECTED = "NodeNotSelected"
    NOT_ADMITTED = "NotAdmitted"
    NO_BLOCK = "NoBlock"
    NOT_CONFIRMED = "BlockNotConfirmed"
    CLOSED = "NetworkClosed"
    DRAINING = "NetworkDraining"
    EXHAUSTED = "AddressesExhausted"
    UNAVAILABLE = "AddressUnavailable"
    STARTING = "AgentStarting"
    LEDGER = "LedgerUnavailable"
    NOT_SERVING = "NotServing"
    INVALID = "InvalidRequest"
    TEMPORARY = "TemporaryFailure"
    INTERNAL = "InternalError"
