"""The seam through which parts of the agent say what happened to whom.

Telling never waits and never fails, and costs the same however often it is done. What becomes of it is the source's
affair: in a cluster Events, counted together and bounded; standalone there is nobody to hand it to. A part that tells
has it in the log as well, with the fields that only it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.node.notices.notice import Notice
from allotment.node.notices.table import NOTICES

if TYPE_CHECKING:
    from collections.abc import Callable

    from allotment.addressing.reasons import Reason
    from allotment.node.notices.notice import Subject
    from allotment.observe.metrics import Metrics

__all__ = ["Notices"]


class Notices:
    """Counts notices by their reason and passes them on."""

    def __init__(self, metrics: Metrics, pass_on: Callable[[Notice], None] | None = None) -> None:
        self._counts = {reason: metrics.count("notices_total", reason) for reason in NOTICES}
        self._pass_on = pass_on

    def tell(self, reason: Reason, message: str, *subjects: Subject | None) -> None:
        """Say of each of these objects that this happened; it counts once. Those that are None are passed over."""
        self._counts[reason].inc()
        if self._pass_on is not None:
            for subject in subjects:
                if subject is not None:
                    self._pass_on(Notice(reason, subject, message))
