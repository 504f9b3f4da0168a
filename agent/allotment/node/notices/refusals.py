"""What is said of an ADD that failed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.errors import AllotmentError
from allotment.addressing.reasons import Reason
from allotment.node.notices.notice import network, pod_of

if TYPE_CHECKING:
    from allotment.cni.request import CniRequest
    from allotment.node.notices.notice import Subject

__all__ = ["refusal_of"]


def refusal_of(request: CniRequest, error: Exception) -> tuple[Reason, str, tuple[Subject | None, ...]]:
    """The reason, the message, and whom it concerns: the pod, and when addresses ran out the Network too."""
    reason, message = Reason.INTERNAL, "the agent failed; its log has more"
    if isinstance(error, AllotmentError):
        reason, message = error.reason, error.message
    if request.network is None:
        return reason, message, ()
    owner = request.owner()
    whole = network(owner.network) if reason is Reason.EXHAUSTED else None
    return reason, message, (pod_of(owner), whole)
