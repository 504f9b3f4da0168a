"""What a node is told: the `View`, and the `Source` it comes from (a folder of manifests, or the API server).

A View is whole and immutable. Whoever reads it never asks the source again, so nothing that decides waits for one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from allotment.api.allocation import Allocation, AllocationStatus
    from allotment.api.ipamconfig import IPAMConfig
    from allotment.api.network import Network
    from allotment.api.reservation import IPReservation

__all__ = ["FileProblem", "Source", "View"]


@dataclass(frozen=True, slots=True, order=True)
class FileProblem:
    """Something wrong with what a source was given. `line` counts from 1; 0 means the file as a whole."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


@dataclass(frozen=True, slots=True)
class View:
    """All that a node is told, at one moment.

    `networks` are by name; one that is being deleted stays in it, with its `deletionTimestamp`, until this node's
    Allocation of it has ended. `allocations` are this node's, by network. `unadmitted` says, for a network without an
    Allocation, why there is none; `unselected` are the networks whose nodeSelector leaves this node out. `pod_limit` is
    how many pods the node takes, None where nobody says. `unseen` says, for a network with an Allocation, why its
    Network is missing although it may be there; a Network that is missing and not among them is gone. `problems` are
    what could not be read or made no sense: the last good state of it is kept. `whole` is false while some of what was
    given can't be read at all, and may speak of anything: nobody is newly admitted then, and nothing is taken for
    removed. `warnings` stand in nobody's way. `doubted` says why the source's emptiness is not believed (the View is
    the last one that was); empty means that it is not doubted. `synced` is false until the source, or what was kept of
    it, has been read. `lost_contact` is since when (`Clock.seconds`) the source cannot be asked; None while it can.
    `local_l2` says whether this node gives an L2 network's addresses by itself, as one host alone may; in a cluster
    they come by Claim. `controlled` says whether somebody gives this node blocks and takes them, by what the
    Allocations' status says.
    """

    networks: Mapping[str, Network] = field(default_factory=lambda: MappingProxyType({}))
    allocations: Mapping[str, Allocation] = field(default_factory=lambda: MappingProxyType({}))
    reservations: Mapping[str, IPReservation] = field(default_factory=lambda: MappingProxyType({}))
    config: IPAMConfig | None = None
    unadmitted: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    unselected: frozenset[str] = frozenset()
    pod_limit: int | None = None
    unseen: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[FileProblem, ...] = ()
    warnings: tuple[FileProblem, ...] = ()
    doubted: str = ""
    synced: bool = False
    whole: bool = True
    lost_contact: float | None = None
    local_l2: bool = False
    controlled: bool = False


class Source(Protocol):
    """Where Views come from, and where the agent's own words about its Allocations go."""

    @property
    def place(self) -> str:
        """Where that is, for a person: the folder, or the API server's URL."""
        ...

    async def run(self, publish: Callable[[View], None], *, known: bool = False) -> None:
        """Publish a whole new View at each change; never returns.

        `known` says that this node has a View from before, in which there were objects.
        """
        ...

    async def record(
        self, seen: Allocation, *, finalizers: Sequence[str] | None = None, status: AllocationStatus | None = None
    ) -> bool:
        """Write an Allocation's finalizers (the whole list) or status, or both; None leaves as it is.

        `seen` is the Allocation as it was when this was decided: another one under its name is not written to.

        Returns once it is durable and a View that shows it has been published. False means that it was refused and
        nothing was written: there is no such Allocation (any more), or a finalizer was to be added to one that is
        being deleted. An Allocation that is being deleted is gone once its last finalizer is.

        Raises:
            TryAgain: it could not be written now.
        """
        ...

    async def forget(self, seen: Allocation) -> None:
        """Let a drained Allocation go: its finalizers are dropped. Nothing happens to one that isn't being deleted.

        Raises:
            TryAgain: it could not be written now.
        """
        ...
