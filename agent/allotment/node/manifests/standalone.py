"""Standalone mode's rules: which Allocations a node has, from the files in its folder and what it recorded. Pure.

- A Network for which no Allocation file was ever seen is admitted whole: the agent makes an Allocation of its own.
- Once a file for it was seen, files alone decide: with the file gone the Allocation drains, and nothing re-admits,
  until a file is there again or the Network itself has gone and come back.
- A drain can't be undone. What comes back meanwhile starts anew once the drain is over.
- While the folder could not be read whole nobody is newly admitted, and nothing counts as gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from allotment.addressing.plan import Layer
from allotment.api.allocation import Allocation, AllocationSpec, AllocationStatus, Block
from allotment.api.meta import NODE_FINALIZER, ObjectMeta, Record
from allotment.api.names import allocation_name
from allotment.api.network import Network  # noqa: TC001  # msgspec looks it up to decode a record

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RECORD_VERSION", "AllocationRecord", "Told", "changed", "own_blocks", "settle", "subnets_in_use", "why_not"]

RECORD_VERSION = 1

_replace = msgspec.structs.replace


class AllocationRecord(Record, frozen=True):
    """What the state folder keeps of one Allocation of this node.

    `own`: the agent made it, no file did. `file_seen`: files decide (see the module). `network` is the Network it
    is for, as it was last; with `network_gone` that one is gone or going, whatever stands in the folder by now.
    `released`: the Allocation has ended; the record stays only for `file_seen`.
    """

    version: int
    allocation: Allocation
    own: bool = False
    file_seen: bool = False
    network: Network | None = None
    network_gone: bool = False
    released: bool = False

    @property
    def live(self) -> bool:
        """Whether there is an Allocation."""
        return not self.released


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of one network at one moment.

    `file` is this node's Allocation file, `elsewhere` one for another node. `sure`: what is absent is gone.
    `obstacle` says why nothing may be newly admitted (empty: it may). `now` is RFC 3339, `uid` for a new object.
    """

    name: str
    node: str
    network: Network | None
    file: Allocation | None
    elsewhere: Allocation | None
    sure: bool
    obstacle: str
    now: str
    uid: str

    @property
    def leaving(self) -> bool:
        """Whether the Network is gone for certain, or somebody asked for that."""
        return self.network.metadata.deleting if self.network is not None else self.sure

    @property
    def open(self) -> bool:
        """Whether an admission is possible at all."""
        return self.network is not None and not self.network.metadata.deleting and not self.obstacle and self.sure


def settle(told: Told, record: AllocationRecord | None) -> AllocationRecord | None:
    """What the record becomes, given what is told. Settling twice changes nothing the second time."""
    seen = bool(record and record.file_seen and not told.leaving) or told.file is not None or told.elsewhere is not None
    if record is not None and record.live:
        record = _go_on(told, record, seen=seen)
        if record.live:
            return record
    if told.open and told.network is not None:
        if told.file is not None and not told.file.metadata.deleting:
            return _begin(told, told.network, told.file.spec, own=False)
        if not seen:
            return _begin(told, told.network, _own_spec(told, told.network), own=True)
    return _tombstone(told, record) if seen else None


def why_not(told: Told, record: AllocationRecord | None) -> str:
    """Why a Network has no Allocation here, for a person. Only for a `record` that is None or released."""
    if told.network is not None and told.network.metadata.deleting:
        return f"Network {told.name} is being deleted"
    if told.obstacle:
        return told.obstacle
    if told.file is not None:
        return f"Allocation {told.file.name} is being deleted"
    if told.elsewhere is not None:
        return f"Allocation files give it to other nodes ({told.elsewhere.spec.node} …) and none to {told.node}"
    if record is not None and record.file_seen:
        return (
            f"the file of Allocation {record.allocation.name} was removed; put one back, or remove the Network and "
            "add it again"
        )
    return "it is being admitted"


def changed(
    record: AllocationRecord, finalizers: Sequence[str] | None, status: AllocationStatus | None
) -> AllocationRecord | None:
    """The record with other finalizers or status; None if that is refused, as the API server would.

    Refused is what is not there any more, and a new finalizer on an object that is being deleted.
    """
    if record.released:
        return None
    meta = record.allocation.metadata
    wanted = meta.finalizers if finalizers is None else tuple(dict.fromkeys(finalizers))
    if meta.deleting and not set(wanted) <= set(meta.finalizers):
        return None
    return _replace(
        record,
        allocation=_replace(
            record.allocation,
            metadata=_replace(meta, finalizers=wanted),
            status=record.allocation.status if status is None else status,
        ),
    )


