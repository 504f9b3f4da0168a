"""A notice: that something happened to an object. Which words it may use is in `allotment.node.notices.table`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from allotment.node.notices.table import About

if TYPE_CHECKING:
    from allotment.addressing.lease import Owner
    from allotment.addressing.reasons import Reason
    from allotment.api.allocation import Allocation
    from allotment.node.notices.table import Happened

__all__ = ["NODE", "Notice", "Subject", "allocation_of", "network", "pod_of", "this"]


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that a notice is about. An Allocation may be known by its `network` alone: it is this node's."""

    about: About
    name: str = ""
    namespace: str = ""
    uid: str = ""
    network: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened: why or what in one word, and in one sentence."""

    reason: Reason | Happened
    subject: Subject
    message: str


NODE = Subject(About.NODE)
"""The Node that the agent runs on."""


def pod_of(owner: Owner) -> Subject | None:
    """The pod that a lease belongs to; None where its owner is none (nerdctl's containers, a rebuild's guesses).

    The UID is the one that the runtime knows; of a static pod it is the hash of its file, by which `kubectl describe`
    looks for its Events.
    """
    if not owner.pod_name or not owner.pod_namespace:
        return None
    return Subject(About.POD, owner.pod_name, owner.pod_namespace, owner.pod_uid)


def allocation_of(network_name: str) -> Subject:
    """This node's Allocation of the network."""
    return Subject(About.ALLOCATION, network=network_name)


def this(allocation: Allocation) -> Subject:
    """This very Allocation, be it there any more or not."""
    return Subject(About.ALLOCATION, allocation.name, uid=allocation.metadata.uid)


def network(name: str) -> Subject:
    """The Network."""
    return Subject(About.NETWORK, name)
