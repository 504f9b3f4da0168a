"""What those who saw the pods running have to say of them. Plain, frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allotment.addressing.address import Address
    from allotment.addressing.lease import Owner
    from allotment.cri.messages import Sandbox
    from allotment.node.namespaces import SeenNamespace

__all__ = ["CachedAttachment", "Evidence", "RunningPod"]


@dataclass(frozen=True, slots=True)
class CachedAttachment:
    """What libcni remembers of one ADD that asked us: the owner, and every address in the final result."""

    owner: Owner
    netns: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A pod as the API server has it: bound to this node, not ended, and not in the node's own network.

    `uids` are two for a static pod: its mirror's, and the one that the runtime knows. `addresses` are those in its
    status.
    """

    namespace: str
    name: str
    uids: frozenset[str]
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was heard.

    `sandboxes` have their status. `gone` are the paths of namespaces that somebody told of and that are provably not
    there any more; a path that is neither in it nor among the `namespaces` proves nothing. `unheard` says, for people,
    who could not be asked though his word was not needed.
    """

    cached: tuple[CachedAttachment, ...] = ()
    sandboxes: tuple[Sandbox, ...] = ()
    pods: tuple[RunningPod, ...] = ()
    namespaces: tuple[SeenNamespace, ...] = ()
    gone: frozenset[str] = frozenset()
    unheard: tuple[str, ...] = ()
