"""Finding leases by what a request names, with little memory: a node may hold 60,000 of them.

A table's value is mostly one lease, and then the lease itself; a dictionary only where several share the key. Text that
many leases have in common is kept once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from allotment.addressing.address import Address, Prefix
from allotment.addressing.lease import Lease, Moment, Owner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from allotment.addressing.lease import AttachmentKey

__all__ = ["LeaseIndex", "shared_owner"]

_Table = dict[str, Lease | dict[int, Lease]]  # by sequence, where there are several


class LeaseIndex:
    """All leases of a node by container ID, by workload and by virtual machine."""

    __slots__ = ("_containers", "_machines", "_prefixes", "_workloads")

    def __init__(self) -> None:
        self._containers: _Table = {}
        self._workloads: _Table = {}
        self._machines: _Table = {}
        self._prefixes: dict[Prefix, Prefix] = {}

    def add(self, lease: Lease) -> None:
        """Make a lease findable."""
        _add(self._containers, lease.owner.container_id, lease)
        if lease.owner.pod_name:
            _add(self._workloads, lease.owner.workload, lease)
        if lease.owner.vm:
            _add(self._machines, lease.owner.machine, lease)

    def drop(self, lease: Lease) -> None:
        """Make it no longer findable."""
        _drop(self._containers, lease.owner.container_id, lease)
        if lease.owner.pod_name:
            _drop(self._workloads, lease.owner.workload, lease)
        if lease.owner.vm:
            _drop(self._machines, lease.owner.machine, lease)

    def of_key(self, key: AttachmentKey) -> tuple[Lease, ...]:
        """The leases of an attachment, IPv4 first."""
        network, container_id, interface = key
        return _ordered(
            lease
            for lease in _get(self._containers, container_id)
            if lease.owner.interface == interface and lease.owner.network == network
        )

    def of_container(self, container_id: str, interface: str) -> tuple[Lease, ...]:
        """The leases of a container's interface in all networks, IPv4 first."""
        return _ordered(lease for lease in _get(self._containers, container_id) if lease.owner.interface == interface)

    def of_workload(self, network: str | None, workload: str) -> tuple[Lease, ...]:
        """The leases that a workload has in a network, or (None) in all of them, IPv4 first."""
        found = _get(self._workloads, workload)
        return _ordered(lease for lease in found if network is None or lease.owner.network == network)

    def of_machine(self, owner: Owner) -> tuple[Lease, ...]:
        """The leases that this owner's virtual machine has in the owner's network, on its interface, IPv4 first."""
        if not owner.vm:
            return ()
        return _ordered(
            lease
            for lease in _get(self._machines, owner.machine)
            if lease.owner.network == owner.network and lease.owner.interface == owner.interface
        )

    def of_machines(self) -> tuple[Lease, ...]:
        """The leases of all virtual machines, in no order."""
        return tuple(lease for machine in self._machines for lease in _get(self._machines, machine))

    def shared(self, lease: Lease) -> Lease:
        """The same lease, with what it has in common with others kept once."""
        relatives = _get(self._containers, lease.owner.container_id)
        twin = next((other for other in relatives if other.owner == lease.owner), None)
        return Lease(
            address=Address(lease.address.family, lease.address.value),
            block=self._prefixes.setdefault(lease.block, lease.block),
            owner=twin.owner if twin else shared_owner(lease.owner),
            sequence=lease.sequence,
            since=Moment(sys.intern(lease.since.boot), lease.since.seconds),
            wall=lease.wall,
            netns=twin.netns if twin and twin.netns == lease.netns else lease.netns,
        )


def shared_owner(owner: Owner) -> Owner:
    """The same owner, with the text that other leases have too kept once."""
    return Owner(
        network=sys.intern(owner.network),
        container_id=owner.container_id,
        interface=sys.intern(owner.interface),
        pod_namespace=sys.intern(owner.pod_namespace),
        pod_name=owner.pod_name,
        pod_uid=owner.pod_uid,
        conf_name=sys.intern(owner.conf_name),
        kind=owner.kind,
        vm=owner.vm,
    )


def _get(table: _Table, key: str) -> Iterable[Lease]:
    found = table.get(key)
    if found is None:
        return ()
    return (found,) if isinstance(found, Lease) else found.values()


def _add(table: _Table, key: str, lease: Lease) -> None:
    found = table.get(key)
    if found is None:
        table[key] = lease
    elif isinstance(found, Lease):
        table[key] = {found.sequence: found, lease.sequence: lease}
    else:
        found[lease.sequence] = lease


def _drop(table: _Table, key: str, lease: Lease) -> None:
    found = table.get(key)
    if isinstance(found, dict):
        found.pop(lease.sequence, None)
        if len(found) == 1:
            table[key] = next(iter(found.values()))
    elif found is not None and found.sequence == lease.sequence:
        del table[key]


def _ordered(leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """IPv4 first; the common case of one or none is not sorted."""
    found = tuple(leases)
    return found if len(found) < 2 else tuple(sorted(found, key=_by_address))


def _by_address(lease: Lease) -> Address:
    return lease.address
