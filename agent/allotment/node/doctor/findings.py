"""What `allotment doctor` finds, judged from what was seen. Pure: memory, disk and kernel come in, findings go out.

Memory and disk can't be read at one moment. A lease begins once and ends once, and each of the two can make one look
at disk and memory disagree; so what is said of one and the same lease (its sequence number) in three looks is none of
that. `lasting` keeps that alone.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from allotment.addressing.address import parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from allotment.addressing.address import Address
    from allotment.addressing.intervals import IntervalSet
    from allotment.node.inquiries.reports import LeaseReport
    from allotment.node.namespaces import SeenNamespace
    from allotment.node.rebuilding.evidence import CachedAttachment

__all__ = [
    "Finding",
    "Severity",
    "compare_books",
    "earlier_boots",
    "held_twice",
    "lasting",
    "misplaced",
    "namespaces_gone",
    "remembered_without_lease",
    "without_lease",
]

_YOUNG = 30.0


class Severity(enum.StrEnum):
    """PROBLEM: something is wrong, and `doctor` exits 1. WARNING: it may become so. NOTE: good to know."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was found: what, where, and what to do about it."""

    severity: Severity
    check: str
    where: str
    what: str
    advice: str


def lasting(*looks: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings that are the same in every look, in the order of the last one."""
    *earlier, last = [tuple(look) for look in looks]
    return tuple(finding for finding in last if all(finding in look for look in earlier))


def compare_books(disk: Iterable[LeaseReport], memory: Iterable[LeaseReport]) -> tuple[Finding, ...]:
    """Leases that only the disk, or only the agent's memory, knows, or that they tell differently."""
    on_disk = {_place(lease): lease for lease in disk}
    in_memory = {_place(lease): lease for lease in memory}
    found: list[Finding] = []
    for place in sorted(on_disk.keys() | in_memory.keys()):
        kept, held = on_disk.get(place), in_memory.get(place)
        if kept == held:
            continue
        if held is None and kept is not None:
            what = f"the ledger has lease {kept.sequence} of {_who(kept)}, and the agent knows nothing of it"
        elif kept is None and held is not None:
            what = f"the agent has lease {held.sequence} of {_who(held)}, and it is not on disk"
        elif kept is not None and held is not None:
            what = (
                f"the ledger has lease {kept.sequence} of {_who(kept)}, the agent lease {held.sequence} of {_who(held)}"
            )
        else:
            continue
        advice = "restart the agent: it serves what the ledger says. Please report this, with `allotment history`"
        found.append(Finding(Severity.PROBLEM, "memory and disk", _at(place), what, advice))
    return tuple(found)


def held_twice(leases: Iterable[LeaseReport], source: str) -> tuple[Finding, ...]:
    """Addresses with two leases in one network (I1)."""
    by_place: dict[tuple[str, str], list[LeaseReport]] = defaultdict(list)
    for lease in leases:
        by_place[_place(lease)].append(lease)
    return tuple(
        Finding(
            Severity.PROBLEM,
            "one owner",
            _at(place),
            f"{source} has it twice: " + ", ".join(f"lease {lease.sequence} of {_who(lease)}" for lease in several),
            "delete the pods that share it, the younger one first, and report this",
        )
        for place, several in sorted(by_place.items())
        if len(several) > 1
    )


def earlier_boots(leases: Iterable[LeaseReport], boot: str, *, running: bool) -> tuple[Finding, ...]:
    """Pod leases of an earlier boot: no sandbox of theirs exists, and the agent ends them when it starts."""
    old = [lease for lease in leases if lease.boot != boot and lease.kind == "pod"]
    if not old:
        return ()
    names = _some([f"{lease.address} ({_who(lease)})" for lease in old])
    return (
        Finding(
            Severity.PROBLEM if running else Severity.NOTE,
            "boot",
            f"{len(old)} lease{'s' if len(old) > 1 else ''}",
            f"given before this boot of the machine, and still held: {names}",
            "see in the agent's log what keeps it from ending them"
            if running
            else "the agent ends them when it starts",
        ),
    )


def namespaces_gone(
    leases: Iterable[LeaseReport], boot: str, gone: Callable[[str], bool | None]
) -> tuple[Finding, ...]:
    """Leases whose network namespace is gone: the pod has ended, and no DEL arrived. One finding for a namespace."""
    by_path: dict[str, list[LeaseReport]] = defaultdict(list)
    for lease in _ordered(leases):
        if lease.boot == boot and lease.kind == "pod":
            by_path[lease.netns].append(lease)
    return tuple(
        Finding(
            Severity.PROBLEM,
            "namespace",
            _some([_where(lease) for lease in held]),
            f"held by {_who(held[0])}, whose network namespace {path} is gone",
            "`allotment gc` shows such leases, and frees them with --yes",
        )
        for path, held in by_path.items()
        if gone(path)
    )


def remembered_without_lease(
    leases: Iterable[LeaseReport], cached: Iterable[CachedAttachment], gone: Callable[[str], bool | None]
) -> tuple[Finding, ...]:
    """Attachments that the runtime's libcni remembers, whose namespace is there, and that have no lease."""
    held = {(lease.network, lease.container, lease.interface) for lease in leases}
    return tuple(
        Finding(
            Severity.PROBLEM,
            "runtime",
            f"{_some([str(address) for address in attachment.addresses])} in network {attachment.owner.network}",
            f"libcni remembers them for container {attachment.owner.container_id[:12]}, interface "
            f"{attachment.owner.interface}, whose network namespace {attachment.netns} is there, and it has no lease",
            "delete that pod; one that is made anew gets a lease",
        )
        for attachment in cached
        if attachment.addresses and attachment.owner.key not in held and gone(attachment.netns) is False
    )


def without_lease(
    leases: Iterable[LeaseReport], namespaces: Iterable[SeenNamespace], blocks: IntervalSet, gateways: IntervalSet
) -> tuple[Finding, ...]:
    """Addresses of our blocks that somebody uses without a lease, or while another holds the lease (I1)."""
    holders: dict[Address, list[LeaseReport]] = defaultdict(list)
    for lease in leases:
        holders[parse_address(lease.address)].append(lease)
    found: list[Finding] = []
    for namespace in namespaces:
        path = min(namespace.paths)
        for address, interface in namespace.addresses:
            if address not in blocks or address in gateways:
                continue
            held = holders.get(address, [])
            # A lease without a path, or with one that names the namespace in a way we don't see, may be this one's.
            if any(not lease.netns or lease.netns in namespace.paths for lease in held):
                continue
            where = f"{address} on {interface} in {path}"
            if held and any(lease.netns.startswith("/proc/") for lease in held):
                continue
            if held:
                what = f"it is configured here, and leased to {_who(held[0])} with the namespace {held[0].netns}"
                advice = f"two use one address: delete what runs in {path}, and what it says of itself with it"
            else:
                what = "it is configured, lies in a block of this node, and has no lease: it could be given to another"
                advice = "find what runs there and delete it; a pod that is made anew gets a lease"
            found.append(Finding(Severity.PROBLEM, "kernel", where, what, advice))
    return tuple(found)


def misplaced(
    leases: Iterable[LeaseReport], namespaces: Sequence[SeenNamespace], now: tuple[str, float]
) -> tuple[Finding, ...]:
    """Leases whose namespace is there without the address. `now` is boot and seconds; the youngest are passed over."""
    inside = {path: {address for address, _ in seen.addresses} for seen in namespaces for path in seen.paths}
    boot, seconds = now
    return tuple(
        Finding(
            Severity.WARNING,
            "kernel",
            _where(lease),
            f"{_who(lease)} holds it, but in its network namespace {lease.netns} it is not configured",
            "recreate the pod if it has no network; an ADD that failed half-way is cleared up by the runtime's DEL",
        )
        for lease in _ordered(leases)
        if lease.netns in inside
        and parse_address(lease.address) not in inside[lease.netns]
        and lease.boot == boot
        and seconds - lease.seconds >= _YOUNG
    )


def _ordered(leases: Iterable[LeaseReport]) -> list[LeaseReport]:
    return sorted(leases, key=lambda lease: (lease.network, parse_address(lease.address)))


def _place(lease: LeaseReport) -> tuple[str, str]:
    return (lease.network, lease.address)


def _at(place: tuple[str, str]) -> str:
    return f"{place[1]} in network {place[0]}"


def _where(lease: LeaseReport) -> str:
    return _at(_place(lease))


def _who(lease: LeaseReport) -> str:
    return f"pod {lease.pod_namespace}/{lease.pod}" if lease.pod else f"container {lease.container[:12]}"


def _some(names: Sequence[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
