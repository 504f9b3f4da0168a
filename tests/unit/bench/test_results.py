"""What a benchmark run says of its bars."""

from __future__ import annotations

import json

import pytest

from bench.figures import Figure, Outcome, median_ratio, percentile
from bench.report import markdown, missed, write


def figure(value, bar, sense="at most", unit="x"):
    return Figure("add", "ADD over host-local's", value, bar, sense, unit, "1 + 2")


@pytest.mark.parametrize(
    ("value", "bar", "sense", "met"),
    [
        (0.125, 0.125, "at most", True),
        (0.126, 0.125, "at most", False),
        (10.0, 10.0, "at least", True),
        (9.99, 10.0, "at least", False),
        (0, 0, "at most", True),
        (1, 0, "at most", False),
    ],
)
def test_a_bar_is_reached_when_the_value_stands_on_it(value, bar, sense, met):
    assert figure(value, bar, sense).met is met


def test_a_ratio_is_taken_round_by_round_so_that_a_slow_machine_falls_out():
    ours, theirs = [1.0, 10.0, 2.0], [8.0, 80.0, 16.0]  # in the second round everything took ten times as long
    assert median_ratio(ours, theirs) == pytest.approx(1 / 8)


def test_percentiles_are_values_that_were_measured():
    values = list(range(1, 101))
    assert percentile(values, 0.5) == 51
    assert percentile(values, 0.99) == 100
    assert percentile([7.0], 0.99) == 7.0


def test_misses_and_problems_are_listed_with_value_bar_and_what_the_value_is_made_of():
    outcome = Outcome(figures=[figure(0.5, 0.125), figure(0.1, 0.125)], problems=["two ADDs got one address"])
    first, second = missed(outcome)
    assert "ADD over host-local's: 0.500x, must be at most 0.125x (1 + 2)" in first
    assert second == "two ADDs got one address"


def test_the_report_puts_ratios_first_and_names_what_was_missed():
    outcome = Outcome(figures=[figure(70, 64, unit="KiB"), figure(0.1, 0.125)])
    text = markdown(outcome, {"kernel": "Linux"})
    assert text.index("0.100x") < text.index("70 KiB")
    assert "MISSED" in text
    assert "- kernel: Linux" in text
    assert text.index("## Missed") > text.index("## Machine")


def test_what_is_written_can_be_read_by_a_program(tmp_path):
    outcome = Outcome(figures=[figure(0.5, 0.125)])
    outcome.reading("add", "ADD", "Allotment").add([1.0, 3.0, 2.0])
    write(tmp_path / "made", outcome, {"kernel": "Linux"})
    told = json.loads((tmp_path / "made" / "results.json").read_text())
    assert told["figures"][0]["met"] is False
    assert told["readings"][0]["median"] == 2.0
    assert told["readings"][0]["count"] == 3
    assert (tmp_path / "made" / "results.md").read_text().startswith("# Benchmarks")
