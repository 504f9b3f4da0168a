"""Leases, past leases and networks as the reports tell of them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.edges import edge_name
from allotment.addressing.errors import ConfigError, NetworkClosed, NetworkDraining
from allotment.addressing.lease import LeaseKind
from allotment.api.names import claim_name, pool_name
from allotment.node.inquiries.reports import (
    Ended,
    HistoryEntry,
    LeaseReport,
    NetworkReport,
    Phase,
    ProblemReport,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from allotment.addressing.address import Address
    from allotment.addressing.lease import Lease, Owner
    from allotment.addressing.plan import NetworkPlan
    from allotment.ledger.history import HistoryRow
    from allotment.node.view import FileProblem, View

__all__ = [
    "SHORTEST_PREFIX",
    "current_entry",
    "held_back",
    "lease_report",
    "means_container",
    "network_report",
    "past_entry",
    "phase_of",
    "problem_reports",
    "split_pod",
    "who",
]

SHORTEST_PREFIX = 4
"""So many of a container ID's first characters are taken for it; fewer would find too many."""
_NAMED = 8


def lease_report(lease: Lease) -> LeaseReport:
    """The lease as it is told."""
    owner = lease.owner
    return LeaseReport(
        network=owner.network,
        address=str(lease.address),
        block=str(lease.block),
        container=owner.container_id,
        interface=owner.interface,
        pod_namespace=owner.pod_namespace,
        pod=owner.pod_name,
        pod_uid=owner.pod_uid,
        conf_name=owner.conf_name,
        kind=owner.kind.value,
        sequence=lease.sequence,
        given=time_of(lease.wall),
        boot=lease.since.boot,
        seconds=lease.since.seconds,
        netns=lease.netns,
        vm=owner.vm,
    )


def current_entry(lease: Lease) -> HistoryEntry:
    """A lease that is held, as an entry of the history."""
    return _entry(lease.owner, str(lease.address), lease.sequence, lease.wall, None)


def past_entry(row: HistoryRow) -> HistoryEntry:
    """A lease that ended."""
    ended = Ended(time_of(row.ended), row.cause.value, row.detail)
    return _entry(row.owner, str(row.address), row.sequence, row.began, ended)


def _entry(owner: Owner, address: str, sequence: int, given: float, ended: Ended | None) -> HistoryEntry:
    return HistoryEntry(
        network=owner.network,
        address=address,
        container=owner.container_id,
        interface=owner.interface,
        pod_namespace=owner.pod_namespace,
        pod=owner.pod_name,
        pod_uid=owner.pod_uid,
        conf_name=owner.conf_name,
        kind=owner.kind.value,
        sequence=sequence,
        given=time_of(given),
        ended=ended,
        vm=owner.vm,
    )


def who(owner: Owner) -> str:
    """An owner in few characters: the pod, or else the virtual machine or the container."""
    if owner.kind is LeaseKind.VM:
        return f"virtual machine {owner.machine}"
    return f"{owner.pod_namespace}/{owner.pod_name}" if owner.pod_name else f"container {owner.container_id[:12]}"


def claim_of(lease: Lease) -> str:
    """The Claim behind a pod's lease of a network that gives by Claim, as `namespace/name`."""
    owner = lease.owner
    pool = pool_name(owner.network, lease.address.family)
    return f"{owner.pod_namespace}/{claim_name(owner.pod_name, pool, owner.container_id, owner.interface)}"


def means_container(text: str, owner: Owner) -> bool:
    """Whether a person who writes `text` means this owner's container: its ID, or enough of its first characters."""
    container_id = owner.container_id
    if owner.kind is LeaseKind.VM:  # it has none
        return False
    return text == container_id or (len(text) >= SHORTEST_PREFIX and container_id.startswith(text))


def split_pod(text: str) -> tuple[str, str]:
    """Namespace and name of a pod; `/NAME` is one without a namespace, as podman's containers are.

    Raises:
        ConfigError: it isn't written so.
    """
    namespace, slash, name = text.partition("/")
    if not slash or not name or "/" in name:
        raise ConfigError(
            f"{text!r} names no pod; write it NAMESPACE/POD, such as default/web-0, or /NAME where there is no "
            "namespace (podman)"
        )
    return namespace, name


def phase_of(name: str, plan: NetworkPlan | None) -> tuple[Phase, str]:
    """What a network is doing here, and why it gives nothing new (empty while it does)."""
    if plan is None:
        return Phase.GONE, f"no object names network {name} any more; what is held of it can still be released"
    if plan.refusal is None:
        return Phase.SERVING, ""
    if issubclass(plan.refusal.error, NetworkDraining):
        return Phase.DRAINING, plan.refusal.message
    closed = issubclass(plan.refusal.error, NetworkClosed)
    return (Phase.CLOSED if closed else Phase.NOT_ADMITTED), plan.refusal.message


def network_report(name: str, plan: NetworkPlan | None, leases: Sequence[Lease]) -> NetworkReport:
    """One line of `allotment status`; `leases` are those of the network."""
    phase, reason = phase_of(name, plan)
    pods = [lease for lease in leases if lease.owner.kind is LeaseKind.POD]
    owners = sorted({who(lease.owner) for lease in pods}) if phase in (Phase.DRAINING, Phase.GONE) else []
    return NetworkReport(
        network=name,
        type=plan.layer.value if plan is not None else "",
        phase=phase,
        reason=reason,
        waits_for=tuple(owners[:_NAMED]),
        waits_for_more=max(0, len(owners) - _NAMED),
        leases=len(pods),
        subnets=tuple(map(str, plan.subnets)) if plan is not None else (),
        blocks=tuple(str(block.prefix) for block in plan.blocks) if plan is not None else (),
    )


def held_back(address: Address, plan: NetworkPlan, view: View) -> tuple[str, ...]:
    """Everything that keeps an address from being handed out automatically, each with the object that says so."""
    found: list[str] = []
    for block in plan.blocks:
        if address in block.prefix:
            edge = edge_name(block.prefix, address)
            if edge is not None:
                found.append(f"it is the {edge} of block {block.prefix}")
            if address == block.gateway:
                found.append(f"it is the gateway of block {block.prefix}")
    network = view.networks.get(plan.name)
    found += [
        f"Network {plan.name} excludes it in subnet {subnet.cidr}"
        for subnet in (network.spec.subnets if network is not None else ())
        if address in subnet.excluded
    ]
    for reservation in view.reservations.values():
        inside = [str(prefix) for prefix in reservation.spec.prefixes if address in prefix]
        if inside:
            found.append(f"IPReservation {reservation.name} reserves it with {' and '.join(inside)}")
    return tuple(found)


def problem_reports(problems: Iterable[FileProblem]) -> tuple[ProblemReport, ...]:
    """What is wrong with what the agent was told."""
    return tuple(ProblemReport(problem.file, problem.line, problem.message) for problem in problems)
