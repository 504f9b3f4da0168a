"""The addresses of virtual machines, which stay theirs while one pod ends and the next begins: the rules of it. Pure.

A machine has one address of each family for an interface in a network, so on one node one of its pods at a time has it.
What the pod leaves is kept for the next one here, where the network's plan says so (`NetworkPlan.keeps`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.errors import TryAgain
from allotment.addressing.lease import Cause, LeaseKind, Released, kept_for

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from allotment.addressing.address import Family, Prefix
    from allotment.addressing.lease import Lease, Moment, Owner

__all__ = ["ended_by", "refuse_second", "to_keep"]


def refuse_second(owner: Owner, leases: Iterable[Lease], node: str) -> None:
    """See that no other pod of the owner's machine has its address here; `leases` are those to look at (I1).

    Raises:
        TryAgain: one has; it has to end first.
    """
    for lease in leases if owner.vm else ():
        other = lease.owner
        same = (other.machine, other.network, other.interface) == (owner.machine, owner.network, owner.interface)
        if same and other.kind is LeaseKind.POD:
            raise TryAgain(
                f"virtual machine {owner.machine} still has {lease.address} of network {owner.network} on {node}, by "
                f"its pod {other.pod_namespace}/{other.pod_name} (container {other.container_id[:12]}); that one has "
                "to end first"
            )


def to_keep(
    changes: Sequence[Released],
    *,
    block_of: Callable[[Lease], Prefix | None],
    of_machine: Callable[[Owner], Iterable[Lease]],
) -> list[tuple[Released, Owner, Prefix]]:
    """Which of the leases that end are kept, for whom and in which block.

    One of a family for each machine's interface, and none while the machine has another lease. `block_of` is the block
    in which an address may be kept (None: it may not), `of_machine` finds the leases of an owner's machine.
    """
    ending = {change.lease.sequence for change in changes}
    found: dict[tuple[Owner, Family], tuple[Released, Owner, Prefix]] = {}
    for change in changes:
        lease = change.lease
        if not lease.owner.vm or lease.owner.kind is not LeaseKind.POD or change.cause is Cause.OPERATOR:
            continue
        owner, family, block = kept_for(lease.owner), lease.address.family, block_of(lease)
        others = (each.sequence for each in of_machine(owner) if each.address.family is family)
        if block is not None and ending.issuperset(others):
            found.setdefault((owner, family), (change, owner, block))
    return list(found.values())


def ended_by(
    owner: Owner, kept: Iterable[Lease], resumed: Container[int], now: Moment, wall: float
) -> tuple[Released, ...]:
    """How the leases end that kept an address for the owner's machine: by `resumed` (sequences), or let go."""
    whose = f"pod {owner.pod_namespace}/{owner.pod_name} runs virtual machine {owner.machine} now"
    return tuple(
        Released(lease, now, wall, Cause.RESUMED if lease.sequence in resumed else Cause.UNKEPT, whose)
        for lease in kept
    )
