"""When a kept address is kept no longer: pure (ADR 0013)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import NotAdmitted

if TYPE_CHECKING:
    from allotment.addressing.lease import Lease
    from allotment.addressing.plan import NetworkPlan

__all__ = ["AT_FIRST", "BETWEEN_LOOKS", "SELDOM", "Looks", "why_not_kept"]

AT_FIRST: Final = 30.0
"""Seconds after which a machine whose address is kept is looked for first."""
BETWEEN_LOOKS: Final = 30.0
"""Seconds that two looks must be apart to end it (I8)."""
SELDOM: Final = 300.0
"""Seconds between two looks at a machine that is there and stopped."""


def why_not_kept(lease: Lease, plan: NetworkPlan | None, *, may_keep: bool) -> str:
    """Why this address is not to be kept any longer, whatever becomes of its machine; empty if it is.

    `may_keep` is the lease book's word on it (`LeaseBook.may_keep`).
    """
    network = lease.owner.network
    if plan is None:
        return f"no object names network {network} any more"
    if plan.refusal is not None and plan.refusal.error is not NotAdmitted:
        return plan.refusal.message
    if not plan.keeps:
        return "vmAddressPersistence of IPAMConfig default is Disabled"
    return "" if may_keep else f"{lease.address} may not be given any more in network {network}"


@dataclass(slots=True)
class Looks:
    """The looks at one machine, on a clock that never jumps: when the next is due, and since when it seems over.

    `look` takes what one look shows.
    """

    due: float
    since: float | None = field(default=None)

    def look(self, evidence: str | None, now: float) -> bool:
        """Whether its addresses are kept no longer. Empty evidence: they are; None: this look could tell nothing."""
        if not evidence:
            # Looks that agree are consecutive ones: what can't be asked in between proves nothing (I15).
            self.since = None
            self.due = now + (BETWEEN_LOOKS if evidence is None else SELDOM)
            return False
        if self.since is None:
            self.since = now
        self.due = now + BETWEEN_LOOKS
        return now - self.since >= BETWEEN_LOOKS
