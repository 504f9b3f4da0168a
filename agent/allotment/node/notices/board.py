"""The seam through which parts of the agent say what happened to whom.

Telling never waits and never fails, and costs the same however often it is done. What becomes of it is the source's
affair: in a cluster Events, counted together and bounded; standalone there is nobody to hand it to. A part that tells
has it in the log as well, with the fields that only it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from allotment.node.notices.notice import Notice, allocation_of
from allotment.node.notices.table import NOTICES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from allotment.addressing.reasons import Reason
    from allotment.node.notices.notice import Subject
    from allotment.node.notices.table import Happened
    from allotment.observe.metrics import Metrics

__all__ = ["Notices", "OfLease"]

_NAMED = 3
"""Leases that one message about several of them tells of; more are counted."""


class OfLease(NamedTuple):
    """Something that happened to one lease of a network: what, and the pod that it concerns, if it is one."""

    network: str
    message: str
    pod: Subject | None


class Notices:
    """Counts notices by their reason and passes them on."""

    def __init__(self, metrics: Metrics, pass_on: Callable[[Notice], None] | None = None) -> None:
        self._counts = {reason: metrics.count("notices_total", reason) for reason in NOTICES}
        self._pass_on = pass_on

    def tell(self, reason: Reason | Happened, message: str, *subjects: Subject | None) -> None:
        """Say of each of these objects that this happened; it counts once. Those that are None are passed over."""
        self._counts[reason].inc()
        self._say(reason, message, subjects)

    def tell_of_leases(self, reason: Happened, several: Sequence[OfLease]) -> None:
        """Say of each lease's pod what happened to it, and of each Allocation all in one; it counts once for each."""
        of_network: dict[str, list[str]] = {}
        for network, message, pod in several:
            self.tell(reason, message, pod)
            of_network.setdefault(network, []).append(message)
        for network, messages in of_network.items():
            more = f"; and {len(messages) - _NAMED} more" if len(messages) > _NAMED else ""
            self._say(reason, "; ".join(messages[:_NAMED]) + more, (allocation_of(network),))

    def _say(self, reason: Reason | Happened, message: str, subjects: Iterable[Subject | None]) -> None:
        if self._pass_on is not None:
            for subject in subjects:
                if subject is not None:
                    self._pass_on(Notice(reason, subject, message))
