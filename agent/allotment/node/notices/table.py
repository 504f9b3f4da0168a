"""Every reason that the agent's Events can have, in one table; `docs/reference/events.md` comes from it.

A reason is one CamelCase word that stays what it is: people write alerts and `kubectl get events --field-selector`
with it. They are named in `allotment.addressing.reasons`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from allotment.addressing.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NOTICES", "About", "Sort"]


class About(enum.StrEnum):
    """The kinds of object that something can be said of."""

    POD = "Pod"
    NETWORK = "Network"


@dataclass(frozen=True, slots=True)
class Sort:
    """One row of the table.

    `about` are the kinds of object it is said of. With `each`, what is told with another message is another Event;
    without, it counts as the same one again, since only figures in it differ.
    """

    about: tuple[About, ...]
    meaning: str
    warning: bool = True
    each: bool = False


_POD: Final = (About.POD,)

NOTICES: Final[Mapping[Reason, Sort]] = {
    Reason.UNKNOWN: Sort(
        _POD, "The pod asks for a network that this node has never heard of; see the name in the CNI configuration."
    ),
    Reason.NO_ALLOCATION: Sort(
        _POD,
        "There is no Allocation of the network for this node, so it gives no address of it; the controller makes one.",
    ),
    Reason.NOT_ADMITTED: Sort(_POD, "The agent's finalizer is not on the Allocation yet."),
    Reason.NO_BLOCK: Sort(_POD, "The Allocation has no block; the message says what a block would come from."),
    Reason.NOT_CONFIRMED: Sort(_POD, "The controller has cut blocks for this node, and not confirmed any of them yet."),
    Reason.CLOSED: Sort(
        _POD, "The Allocation, or each of the Network's subnets, is closed: what is held stays, nothing new is given."
    ),
    Reason.DRAINING: Sort(
        _POD, "Network or Allocation is being deleted, or the Network is gone: nothing new is given."
    ),
    Reason.EXHAUSTED: Sort(
        (About.POD, About.NETWORK),
        "No address is left on this node: the message has the numbers, and why no further block can be had.",
    ),
    Reason.UNAVAILABLE: Sort(
        _POD,
        "The address that the pod asks for can't be had; the message says by whom it is held, or why else.",
    ),
    Reason.STARTING: Sort(
        _POD, "The agent was not ready to give addresses within the wait that an ADD has; the message says why."
    ),
    Reason.LEDGER: Sort(_POD, "A lease can't be put on disk now, so none is given."),
    Reason.NOT_SERVING: Sort(_POD, "The agent can serve no ADD at all; the message says why."),
    Reason.INVALID: Sort(_POD, "The CNI configuration, or what the pod asks for, says something impossible."),
    Reason.TEMPORARY: Sort(_POD, "Something that is needed didn't answer in time; the runtime tries again."),
    Reason.INTERNAL: Sort(_POD, "A fault in the agent; its log has the rest."),
}
