"""The part of `allotment gc` that the agent decides, where it searches for orphans itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import TryAgain
from allotment.node.inquiries.leftovers import BETWEEN_LOOKS, Candidate
from allotment.node.inquiries.reports import OrphansQuery, OrphanState

if TYPE_CHECKING:
    from allotment.cli.informant import Informant
    from allotment.node.inquiries.reports import OrphanReport, OrphansReport

__all__ = ["Searched"]

_MORE: Final = {
    OrphanState.ORPHAN: "",
    OrphanState.FREED: "",
    OrphanState.SUSPECTED: f"; freed if a look {BETWEEN_LOOKS:g} s later shows the same",
    OrphanState.HELD: "; kept, name its --container if you know better",
}
_OUTCOMES: Final = {
    OrphanState.ORPHAN: "to be freed",
    OrphanState.FREED: "freed",
    OrphanState.SUSPECTED: "suspected",
    OrphanState.HELD: "kept",
}


class Searched:
    """The agent's looks for one run of the command. `free` has it free what two looks agree on."""

    def __init__(self, asked: Informant, network: str, *, free: bool) -> None:
        self._asked = asked
        self._network = network
        self._free = free
        self._found: dict[int, OrphanReport] = {}
        self._told = ""
        self.searches = False

    @property
    def undecided(self) -> bool:
        """Whether another look is to be waited for."""
        return any(found.state is OrphanState.SUSPECTED for found in self._found.values())

    def look(self) -> None:
        """Have the agent look once more. `searches` stays false where it doesn't, or isn't there to be asked.

        Raises:
            TryAgain: it is to free something, and is down or can't write it down now.
        """
        report = self._ask()
        if report is None or not report.searches:
            return
        self.searches = True
        if report.blind and report.blind != self._told:
            print(f"allotment: whether pods are gone can't be told now: {report.blind}", file=sys.stderr)
        if report.cut:
            print("allotment: there are more than fit into one answer; ask again, or by --network", file=sys.stderr)
        self._told = report.blind
        # What was freed by an earlier look stays shown; what was only suspected then counts as this look has it.
        freed = {number: found for number, found in self._found.items() if found.state is OrphanState.FREED}
        self._found = freed | {found.lease.sequence: found for found in report.found}

    def candidates(self) -> tuple[Candidate, ...]:
        """What was found, each with what speaks for it."""
        return tuple(Candidate(found.lease, found.why + _MORE[found.state]) for found in self._found.values())

    def outcomes(self) -> dict[int, str]:
        """What became of each, by sequence number."""
        return {number: _OUTCOMES[found.state] for number, found in self._found.items()}

    def _ask(self) -> OrphansReport | None:
        try:
            return self._asked.orphans(OrphansQuery(network=self._network, free=self._free))
        except TryAgain:
            if self._free:
                raise
            return None
