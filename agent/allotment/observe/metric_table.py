"""Every metric that the agent exposes, in one table; `docs/reference/metrics.md` is generated from it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["METRICS", "PREFIX", "VERBS", "Kind", "Metric"]

PREFIX: Final = "allotment_"


class Kind(enum.StrEnum):
    """The three kinds of metric, in Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. `name` has no prefix; `labels` maps a label to its values, () where they are names.

    Every label is bounded: by the values listed, or by the number of networks on the node.
    """

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, tuple[str, ...]]
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """The name that a query uses."""
        return PREFIX + self.name


VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS", "other")
_FAMILIES = ("IPv4", "IPv6")
# From half the time of one fdatasync on a good disk to the longest wait that a runtime allows.
_REQUEST_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
_BATCH_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)

METRICS: Final[tuple[Metric, ...]] = (
    Metric("build_info", Kind.GAUGE, "The running version; always 1.", {"version": ()}),
    Metric(
        "cni_requests_total",
        Kind.COUNTER,
        "CNI calls answered, by verb and CNI error code; code 0 is success.",
        {"verb": VERBS, "code": ()},
    ),
    Metric(
        "cni_request_seconds",
        Kind.HISTOGRAM,
        "Time from a CNI call's complete frame to its answer.",
        {"verb": VERBS},
        _REQUEST_SECONDS,
    ),
    Metric(
        "claim_seconds",
        Kind.HISTOGRAM,
        "Time that an ADD of an L2 network in a cluster waited for its addresses, where it got them.",
        {},
        _REQUEST_SECONDS,
    ),
    Metric(
        "claims",
        Kind.GAUGE,
        "Claims of this node: held by a lease, left for a retry of an ADD that failed, owed back to the API server.",
        {"state": ("held", "left", "owed")},
    ),
    Metric(
        "vm_addresses_kept",
        Kind.GAUGE,
        "Addresses that are kept here for virtual machines of which no pod runs now; they count as in use.",
        {"network": ()},
    ),
    Metric(
        "hang_ups_total",
        Kind.COUNTER,
        "Callers that were gone before they acknowledged their answer; what the call granted was taken back.",
        {},
    ),
    Metric(
        "connections", Kind.GAUGE, "Connections open now, by the socket they came in on.", {"socket": ("cni", "http")}
    ),
    Metric(
        "addresses",
        Kind.GAUGE,
        "Addresses of a network on this node, by state. Available is capacity less the union of the others.",
        {
            "network": (),
            "family": _FAMILIES,
            "state": ("capacity", "in_use", "reserved", "cooling", "available"),
        },
    ),
    Metric(
        "allocation_ready",
        Kind.GAUGE,
        "1 while the Allocation's condition Ready is True, 0 while it is False; the condition has the reason.",
        {"network": ()},
    ),
    Metric(
        "addresses_at_most",
        Kind.GAUGE,
        "Addresses that pods of a network can have on this node once it has all the blocks that it may have.",
        {"network": (), "family": _FAMILIES},
    ),
    Metric("pod_limit", Kind.GAUGE, "Pods that the node's kubelet takes (allocatable pods), in a cluster.", {}),
    Metric("blocks", Kind.GAUGE, "Blocks of a network on this node.", {"network": (), "family": _FAMILIES}),
    Metric(
        "drain_leases",
        Kind.GAUGE,
        "Pod leases that a draining network still waits for; no sample when it doesn't drain.",
        {"network": ()},
    ),
    Metric(
        "ledger_commit_seconds",
        Kind.HISTOGRAM,
        "Time of one ledger transaction, fdatasync included.",
        {},
        _REQUEST_SECONDS,
    ),
    Metric("ledger_batch_size", Kind.HISTOGRAM, "Requests that shared one ledger transaction.", {}, _BATCH_SIZES),
    Metric(
        "ledger_errors_total",
        Kind.COUNTER,
        "Refusals of the ledger's disk: full, broken (any other I/O error), or locked by somebody else.",
        {"kind": ("full", "disk", "busy")},
    ),
    Metric(
        "ledger_state",
        Kind.GAUGE,
        "1 for the state the ledger is in, 0 for the others.",
        {"state": ("open", "full", "failed")},
    ),
    Metric("spool_entries", Kind.GAUGE, "DELs that the shim kept and that are not replayed yet.", {}),
    Metric(
        "spool_replayed_total",
        Kind.COUNTER,
        "Kept DELs replayed, by what became of them.",
        {"outcome": ("released", "nothing", "unreadable")},
    ),
    Metric(
        "source_out_of_contact_seconds",
        Kind.GAUGE,
        "For how long the source could not be asked (0 while it can); what was known before goes on being served.",
        {},
    ),
    Metric(
        "source_lists_total",
        Kind.COUNTER,
        "Whole lists read from the API server, by kind: one at the start, each further one because a watch could not "
        "go on from where it was (410 Gone), or because an answer was doubted.",
        {"kind": ()},
    ),
    Metric(
        "orphan_looks_total",
        Kind.COUNTER,
        "Looks for leases without an owner; a blind one could not tell, and the log says why.",
        {"outcome": ("judged", "blind")},
    ),
    Metric("orphans_freed_total", Kind.COUNTER, "Leases freed because their owners were gone.", {}),
    Metric(
        "orphan_leases",
        Kind.GAUGE,
        "Leases that the last look found without an owner: suspected, to be freed if the next look agrees; held, "
        "unknown to the runtime while their network namespace is there.",
        {"state": ("suspected", "held")},
    ),
    Metric("adopted_leases_total", Kind.COUNTER, "Leases given to running pods that had none.", {}),
    Metric("address_conflicts", Kind.GAUGE, "Addresses that two pods use, as two looks in a row showed.", {}),
    Metric(
        "notices_total",
        Kind.COUNTER,
        "What happened that people should know of, by its reason; in a cluster Events tell it as well.",
        {"reason": ()},
    ),
    Metric(
        "event_notes_dropped_total",
        Kind.COUNTER,
        "Notices that became no Event: too many at once, or the API server was away or refused them.",
        {},
    ),
    Metric("source_problems", Kind.GAUGE, "Objects or files that can't be used; `allotment status` names them.", {}),
    Metric(
        "log_lines_dropped_total",
        Kind.COUNTER,
        "Log lines dropped because nobody read them in time.",
        {},
    ),
)
