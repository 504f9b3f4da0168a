"""What an Allocation's conditions say: whether it gives addresses, what a drain waits for, who shares one. Pure.

A message holds nothing that changes by itself, such as the seconds until an address has rested: it would be written
anew each time somebody looks. The figures stand in the status beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from allotment.addressing.plan import Layer
from allotment.addressing.reasons import Reason
from allotment.api.meta import Condition
from allotment.node.inquiries.describe import who
from allotment.node.notices.table import ConditionReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from allotment.addressing.address import Prefix
    from allotment.addressing.lease import Lease
    from allotment.addressing.plan import NetworkPlan
    from allotment.api.allocation import Allocation, AllocationStatus
    from allotment.node.orphans.adoption import Conflict

__all__ = ["Facts", "condition", "conditions", "leases_left_in_words"]

_NAMED = 5
"""Leases, or addresses, that a condition names; more are counted."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node knows of one of its Allocations at one moment.

    `available` are the addresses of each block that can be given. `fault` says why no lease can be put on disk,
    `draining` why the network goes away here (both empty if not so), `left` are the pod leases that are waited for.
    `conflicts` is None where nobody has looked yet: what was said before then goes on being said. `strays` are the
    leases whose blocks are no longer this node's.
    """

    node: str
    plan: NetworkPlan | None
    available: Mapping[Prefix, int]
    fault: str = ""
    draining: str = ""
    left: tuple[Lease, ...] = ()
    conflicts: tuple[Conflict, ...] | None = None
    strays: tuple[Lease, ...] = ()


_Said = tuple[str, Literal["True", "False"], "Reason | ConditionReason", str]


def conditions(allocation: Allocation, facts: Facts, wall: float) -> tuple[Condition, ...]:
    """The conditions as they are now. The time of each is since when its status is so; `wall` is the time now."""
    found = [_stamped(allocation, said, wall) for said in _all(allocation.status, facts)]
    before = condition(allocation.status, "Conflict")
    if before is not None and not any(entry.type == "Conflict" for entry in found):
        found.append(before)
    return tuple(found)


def condition(status: AllocationStatus, kind: str) -> Condition | None:
    """The status's condition of that type, if it has one."""
    return next((entry for entry in status.conditions if entry.type == kind), None)


def leases_left_in_words(reason: str, left: tuple[Lease, ...]) -> str:
    """What a drain waits for."""
    if not left:
        return f"{reason}; nothing left"
    owners = sorted({who(lease.owner) for lease in left})
    named = ", ".join(owners[:_NAMED]) + (f" and {len(owners) - _NAMED} more" if len(owners) > _NAMED else "")
    return f"{reason}; {len(left)} lease{'s' if len(left) != 1 else ''} left: {named}"


def _all(before: AllocationStatus, facts: Facts) -> Iterator[_Said]:
    why_not = _why_not_ready(facts)
    if why_not is None:
        yield "Ready", "True", ConditionReason.SERVING, f"addresses are given on node {facts.node}"
    else:
        yield "Ready", "False", *why_not
    if facts.draining:
        reason = ConditionReason.LEASES_LEFT if facts.left else ConditionReason.IN_FLIGHT
        yield "Draining", "True", reason, leases_left_in_words(facts.draining, facts.left)
    said = condition(before, "Conflict")
    if facts.conflicts or facts.strays:
        reason = ConditionReason.TWICE if facts.conflicts else ConditionReason.STRAY
        yield "Conflict", "True", reason, _conflicts_in_words(facts.conflicts or (), facts.strays)
    elif said is not None and (facts.conflicts is not None or said.reason == ConditionReason.STRAY):
        yield "Conflict", "False", ConditionReason.NONE, "no address has two users any more"


def _why_not_ready(facts: Facts) -> tuple[Reason, str] | None:
    plan = facts.plan
    if facts.fault:
        return Reason.LEDGER, facts.fault
    if plan is None:
        return Reason.NOT_ADMITTED, f"node {facts.node} has not taken it up yet"
    if plan.refusal is not None:
        return plan.refusal.reason, plan.refusal.message
    if plan.layer is Layer.L3 and not plan.blocks:
        if plan.pending:
            named = ", ".join(str(prefix) for prefix in plan.pending[:_NAMED])
            return Reason.NOT_CONFIRMED, f"none of its blocks is confirmed yet ({named})"
        return Reason.NO_BLOCK, f"it has no block{f': {plan.no_more}' if plan.no_more else ''}"
    used_up = _used_up(plan, facts.available)
    if used_up:
        further = f"; no further block: {plan.no_more}" if plan.no_more else ""
        return Reason.EXHAUSTED, f"every {used_up} address is in use, cooling or reserved{further}"
    return None


def _used_up(plan: NetworkPlan, available: Mapping[Prefix, int]) -> str:
    """The families that have nothing to give, in words; a pod gets an address of each."""
    left: dict[str, int] = {}
    for block in plan.blocks:
        family = str(block.prefix.family)
        left[family] = left.get(family, 0) + (available.get(block.prefix, 0) if block.gives else 0)
    return " and ".join(sorted(family for family, count in left.items() if not count))


def _conflicts_in_words(conflicts: tuple[Conflict, ...], strays: tuple[Lease, ...]) -> str:
    said = [conflict.in_words for conflict in conflicts]
    said += [
        f"{lease.address} is used by {who(lease.owner)}, but its block is no longer this node's" for lease in strays
    ]
    more = f"; and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return "; ".join(said[:_NAMED]) + more


def _stamped(allocation: Allocation, said: _Said, wall: float) -> Condition:
    kind, status, reason, message = said
    before = condition(allocation.status, kind)
    since = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if before is not None and before.status == status:
        since = before.last_transition_time
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=allocation.metadata.generation,
    )
