"""Which leases are orphans, judged from looks alone. Pure: no I/O, no clock; leases and looks in, verdicts out.

A lease is an orphan when its owner is provably gone: two looks in a row, 30 s apart or more, say so (I8), of a lease
that is two minutes old or more. What a look says of one lease:

- Where a runtime's socket is configured, the runtime is asked first: a sandbox that it lists, in whatever state, is
  there. That the Pod object is gone says nothing, since with a grace period of 0 it goes first.
- Without one, the pods of this node and the network namespace must both say that the owner is gone.
- A source that can't be read, or is stale, says nothing: neither does the whole look, and what was suspected before is
  suspected no longer.

What a runtime's list is not believed in:

- Whose network namespace is there, may use the address, whatever the list says: the sandbox is being made (containerd
  lists one when its pause container runs, and may have to pull that one's image first), or the runtime has lost it.
  Such a lease is held, and told of. Where the namespace can't be looked at, a lease is taken for one in the making for
  as long as that may take.
- Containers that were not made for a pod (nerdctl, podman) are on no list of sandboxes. Their leases name no pod's
  UID, and are left to CNI GC and to `allotment gc`.
- A list without a single sandbox that a lease of ours belongs to may be another runtime's, or not whole. It is doubted
  while anything shows life: a namespace of one of the leases or, if the list is empty, a pod (I15).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from allotment.addressing.lease import LeaseKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from allotment.addressing.lease import Lease, Moment

__all__ = [
    "BETWEEN_LOOKS",
    "IN_THE_MAKING",
    "YOUNGEST",
    "Judged",
    "Look",
    "Pods",
    "Sandboxes",
    "Suspect",
    "Unreadable",
    "Verdict",
    "judge",
    "missing",
    "of_a_pod",
]

BETWEEN_LOOKS: Final = 30.0
"""Seconds between two looks that both count, at least."""
YOUNGEST: Final = 120.0
"""Seconds that a lease must be old."""
IN_THE_MAKING: Final = 600.0
"""Seconds within which a runtime has made a sandbox or given it up; the kubelet grants it 4 minutes by default."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A source that can't be asked, or doesn't know what is true now; `why` is for people."""

    why: str