def own_blocks(network: Network, before: tuple[Block, ...] = ()) -> tuple[Block, ...]:
    """The blocks of a Network admitted whole: each subnet is one, in the order they came.

    A closed subnet is not taken up, but one that was taken up before it was closed stays: leases may be in it. On
    L2 there are no blocks; the subnets are served as they are.
    """
    if network.spec.type is Layer.L2:
        return ()
    subnets = {subnet.cidr: subnet for subnet in network.spec.subnets}
    kept = tuple(block for block in before if block.cidr in subnets)
    taken = {block.cidr for block in kept}
    added = (cidr for cidr, subnet in subnets.items() if cidr not in taken and not subnet.closed)
    return (*kept, *(Block(cidr, "Confirmed") for cidr in added))


def subnets_in_use(network: Network, record: AllocationRecord | None) -> frozenset[str]:
    """Which subnets hold a lease or a cooling address here, by the status recorded last.

    A subnet with a block that the status does not speak of counts as in use: it may be.
    """
    if record is None or record.released:
        return frozenset()
    allocation = record.allocation
    told = {use.cidr: use for use in allocation.status.blocks}
    unknown = [block.prefix for block in allocation.spec.blocks if block.cidr not in told]
    used = [Block(use.cidr, "Confirmed").prefix for use in told.values() if use.in_use != "0" or use.cooling != "0"]
    return frozenset(
        subnet.cidr
        for subnet in network.spec.subnets
        if any(prefix.overlaps(subnet.prefix) for prefix in (*unknown, *used))
    )


def _go_on(told: Told, record: AllocationRecord, *, seen: bool) -> AllocationRecord:
    """An Allocation that exists: take up what changed, or begin or end its drain."""
    own = record.own and told.file is None
    gone = record.network_gone or told.leaving
    allocation = record.allocation
    meta = allocation.metadata
    if not meta.deleting:
        spec = _spec(told, record)
        if spec != allocation.spec:
            meta = _replace(meta, generation=meta.generation + 1)
        if _ends(told, own=own, gone=gone):
            meta = _replace(meta, deletion_timestamp=told.now)
        allocation = _replace(allocation, spec=spec, metadata=meta)
    network = record.network
    if not record.network_gone and told.network is not None:
        network = told.network
    record = _replace(record, allocation=allocation, own=own, file_seen=seen, network=network, network_gone=gone)
    if meta.deleting and not meta.finalizers:
        return _released(record)
    return record


def _ends(told: Told, *, own: bool, gone: bool) -> bool:
    if gone:
        return True
    if told.file is not None:
        return told.file.metadata.deleting
    return not own and told.sure


def _spec(told: Told, record: AllocationRecord) -> AllocationSpec:
    spec = record.allocation.spec
    if told.file is not None:
        return told.file.spec
    if record.own and told.network is not None and not record.network_gone:
        return _own_spec(told, told.network, spec.blocks)
    return spec


def _own_spec(told: Told, network: Network, before: tuple[Block, ...] = ()) -> AllocationSpec:
    return AllocationSpec(
        network=network.name,
        network_uid=network.metadata.uid,
        node=told.node,
        type=network.spec.type,
        network_id=network.spec.network_id,
        # With files for other nodes the network is shared out by files: nothing new from the whole of it.
        closed=told.elsewhere is not None,
        blocks=own_blocks(network, before),
    )


def _begin(told: Told, network: Network, spec: AllocationSpec, *, own: bool) -> AllocationRecord:
    """A new Allocation. Our own has the finalizer from birth; on a file's, the agent puts it (I4)."""
    meta = ObjectMeta(
        name=allocation_name(told.name, told.node),
        uid=told.uid,
        generation=1,
        creation_timestamp=told.now,
        finalizers=(NODE_FINALIZER,) if own else (),
    )
    return AllocationRecord(
        version=RECORD_VERSION,
        allocation=Allocation(metadata=meta, spec=spec),
        own=own,
        file_seen=not own,
        network=network,
    )


def _released(record: AllocationRecord) -> AllocationRecord:
    """What is left of an Allocation that has ended."""
    allocation = record.allocation
    return AllocationRecord(
        version=RECORD_VERSION,
        allocation=Allocation(metadata=ObjectMeta(name=allocation.name), spec=_replace(allocation.spec, blocks=())),
        file_seen=record.file_seen,
        released=True,
    )


def _tombstone(told: Told, record: AllocationRecord | None) -> AllocationRecord:
    """The mark that files decide over this network."""
    if record is not None:
        return _replace(record, file_seen=True)
    source = told.file or told.elsewhere
    layer = source.spec.type if source is not None else Layer.L3
    spec = AllocationSpec(network=told.name, node=told.node, type=layer)
    return AllocationRecord(
        version=RECORD_VERSION,
        allocation=Allocation(metadata=ObjectMeta(name=allocation_name(told.name, told.node)), spec=spec),
        file_seen=True,
        released=True,
    )
