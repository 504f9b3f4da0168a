"""Times as people write and read them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from allotment.addressing.errors import ConfigError
from allotment.cli.times import Stamp, ago, parse_time, span

NOW = datetime(2026, 11, 29, 14, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.9, "0s"),
        (59, "59s"),
        (60, "1m"),
        (125, "2m 5s"),
        (3600, "1h"),
        (3601, "1h"),  # two units side by side, or one
        (7260, "2h 1m"),
        (90_000, "1d 1h"),
        (86_400 * 40 + 61, "40d"),
        (-5, "0s"),
    ],
)
def test_a_span_has_at_most_two_units(seconds, text):
    assert span(seconds) == text


def test_a_time_ahead_of_the_clock_is_called_that():
    assert ago(NOW - timedelta(minutes=2), NOW) == "2m ago"
    assert ago(NOW + timedelta(hours=1), NOW) == "1h ahead of this machine's clock"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("14:03", datetime(2026, 11, 29, 14, 3, tzinfo=UTC)),
        ("9:05:07", datetime(2026, 11, 29, 9, 5, 7, tzinfo=UTC)),
        ("14:31", datetime(2026, 11, 28, 14, 31, tzinfo=UTC)),  # not yet today: yesterday's
        ("2026-11-29 14:03", datetime(2026, 11, 29, 14, 3, tzinfo=UTC)),
        ("2026-11-29T14:03:22Z", datetime(2026, 11, 29, 14, 3, 22, tzinfo=UTC)),
        ("2026-11-29T14:03:22.5+02:00", datetime(2026, 11, 29, 12, 3, 22, 500_000, tzinfo=UTC)),
    ],
)
def test_a_time_can_be_written_in_several_ways(text, meant):
    assert parse_time(text, NOW) == meant


@pytest.mark.parametrize("zone", ["Asia/Tokyo"], indirect=True)
def test_without_a_zone_it_is_local_time(zone):
    assert parse_time("2026-11-29 14:03", NOW) == datetime(2026, 11, 29, 5, 3, tzinfo=UTC)
    assert parse_time("23:00", NOW) == datetime(2026, 11, 29, 14, 0, tzinfo=UTC)
    assert parse_time("23:45", NOW) == datetime(2026, 11, 28, 14, 45, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "noon", "25:00", "14:3", "2026-11-29", "14", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_is_refused_with_the_right_form(text):
    with pytest.raises(ConfigError, match="write it like 14:03"):
        parse_time(text, NOW)


def test_a_stamp_is_rfc_3339_for_programs():
    assert json.dumps(Stamp(NOW)) == '"2026-11-29T14:30:00.000Z"'
    assert Stamp(NOW).age(NOW + timedelta(seconds=62)) == "1m 2s"