@dataclass(frozen=True, slots=True)
class Sandboxes:
    """What a runtime answered: the IDs of all its sandboxes, ready or not."""

    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of this node by UID, as a live watch has them; a static pod is in it by both of its UIDs."""

    uids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen. `at` is when the look began: the leases to be judged were read then, before any source.

    `sandboxes` None: no runtime is configured; `pods` None: this node has no such source. `gone` has, for each path of
    a namespace that was looked at, whether it is gone; None, or a path that isn't in it: not known.
    """

    at: Moment
    sandboxes: Sandboxes | Unreadable | None
    pods: Pods | Unreadable | None = None
    gone: Mapping[str, bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judged:
    """A lease, and what was found of its owner; `evidence` goes to the history."""

    lease: Lease
    evidence: str


@dataclass(frozen=True, slots=True)
class Suspect(Judged):
    """A lease whose owner looks gone, since the look at `since`."""

    since: Moment


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a look.

    `orphans` may be freed. `suspects`, by sequence number, are handed to the next look; orphans are among them. `held`
    are those that the runtime doesn't know and that may be alive all the same. `blind` says why nothing could be
    judged; empty when all was.
    """

    orphans: tuple[Judged, ...] = ()
    suspects: Mapping[int, Suspect] = field(default_factory=dict)
    held: tuple[Judged, ...] = ()
    blind: str = ""


def of_a_pod(lease: Lease) -> bool:
    """Whether the lease was asked for by a runtime of the kubelet: containerd and CRI-O tell the pod's UID."""
    return lease.owner.kind is LeaseKind.POD and bool(lease.owner.pod_uid)


def missing(leases: Iterable[Lease], sandboxes: Sandboxes | None, pods: Pods | None) -> tuple[Lease, ...]:
    """Those whose owner the deciding source doesn't show: the ones whose namespaces have to be looked at."""
    if sandboxes is not None:
        return tuple(lease for lease in leases if of_a_pod(lease) and lease.owner.container_id not in sandboxes.ids)
    if pods is not None:
        return tuple(lease for lease in leases if of_a_pod(lease) and lease.owner.pod_uid not in pods.uids)
    return ()


def judge(leases: Iterable[Lease], look: Look, earlier: Mapping[int, Suspect]) -> Verdict:
    """Judge the pod leases of this boot by a look, and by what the look before it suspected."""
    old = [lease for lease in leases if of_a_pod(lease) and _age(lease, look) >= YOUNGEST]
    if isinstance(look.sandboxes, Unreadable):
        return Verdict(blind=look.sandboxes.why)
    if look.sandboxes is not None:
        found, held, blind = _by_the_runtime(old, look, look.sandboxes)
    elif isinstance(look.pods, Unreadable):
        return Verdict(blind=look.pods.why)
    elif look.pods is not None:
        found, held, blind = _by_pods(old, look, look.pods)
    else:
        return Verdict(blind="neither a runtime nor the node's pods can be asked whether the owners are there")
    suspects: dict[int, Suspect] = {}
    orphans: list[Judged] = []
    for lease, evidence in found:
        before = earlier.get(lease.sequence)
        apart = None if before is None else look.at.since(before.since)
        if before is None or apart is None or apart < 0:
            suspects[lease.sequence] = Suspect(lease, evidence, look.at)
            continue
        suspects[lease.sequence] = Suspect(lease, evidence, before.since)
        if apart >= BETWEEN_LOOKS:
            orphans.append(Judged(lease, f"{evidence}, in looks {apart:.0f} s apart"))
    return Verdict(tuple(orphans), suspects, held, blind)


_Found = tuple[list[tuple["Lease", str]], tuple[Judged, ...], str]
"""Leases that look like orphans, each with the evidence; those that are held; why nothing could be judged."""


def _by_the_runtime(leases: Sequence[Lease], look: Look, answer: Sandboxes) -> _Found:
    unknown = missing(leases, answer, None)
    if unknown and len(unknown) == len(leases) and (doubt := _signs_of_life(unknown, look, answer)):
        return [], (), doubt
    found: list[tuple[Lease, str]] = []
    held: list[Judged] = []
    for lease in unknown:
        gone = look.gone.get(lease.netns)
        in_the_making = _age(lease, look) < IN_THE_MAKING
        if gone:
            found.append(
                (lease, f"the runtime doesn't know its sandbox, and its network namespace {lease.netns} is gone")
            )
        elif gone is None and not in_the_making:
            found.append((lease, "the runtime doesn't know its sandbox"))
        elif gone is False and not in_the_making:
            held.append(
                Judged(lease, f"the runtime doesn't know its sandbox, but its network namespace {lease.netns} is there")
            )
    return found, tuple(held), ""


def _signs_of_life(leases: Sequence[Lease], look: Look, answer: Sandboxes) -> str:
    """Why an answer that knows none of our sandboxes isn't believed; empty if nothing speaks against it."""
    states = [look.gone.get(lease.netns) for lease in leases]
    if False in states:
        sign = f"the network namespace {leases[states.index(False)].netns} of one of them is there"
    elif not answer.ids and isinstance(look.pods, Pods) and look.pods.uids:
        sign = f"{len(look.pods.uids)} pods are bound to this node"
    elif None in states:
        sign = "their network namespaces can't be looked at"
    else:
        return ""
    return (
        f"the runtime knows none of the {len(leases)} sandboxes that hold addresses, and {sign}; see that "
        "--runtime-socket names the runtime that starts the pods here"
    )


def _by_pods(leases: Sequence[Lease], look: Look, pods: Pods) -> _Found:
    gone = [lease for lease in missing(leases, None, pods) if look.gone.get(lease.netns)]
    if not pods.uids and any(look.gone.get(lease.netns) is False for lease in leases):
        return [], (), "no pod is bound to this node, it is said, but network namespaces of pods are there"
    evidence = "its pod {uid} is gone, and so is its network namespace {netns}"
    return [(lease, evidence.format(uid=lease.owner.pod_uid, netns=lease.netns)) for lease in gone], (), ""


def _age(lease: Lease, look: Look) -> float:
    """Seconds since the lease was given; one of another boot, which is none of ours, has none."""
    age = look.at.since(lease.since)
    return -1.0 if age is None else age
