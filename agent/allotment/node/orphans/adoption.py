"""Running pods without a lease, and addresses that two pods use; judged from what the runtime tells. Pure.

A pod that runs, not in the host's network, with an address in a block of this node that nobody holds, is to get the
lease it never had or that was lost: else the address would be given to somebody else. Two looks 30 s apart have to
show it, each with the leases as they were before the runtime was asked and after: an ADD or a DEL in between makes one
look wrong.

Where two pods use one address, nothing is changed: which of them is meant, nobody can know. It is told, and a person
deletes one of them; the other one, which was seen in the looks before, then gets the lease at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from allotment.addressing.book import Claimed
from allotment.addressing.lease import LeaseKind, Owner
from allotment.node.orphans.verdicts import BETWEEN_LOOKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from allotment.addressing.address import Address
    from allotment.addressing.lease import Lease, Moment
    from allotment.addressing.plan import NetworkPlan
    from allotment.cri.messages import Sandbox

__all__ = ["POD_INTERFACE", "Conflict", "Seen", "User", "reconcile", "user_of"]

POD_INTERFACE = "eth0"
"""What containerd and CRI-O call a pod's own interface, the one whose addresses they tell."""

_Use = tuple[str, "Address", str]
"""Network, address, and the sandbox that uses it."""


class User(NamedTuple):
    """Who uses an address: in few characters, the container, and where that is a pod's, the pod."""

    name: str
    container: str
    namespace: str = ""
    pod: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Conflict:
    """One address with several users, in a fixed order."""

    network: str
    address: Address
    users: tuple[User, ...]

    @property
    def in_words(self) -> str:
        """Which address, and who they are."""
        users = " and ".join(f"{user.name} ({user.container[:12]})" for user in self.users)
        return f"{self.address} is used by {users}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a look: whom to give leases, and the conflicts that the look before showed as well.

    `since` (when something was first seen) and `suspected` go into the next look.
    """

    adopt: tuple[Claimed, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    since: Mapping[_Use, Moment] = field(default_factory=dict)
    suspected: frozenset[Conflict] = frozenset()


def reconcile(
    plans: Iterable[NetworkPlan],
    running: Iterable[Sandbox],
    before: Iterable[Lease],
    after: Iterable[Lease],
    *,
    at: Moment,
    earlier: Seen,
) -> Seen:
    """Compare the sandboxes that run without a lease of their own with the leases there are.

    `running` have a status (their addresses); of those that have leases none need be among them. `at` is when the look
    began.
    """
    holders: dict[tuple[str, Address], Lease] = {}
    with_lease: set[str] = set()
    for lease in (*before, *after):
        holders[lease.owner.network, lease.address] = lease
        with_lease.add(lease.owner.container_id)
    plans = tuple(plans)
    users: dict[tuple[str, Address], list[Sandbox]] = {}
    for sandbox in running:
        if sandbox.ready and not sandbox.host_network and sandbox.id not in with_lease:
            for place in _places(plans, sandbox):
                users.setdefault(place, []).append(sandbox)
    since: dict[_Use, Moment] = {}
    adopt: list[Claimed] = []
    conflicts: set[Conflict] = set()
    for (network, address), sandboxes in sorted(users.items()):
        for sandbox in sandboxes:
            use = (network, address, sandbox.id)
            first = earlier.since.get(use, at)
            since[use] = first if (at.since(first) or -1.0) > 0 else at
        holder = holders.get((network, address))
        if holder is not None or len(sandboxes) > 1:
            conflicts.add(_conflict(network, address, sandboxes, holder))
            continue
        (sandbox,) = sandboxes
        apart = at.since(since[network, address, sandbox.id])
        if apart is not None and apart >= BETWEEN_LOOKS:
            adopt.append(Claimed(_owner(network, sandbox), address, sandbox.netns))
    confirmed = sorted(conflicts & earlier.suspected, key=lambda each: (each.network, each.address))
    return Seen(tuple(adopt), tuple(confirmed), since, frozenset(conflicts))


def _places(plans: Iterable[NetworkPlan], sandbox: Sandbox) -> Iterator[tuple[str, Address]]:
    """Where the sandbox's addresses lie here. One that several networks have says nothing: the runtime names none."""
    for address in sandbox.ips:
        networks = [
            plan.name
            for plan in plans
            if not plan.claimed  # what a Claim gave, the Claim itself brings back
            and any(address in block.prefix and address != block.gateway for block in plan.blocks)
        ]
        if len(networks) == 1:
            yield networks[0], address


def _owner(network: str, sandbox: Sandbox) -> Owner:
    """The owner, as far as the runtime knows it. Which configuration it was asked under, it doesn't, so no GC fits."""
    return Owner(
        network=network,
        container_id=sandbox.id,
        interface=POD_INTERFACE,
        pod_namespace=sandbox.namespace,
        pod_name=sandbox.name,
        pod_uid=sandbox.uid,
        kind=LeaseKind.POD,
    )


def _conflict(network: str, address: Address, sandboxes: Iterable[Sandbox], holder: Lease | None) -> Conflict:
    users = {user_of(_owner(network, sandbox)) for sandbox in sandboxes}
    if holder is not None:
        users.add(user_of(holder.owner))
    return Conflict(network, address, tuple(sorted(users)))


def user_of(owner: Owner) -> User:
    """The owner of a lease, as a user of its address."""
    name = f"{owner.pod_namespace}/{owner.pod_name}" if owner.pod_name else owner.machine or str(owner.kind)
    return User(name, owner.container_id, owner.pod_namespace, owner.pod_name, owner.pod_uid)
