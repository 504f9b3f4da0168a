"""What a lease is, who owns it, and the changes that the ledger writes down.

Everything here is plain, frozen data. A dual-stack attachment is two leases with one owner.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allotment.addressing.address import Address, Prefix

__all__ = [
    "AttachmentKey",
    "Cause",
    "Change",
    "Forgotten",
    "Granted",
    "Lease",
    "LeaseKind",
    "Moment",
    "Owner",
    "Released",
    "Rest",
    "Rested",
    "handle",
    "kept_for",
]

AttachmentKey = tuple[str, str, str]
"""(network, container ID, interface): what identifies an attachment; ADD is idempotent for it."""


class LeaseKind(enum.StrEnum):
    """Who can own a lease. Orphan search, CNI GC and last-out count pod leases only."""

    POD = "pod"
    TUNNEL = "tunnel"
    VM = "vm"  # kept for a virtual machine that no pod runs now


class Cause(enum.StrEnum):
    """Why a lease ended; kept in the history and told by `allotment explain`."""

    DEL = "del"  # the runtime's DEL
    WORKLOAD = "workload"  # a DEL that named the pod by another container ID
    SPOOL = "spool"  # a DEL that the shim kept while the agent was away
    GC = "gc"  # CNI GC: not in the list of valid attachments
    BOOT = "boot"  # the machine was restarted: no sandbox of the earlier boot exists
    HANG_UP = "hang-up"  # the caller was gone before it got its answer
    ORPHAN = "orphan"  # the owner is provably gone
    OPERATOR = "operator"  # a person said so
    RESUMED = "resumed"  # the virtual machine that it was kept for has a pod again, and that has it
    UNKEPT = "unkept"  # it is no longer kept for its virtual machine


@dataclass(frozen=True, slots=True)
class Moment:
    """A point on the clock that never jumps (I13): seconds of CLOCK_BOOTTIME within one boot.

    Moments of different boots can't be compared; `since` says None, and the caller starts the wait anew.
    """

    boot: str
    seconds: float

    def since(self, earlier: Moment) -> float | None:
        """Seconds from `earlier` to here, or None when they belong to different boots."""
        return self.seconds - earlier.seconds if self.boot == earlier.boot else None


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a lease. Equality is decided on these fields, never on the handle's text.

    `conf_name` is the `name` of the CNI configuration the lease was asked under (CNI GC works by it). `vm` is the
    virtual machine that the pod runs, by its name in the pod's namespace; empty for any other pod.
    """

    network: str
    container_id: str
    interface: str
    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    conf_name: str = ""
    kind: LeaseKind = LeaseKind.POD
    vm: str = ""

    @property
    def key(self) -> AttachmentKey:
        """What ADD is idempotent for."""
        return (self.network, self.container_id, self.interface)

    @property
    def workload(self) -> str:
        """`<namespace>.<pod>`, the second key a lease can be found by; empty without a pod."""
        return f"{self.pod_namespace}.{self.pod_name}" if self.pod_name else ""

    @property
    def machine(self) -> str:
        """`<namespace>/<vm>`, by which a virtual machine's leases are found; empty for others."""
        return f"{self.pod_namespace}/{self.vm}" if self.vm else ""


def kept_for(owner: Owner) -> Owner:
    """The owner of an address that is kept for the virtual machine of `owner`, whose pod has ended.

    In place of a container it has `<namespace>/<vm>`, which no container's ID can be.
    """
    return Owner(
        network=owner.network,
        container_id=owner.machine,
        interface=owner.interface,
        pod_namespace=owner.pod_namespace,
        kind=LeaseKind.VM,
        vm=owner.vm,
    )


def handle(owner: Owner) -> str:
    """The owner as text, for people, logs and export: `<network>.<container-id>`, or `<network>.<namespace>-<vm>`."""
    return f"{owner.network}.{owner.pod_namespace}-{owner.vm}" if owner.vm else f"{owner.network}.{owner.container_id}"


@dataclass(frozen=True, slots=True)
class Lease:
    """One address held by one owner.

    `block` is the block the address was given from; `sequence` grows with every grant of this ledger, so that a
    release can name the lease it means (I7); `since` orders it against requests; `wall` (Unix time) is for people;
    `netns` is the network namespace path the request named, kept as evidence.
    """

    address: Address
    block: Prefix
    owner: Owner
    sequence: int
    since: Moment
    wall: float
    netns: str = ""


@dataclass(frozen=True, slots=True)
class Rest:
    """A run of released addresses (mostly one) that were used before, with the latest time one was released.

    Within the network's cooldown they are cooling; afterwards they are free, but the longest idle goes first and
    never-used ones go before (I3).
    """

    network: str
    block: Prefix
    first: Address
    last: Address
    released: Moment
    wall: float


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease begins; its address leaves the rest, if it was there."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Released:
    """A lease ends: its row goes to the history with cause and detail, its address starts to rest.

    `detail` is what a person would ask next: the request ID, or the evidence.
    """

    lease: Lease
    at: Moment
    wall: float
    cause: Cause
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Rested:
    """Rests are replaced by one that covers exactly the same addresses.

    Either several that are no longer cooling are joined into a run, as old as the youngest of them (keeps memory and
    file bounded); or one is written anew, because it was released in another boot (I13) or its block was cut anew.
    """

    before: tuple[Rest, ...]
    after: Rest


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A block is no longer ours: what rests under its name is forgotten (all of it has cooled)."""

    network: str
    block: Prefix


@dataclass(frozen=True, slots=True)
class Supposed:
    """Addresses of which nobody knows when they were used last are taken to have been released now.

    The ledger that knew is lost (I3). To write it twice is as good as once.
    """

    rest: Rest


Change = Granted | Released | Rested | Forgotten | Supposed
"""What the lease book decides and the ledger writes; one commit takes any number, all or none."""
