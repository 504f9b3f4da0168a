"""The agent's metrics: one `Metrics` object per agent counts what `metric_table` lists.

Nothing is registered at import; two agents in one test process share nothing. Counters and histograms are plain
numbers that the event loop adds to (a request costs about two microseconds in all), and are turned into Prometheus'
families when somebody scrapes. Gauges aren't kept at all: whoever knows the value gives a reader, which is called at
the scrape, so that an ADD never pays for a figure that nobody looks at.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from allotment.observe.metric_table import METRICS, VERBS, Kind, Metric

__all__ = ["Count", "Metrics", "Reader", "Sample", "Spread"]

Sample = tuple[tuple[str, ...], float]
"""Label values in the table's order, and the value."""

Reader = Callable[[], Iterable[Sample]]
"""Gives a gauge's samples at the moment of the scrape."""

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


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
            known = verb if verb in VERBS else "other"
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
                _checked(metric.name, values)
                family.add_metric(values, value)
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
