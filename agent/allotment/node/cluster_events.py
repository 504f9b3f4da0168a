"""Notices as Kubernetes Events: which object they regard, and what counts as the same again. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from allotment.kube.objects import ObjectReference
from allotment.kube.resources import ALLOCATIONS, NETWORKS, NODES, PODS
from allotment.node.notices.table import NOTICES, About

if TYPE_CHECKING:
    from allotment.kube.objects import Node
    from allotment.node.notices.notice import Notice, Subject
    from allotment.node.view import View

__all__ = ["Told", "event_of"]


class Told(NamedTuple):
    """The arguments of `EventRecorder.note`."""

    regarding: ObjectReference
    reason: str
    message: str
    type: Literal["Normal", "Warning"]
    topic: str | None


def event_of(notice: Notice, view: View, node: Node | None) -> Told | None:
    """What to note of it; None where the object isn't known to be there."""
    regarding = _regarding(notice.subject, view, node)
    if regarding is None:
        return None
    sort = NOTICES[notice.reason]
    topic = None if sort.each else ""
    return Told(regarding, notice.reason, notice.message, "Warning" if sort.warning else "Normal", topic)


def _regarding(subject: Subject, view: View, node: Node | None) -> ObjectReference | None:
    match subject.about:
        case About.POD:
            return ObjectReference(PODS.api_version, PODS.kind, subject.name, subject.namespace, subject.uid)
        case About.NETWORK:
            found = view.networks.get(subject.name)
            return None if found is None else NETWORKS.reference(found)
        case About.ALLOCATION:
            if subject.uid:
                kind = ALLOCATIONS
                return ObjectReference(kind.api_version, kind.kind, subject.name, uid=subject.uid)
            allocation = view.allocations.get(subject.network)
            return None if allocation is None else ALLOCATIONS.reference(allocation)
        case About.NODE:
            return None if node is None else NODES.reference(node)
