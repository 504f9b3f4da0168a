"""Every reason that the agent's Events and conditions can have, in one table; `docs/reference/events.md` comes from it.

A reason is one CamelCase word that stays what it is: people write alerts and `kubectl get events --field-selector`
with it. What an ADD can be refused for is named in `allotment.addressing.reasons`, the rest here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from allotment.addressing.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CONDITIONS", "NOTICES", "About", "ConditionReason", "Happened", "Sort"]


class About(enum.StrEnum):
    """The kinds of object that something can be said of."""

    POD = "Pod"
    ALLOCATION = "Allocation"
    NETWORK = "Network"
    NODE = "Node"


class Happened(enum.StrEnum):
    """What happens besides refusals."""

    ORPHAN_FREED = "OrphanFreed"
    ADOPTED = "LeaseAdopted"
    CONFLICT = "AddressConflict"
    DRAIN_STARTED = "DrainStarted"
    DRAIN_GOES_ON = "DrainProgressing"
    DRAINED = "Drained"
    REBUILT = "LedgerRebuilt"
    TOO_FEW = "TooFewAddresses"


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

NOTICES: Final[Mapping[Reason | Happened, Sort]] = {
    Reason.UNKNOWN: Sort(
        _POD, "The pod asks for a network that this node has never heard of; see the name in the CNI configuration."
    ),
    Reason.NO_ALLOCATION: Sort(
        _POD,
        "There is no Allocation of the network for this node, so it gives no address of it; the controller makes one.",
    ),
    Reason.NOT_SELECTED: Sort(_POD, "The Network's nodeSelector leaves this node out."),
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
    Happened.ORPHAN_FREED: Sort(
        (About.POD, About.ALLOCATION),
        "An address was taken back because its owner is gone, though nobody released it; the message has the evidence.",
        each=True,
    ),
    Happened.ADOPTED: Sort(
        (About.POD, About.ALLOCATION),
        "A running pod whose address nobody held was given the lease it lacked.",
        each=True,
    ),
    Happened.CONFLICT: Sort(
        (About.POD, About.ALLOCATION, About.NETWORK),
        "Two pods use one address. Nothing is done about it: delete one of them.",
        each=True,
    ),
    Happened.DRAIN_STARTED: Sort(
        (About.ALLOCATION,),
        "The network gives nothing new here any more, and waits for its pods.",
        warning=False,
        each=True,
    ),
    Happened.DRAIN_GOES_ON: Sort(
        (About.ALLOCATION,),
        "Half of the pods that were waited for, or more, have ended; the condition Draining is always up to date.",
        warning=False,
        each=True,
    ),
    Happened.DRAINED: Sort(
        (About.ALLOCATION,), "The last pod has ended, and the agent's finalizer is off.", warning=False, each=True
    ),
    Happened.REBUILT: Sort(
        (About.ALLOCATION,), "The ledger was lost or damaged, and its leases were made again from what runs.", each=True
    ),
    Happened.TOO_FEW: Sort(
        (About.NODE,),
        "The kubelet takes more pods than any network can grow to have addresses for on this node.",
        each=True,
    ),
}


class ConditionReason(enum.StrEnum):
    """Reasons of conditions that no refusal has."""

    SERVING = "Serving"
    LEASES_LEFT = "LeasesLeft"
    IN_FLIGHT = "RequestsInFlight"
    TWICE = "AddressUsedTwice"
    STRAY = "BlockGivenAway"
    NONE = "NoConflict"


CONDITIONS: Final[Mapping[str, Mapping[ConditionReason | Reason, str]]] = {
    "Ready": {
        ConditionReason.SERVING: "True: addresses are given.",
        Reason.NOT_ADMITTED: "False: the agent's finalizer is not on it yet.",
        Reason.NO_BLOCK: "False: it has no block.",
        Reason.NOT_CONFIRMED: "False: none of its blocks is confirmed yet.",
        Reason.CLOSED: "False: it, or each of the Network's subnets, is closed.",
        Reason.DRAINING: "False: it is on its way out.",
        Reason.EXHAUSTED: "False: in one family or both, every address of its blocks is in use, cooling or reserved.",
        Reason.LEDGER: "False: no lease can be put on disk, or the ledger is being rebuilt; the message says which.",
    },
    "Draining": {
        ConditionReason.LEASES_LEFT: "True: pods still hold addresses; the message names some.",
        ConditionReason.IN_FLIGHT: "True: no pod is left, and a request that began before is being ended.",
    },
    "Conflict": {
        ConditionReason.TWICE: "True: two pods use one address; the message says which.",
        ConditionReason.STRAY: "True: pods here use addresses of a block that was taken from this node while it was "
        "away, so that another may give them; recreate those pods.",
        ConditionReason.NONE: "False: that has ended.",
    },
}
"""What each condition of an Allocation can say, by its reason."""
