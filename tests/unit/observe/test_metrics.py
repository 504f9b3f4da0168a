"""Metrics: what a scrape shows is what was counted, and nothing is shared between two agents."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from allotment.observe.metric_table import METRICS, PREFIX, Kind
from allotment.observe.metrics import Metrics


def scraped(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, _ = metrics.exposition("")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(body.decode())
        for sample in family.samples
    }


def test_a_request_is_counted_under_its_verb_and_code_with_its_time():
    metrics = Metrics("1.2.3")
    metrics.request("ADD", 0, 0.0004)
    metrics.request("ADD", 0, 7.0)
    metrics.request("ADD", 11, 0.0004)
    found = scraped(metrics)
    assert found["allotment_cni_requests_total", (("code", "0"), ("verb", "ADD"))] == 2
    assert found["allotment_cni_requests_total", (("code", "11"), ("verb", "ADD"))] == 1
    assert found["allotment_cni_request_seconds_count", (("verb", "ADD"),)] == 3
    assert found["allotment_cni_request_seconds_sum", (("verb", "ADD"),)] == pytest.approx(7.0008)
    assert found["allotment_cni_request_seconds_bucket", (("le", "0.0005"), ("verb", "ADD"))] == 2
    assert found["allotment_cni_request_seconds_bucket", (("le", "5.0"), ("verb", "ADD"))] == 2
    assert found["allotment_cni_request_seconds_bucket", (("le", "10.0"), ("verb", "ADD"))] == 3
    assert found["allotment_cni_request_seconds_bucket", (("le", "+Inf"), ("verb", "ADD"))] == 3


def test_a_value_on_a_bound_belongs_to_that_bucket():
    metrics = Metrics("1")
    metrics.spread("ledger_batch_size").observe(8)
    found = scraped(metrics)
    assert found["allotment_ledger_batch_size_bucket", (("le", "4.0"),)] == 0
    assert found["allotment_ledger_batch_size_bucket", (("le", "8.0"),)] == 1


def test_verbs_made_up_by_a_stranger_share_one_series():
    metrics = Metrics("1")
    for number in range(1000):
        metrics.request(f"X{number}", 4, 0.1)
    found = scraped(metrics)
    assert found["allotment_cni_requests_total", (("code", "4"), ("verb", "other"))] == 1000
    assert len([key for key in found if key[0] == "allotment_cni_requests_total"]) == 1
    assert len(metrics._answered) == 0


def test_gauges_are_read_at_the_scrape_and_not_before():
    metrics = Metrics("1")
    asked = 0

    def reader():
        nonlocal asked
        asked += 1
        yield ("blue", "IPv6", "capacity"), float(2**64 - 1)
        yield ("blue", "IPv6", "in_use"), 3.0

    metrics.read("addresses", reader)
    metrics.request("ADD", 0, 0.1)
    assert asked == 0
    found = scraped(metrics)
    assert asked == 1
    labels = (("family", "IPv6"), ("network", "blue"), ("state", "capacity"))
    assert found["allotment_addresses", labels] == float(2**64 - 1)
    assert found["allotment_build_info", (("version", "1"),)] == 1


def test_a_name_with_quotes_and_line_breaks_stays_one_label():
    metrics = Metrics("1")
    metrics.read("drain_leases", lambda: [(('b"l\nu\\e',), 2.0)])
    assert scraped(metrics)["allotment_drain_leases", (("network", 'b"l\nu\\e'),)] == 2


def test_two_agents_in_one_process_share_nothing_and_register_nothing_globally():
    before = {metric.name for metric in REGISTRY.collect()}
    first, second = Metrics("1"), Metrics("1")
    first.count("hang_ups_total").inc()
    assert scraped(first)["allotment_hang_ups_total", ()] == 1
    assert scraped(second)["allotment_hang_ups_total", ()] == 0
    assert {metric.name for metric in REGISTRY.collect()} == before


def test_what_is_known_beforehand_is_shown_as_zero():
    found = scraped(Metrics("1"))
    assert found["allotment_ledger_errors_total", (("kind", "full"),)] == 0
    assert found["allotment_cni_request_seconds_count", (("verb", "GC"),)] == 0


def test_the_accept_header_chooses_the_format():
    metrics = Metrics("1")
    metrics.request("ADD", 0, 0.1)
    text, text_type = metrics.exposition("text/plain")
    assert text_type.startswith("text/plain")
    opened, opened_type = metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert opened_type.startswith("application/openmetrics-text")
    assert opened.endswith(b"# EOF\n")
    names = {family.name for family in parse_openmetrics(opened.decode())}
    assert "allotment_cni_requests" in names
    assert {f"{PREFIX}{metric.name}".removesuffix("_total") for metric in METRICS} <= names
    assert b"# EOF" not in text


@pytest.mark.parametrize(
    ("name", "values"),
    [("ledger_errors_total", ("broken",)), ("ledger_errors_total", ()), ("cni_requests_total", ("ADD",))],
)
def test_labels_that_the_table_does_not_allow_are_refused(name, values):
    with pytest.raises(ValueError, match=name):
        Metrics("1").count(name, *values)


def test_a_reader_that_gives_wrong_labels_fails_the_scrape():
    metrics = Metrics("1")
    metrics.read("blocks", lambda: [(("blue", "IPv5"), 1.0)])
    with pytest.raises(ValueError, match="IPv5"):
        metrics.exposition("")


def test_only_gauges_of_the_table_take_readers():
    metrics = Metrics("1")
    with pytest.raises(KeyError, match="counter"):
        metrics.read("hang_ups_total", lambda: ())
    with pytest.raises(KeyError):
        metrics.read("nonsense", lambda: ())


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_table_keeps_to_prometheus_naming(metric):
    assert metric.full_name == f"allotment_{metric.name}"
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.help.endswith(".")
    assert not any(unit in metric.name for unit in ("_ms", "_millis", "_micros", "_kb", "_mb"))
