"""What is to be done about this node's Claims: a pure function of Claims, leases and what is under way (ADR 0011).

Nothing is written down about it: ledger and API say it together, at any time, and after any crash.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from allotment.api.meta import LEDGER_ANNOTATION
from allotment.node.claims.wanted import held, key_of_claim, key_of_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from allotment.addressing.lease import Lease, Moment
    from allotment.api.claim import Claim
    from allotment.node.claims.wanted import ClaimKey

__all__ = ["SETTLED", "Due", "Known", "Owed", "Step", "owed"]

SETTLED = 5.0
"""Seconds after which a lease's Claim must be seen."""


class Step(enum.Enum):
    """What is to be done."""

    DELETE = "delete it; our finalizer keeps it"
    LET_GO = "take our finalizer off"
    ADOPT = "make the lease again that a lost ledger had of it"
    STAMP = "write this ledger's ID on it"
    CLAIM = "make the Claim of a lease again"


@dataclass(frozen=True, slots=True)
class Due:
    """One thing to do: with a Claim, or (`CLAIM`) for a lease."""

    step: Step
    claim: Claim | None = None
    lease: Lease | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """All that it is judged from.

    `claims` are the node's own, as the API has them. `leases_of` finds the leases of a container's interface, of
    whatever network. `claimed` are the leases of networks that give by Claim. `networks` are those networks by the
    names of their pools. `busy` is what a request is at work on. `left` says until when (seconds of the clock) what a
    failed ADD left is kept for a retry. `ended` are those of which a DEL wants nothing any more.
    """

    ledger_id: str
    now: Moment
    claims: Iterable[Claim]
    leases_of: Callable[[str, str], Iterable[Lease]]
    claimed: Iterable[Lease]
    networks: Mapping[str, str]
    busy: AbstractSet[ClaimKey] = frozenset()
    left: Mapping[ClaimKey, float] = field(default_factory=dict)
    ended: AbstractSet[ClaimKey] = frozenset()


@dataclass(frozen=True, slots=True)
class Owed:
    """What is due, and in how many seconds it is worth to look again without any news (None: not at all).

    `held` counts Claims with a lease, `left` those that wait for a retry.
    """

    due: tuple[Due, ...] = ()
    again: float | None = None
    held: frozenset[ClaimKey] = frozenset()
    left: int = 0


_BUSY = 1.0
"""Seconds after which is looked again whether a request is through."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """Nothing to do yet: for how many seconds, and whether for a retry."""

    seconds: float
    retry: bool = False


def owed(known: Known) -> Owed:
    """What is due now."""
    found: list[Due | _Wait | None] = []
    there: set[ClaimKey] = set()
    with_lease: set[ClaimKey] = set()
    for claim in known.claims:
        key = key_of_claim(claim)
        if key is None:
            continue
        there.add(key)
        if any(key_of_lease(lease) == key for lease in known.leases_of(key[1], key[2])):
            with_lease.add(key)
            found.append(Due(Step.STAMP, claim) if _of_other_ledger(claim, known) else None)
        else:
            found.append(_of_claim(claim, key, known))
    found += [_of_lease(lease, known) for lease in known.claimed if key_of_lease(lease) not in there]
    waits = [each for each in found if isinstance(each, _Wait)]
    return Owed(
        due=tuple(each for each in found if isinstance(each, Due)),
        again=min((wait.seconds for wait in waits), default=None),
        held=frozenset(with_lease),
        left=sum(wait.retry for wait in waits),
    )


def _of_claim(claim: Claim, key: ClaimKey, known: Known) -> Due | _Wait | None:
    """What is due for a Claim that has no lease."""
    if key in known.busy:
        return _Wait(_BUSY)
    if _of_other_ledger(claim, known) and claim.status.value and held(claim) and key not in known.ended:
        return Due(Step.ADOPT, claim) if key[0] in known.networks else None
    left = known.left.get(key, 0.0) - known.now.seconds
    if left > 0:
        return _Wait(left, retry=True)
    if not claim.metadata.deleting:
        return Due(Step.DELETE, claim)
    return Due(Step.LET_GO, claim) if held(claim) else None


def _of_lease(lease: Lease, known: Known) -> Due | _Wait | None:
    """What is due for a lease that has no Claim; one of no pod can have none."""
    if not (lease.owner.pod_name and lease.owner.pod_namespace):
        return None
    age = known.now.since(lease.since)
    young = 0.0 if age is None else SETTLED - age
    if young > 0 or key_of_lease(lease) in known.busy:
        return _Wait(max(young, _BUSY))
    return Due(Step.CLAIM, lease=lease)


def _of_other_ledger(claim: Claim, known: Known) -> bool:
    return claim.metadata.annotations.get(LEDGER_ANNOTATION) != known.ledger_id
