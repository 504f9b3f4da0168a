"""The agent's metrics: one table, and one `Metrics` object per agent that counts them.

Nothing is registered at import; two agents in one test process share nothing. Counters and histograms are plain
numbers that the event loop adds to (a request costs about two microseconds in all), and are turned into Prometheus'
families when somebody scrapes. Gauges aren't kept at all: whoever knows the value gives a reader, which is called at
the scrape, so that an ADD never pays for a figure that nobody looks at.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

__all__ = ["METRICS", "PREFIX", "Count", "Kind", "Metric", "Metrics", "Reader", "Sample", "Spread"]

PREFIX: Final = "allotment_"

Sample = tuple[tuple[str, ...], float]
"""Label values in the table's order, and the value."""

Reader = Callable[[], Iterable[Sample]]
"""Gives a gauge's samples at the moment of the scrape."""

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


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


_VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS", "other")
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
        {"verb": _VERBS, "code": ()},
    ),
    Metric(
        "cni_request_seconds",
        Kind.HISTOGRAM,
        "Time from a CNI call's complete frame to its answer.",
        {"verb": _VERBS},
        _REQUEST_SECONDS,
    ),
    Metric(
        "cni_stage_seconds",
        Kind.HISTOGRAM,
        "Time that ADDs spent in one stage: waiting for their turn, deciding, waiting for the disk.",
        {"stage": ("queue", "decide", "commit")},
        _REQUEST_SECONDS,
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
        "Failures of the ledger's disk: full, or any other I/O error.",
        {"kind": ("full", "io")},
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
    Metric("source_problems", Kind.GAUGE, "Objects or files that can't be used; `allotment status` names them.", {}),
    Metric("source_age_seconds", Kind.GAUGE, "Time since the source of objects was last known to be in step.", {}),
    Metric(
        "log_lines_dropped_total",
        Kind.COUNTER,
        "Log lines dropped because nobody read them in time.",
        {},
    ),
)

_BY_NAME: Final = {metric.name: metric for metric in METRICS}


class Count:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`, which must not be negative."""
        self.value += amount


class Spread:
    """A histogram: how many observations fell below each bound, and their sum."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation, in the metric's base unit."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as the exposition wants them."""
        seen = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip((*self._bounds, float("inf")), self.counts, strict=True):
            seen += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(seen)))
        return found


class Metrics(Collector):
    """Everything that one agent counts.

    Ask once for what you add to (`count`, `spread`) and keep it; `request` keeps its own.
    """

    def __init__(self, version: str) -> None:
        self._counts: dict[str, dict[tuple[str, ...], Count]] = {}
        self._spreads: dict[str, dict[tuple[str, ...], Spread]] = {}
        self._readers: dict[str, list[Reader]] = {}
        self._answered: dict[tuple[str, int], tuple[Count, Spread]] = {}
        self._prepare()
        self.read("build_info", lambda: (((version,), 1.0),))
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def _prepare(self) -> None:
        """Make the series whose labels are all known, so that a query finds 0 rather than nothing."""
        for metric in METRICS:
            if metric.kind is Kind.COUNTER:
                self._counts[metric.name] = {}
            elif metric.kind is Kind.HISTOGRAM:
                self._spreads[metric.name] = {}
            if metric.kind is not Kind.GAUGE and len(metric.labels) <= 1 and all(metric.labels.values()):
                for values in zip(*metric.labels.values(), strict=True) if metric.labels else ((),):
                    self._make(metric, values)

    def _make(self, metric: Metric, values: tuple[str, ...]) -> None:
        if metric.kind is Kind.COUNTER:
            self._counts[metric.name][values] = Count()
        else:
            self._spreads[metric.name][values] = Spread(metric.buckets)

    def count(self, name: str, *values: str) -> Count:
        """The counter `name` of the table with these label values; the same object every time.

        Raises:
            KeyError: the table has no such counter.
            ValueError: the labels are not what the table says.
        """
        series = self._counts[name]
        if values not in series:
            self._make(_checked(name, values), values)
        return series[values]

    def spread(self, name: str, *values: str) -> Spread:
        """The histogram `name` of the table with these label values; the same object every time.

        Raises:
            KeyError: the table has no such histogram.
            ValueError: the labels are not what the table says.
        """
        series = self._spreads[name]
        if values not in series:
            self._make(_checked(name, values), values)
        return series[values]

    def read(self, name: str, reader: Reader) -> None:
        """Have `reader` asked for samples of the gauge `name` at each scrape; a gauge may have several readers.

        Raises:
            KeyError: the table has no such gauge.
        """
        metric = _BY_NAME[name]
        if metric.kind is not Kind.GAUGE:
            raise KeyError(f"{name} is a {metric.kind}, not a gauge")
        self._readers.setdefault(name, []).append(reader)

    def request(self, verb: str, code: int, seconds: float) -> None:
        """Count one answered CNI call; a verb that the specification doesn't know counts as `other`."""
        try:
            count, spread = self._answered[verb, code]
        except KeyError:
            known = verb if verb in _VERBS else "other"
            count = self.count("cni_requests_total", known, str(code))
            spread = self.spread("cni_request_seconds", known)
            if known == verb:  # what a stranger makes up must not fill the cache
                self._answered[verb, code] = count, spread
        count.inc()
        spread.observe(seconds)

    def collect(self) -> Iterator[_Family]:
        """What the registry asks for at a scrape: every metric of the table, in its order."""
        for metric in METRICS:
            match metric.kind:
                case Kind.COUNTER:
                    yield self._counter_family(metric)
                case Kind.HISTOGRAM:
                    yield self._histogram_family(metric)
                case Kind.GAUGE:
                    yield self._gauge_family(metric)

    def _counter_family(self, metric: Metric) -> CounterMetricFamily:
        family = CounterMetricFamily(metric.full_name, metric.help, labels=tuple(metric.labels))
        for values, count in self._counts[metric.name].items():
            family.add_metric(values, count.value)
        return family

    def _histogram_family(self, metric: Metric) -> HistogramMetricFamily:
        family = HistogramMetricFamily(metric.full_name, metric.help, labels=tuple(metric.labels))
        for values, spread in self._spreads[metric.name].items():
            family.add_metric(values, spread.buckets(), spread.total)
        return family

    def _gauge_family(self, metric: Metric) -> GaugeMetricFamily:
        family = GaugeMetricFamily(metric.full_name, metric.help, labels=tuple(metric.labels))
        for reader in self._readers.get(metric.name, ()):
            for values, value in reader():
                family.add_metric(_checked(metric.name, values) and values, value)
        return family

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics in the format that an Accept header prefers, and that format's content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _checked(name: str, values: tuple[str, ...]) -> Metric:
    """The metric of that name, if these are values its labels may have."""
    metric = _BY_NAME[name]
    if len(values) != len(metric.labels):
        raise ValueError(f"{name} takes labels {', '.join(metric.labels) or 'none'}; got {len(values)} values")
    for (label, allowed), value in zip(metric.labels.items(), values, strict=True):
        if allowed and value not in allowed:
            raise ValueError(f"{name}: {label} is one of {', '.join(allowed)}, not {value!r}")
    return metric
