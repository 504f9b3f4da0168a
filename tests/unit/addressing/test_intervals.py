"""Interval sets: building, algebra at the edges of the number lines, and what text is accepted."""

import pytest

from allotment.addressing.address import Address, Family, Prefix, parse_address, parse_prefix
from allotment.addressing.errors import ConfigError
from allotment.addressing.intervals import IntervalSet, parse_range

ALL_V4 = parse_prefix("0.0.0.0/0")
ALL_V6 = parse_prefix("::/0")


def ranges(*texts: str) -> IntervalSet:
    return IntervalSet.of(*(parse_range(text) for text in texts))


def test_overlapping_nested_and_adjacent_items_become_one_run():
    built = ranges("10.0.0.0/30", "10.0.0.2-10.0.0.9", "10.0.0.3", "10.0.0.10")
    assert str(built) == "10.0.0.0-10.0.0.10"
    assert built == IntervalSet.of((parse_address("10.0.0.0"), parse_address("10.0.0.10")))
    assert hash(built) == hash(ranges("10.0.0.0-10.0.0.10"))


def test_equality_is_by_value_however_it_was_written():
    assert ranges("::0005") == ranges("::5")
    assert ranges("10.0.0.0/31") == ranges("10.0.0.0", "10.0.0.1")


def test_families_never_touch():
    both = IntervalSet.of(ALL_V4, ALL_V6)
    assert both.count() == 2**32 + 2**128
    assert both.count(Family.V4) == 2**32
    assert both.count(Family.V6) == 2**128
    assert list(both) == [(ALL_V4.first, ALL_V4.last), (ALL_V6.first, ALL_V6.last)]
    assert both - IntervalSet.of(ALL_V4) == IntervalSet.of(ALL_V6)
    assert not IntervalSet.of(ALL_V4) & IntervalSet.of(ALL_V6)
    assert Address(Family.V4, 5) in IntervalSet.of(ALL_V4)
    assert Address(Family.V6, 5) not in IntervalSet.of(ALL_V4)


def test_containment_of_addresses_and_prefixes():
    some = ranges("10.0.0.0-10.0.0.9", "10.0.0.16/28")
    assert parse_prefix("10.0.0.0/29") in some
    assert parse_prefix("10.0.0.8/29") not in some
    assert parse_address("10.0.0.9") in some
    assert parse_address("10.0.0.10") not in some
    assert "10.0.0.9" not in some


def test_within_clips_to_a_prefix():
    some = ranges("10.0.0.4-10.0.1.9", "10.0.3.0", "fd00::1")
    assert some.within(parse_prefix("10.0.1.0/24")) == ranges("10.0.1.0-10.0.1.9")
    assert some.within(parse_prefix("10.0.0.8/32")) == ranges("10.0.0.8")
    assert not some.within(parse_prefix("10.0.2.0/24"))
    assert some.within(ALL_V6) == ranges("fd00::1")


def test_numbers_and_back():
    some = ranges("10.0.0.4-10.0.0.9", "fd00::1")
    again = [IntervalSet.of_numbers(family, some.numbers(family)) for family in Family]
    assert again[0] | again[1] == some


def test_a_pair_that_is_no_range_is_refused():
    with pytest.raises(ValueError, match="ascending"):
        IntervalSet.of((parse_address("10.0.0.2"), parse_address("10.0.0.1")))
    with pytest.raises(ValueError, match="one family"):
        IntervalSet.of((parse_address("10.0.0.2"), parse_address("::1")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("10.0.0.0/24", "10.0.0.0-10.0.0.255"),
        ("10.0.0.7-10.0.0.9", "10.0.0.7-10.0.0.9"),
        ("10.0.0.7-10.0.0.7", "10.0.0.7"),
        ("fd00::0007-fd00::9", "fd00::7-fd00::9"),
        ("255.255.255.255", "255.255.255.255"),
        ("::/0", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ],
)
def test_ranges_are_read(text, expected):
    assert str(parse_range(text)) == expected


@pytest.mark.parametrize(
    ("text", "right_form"),
    [
        ("10.0.0.5/24", "10.0.0.0/24"),
        ("fd00::5/64", "fd00::/64"),
        ("10.0.0.9-10.0.0.1", "'10.0.0.1-10.0.0.9'"),
        ("10.0.0.1-fd00::1", "fd00::3-fd00::9"),
        ("10.0.0.1-9", "'10.0.0.1-10.0.0.9'"),
        ("10.0.0.1 - 10.0.0.9", "'10.0.0.1-10.0.0.9'"),
        ("10.0.0.010", "'10.0.0.10'"),
        ("::ffff:10.0.0.1", "'10.0.0.1'"),
        ("10.0.0.0/24-10.0.1.0/24", "10.0.0.0"),
        ("10.0.0.0/33", "0 to 32"),
        ("10.0.0.1-", "10.1.2.3"),
        ("", "10.1.2.3"),
        ("fe80::1%eth0", "'fe80::1'"),
    ],
)
def test_a_wrong_range_is_refused_with_the_right_form(text, right_form):
    with pytest.raises(ConfigError) as refused:
        parse_range(text)
    assert right_form in refused.value.message


def test_huge_sets_cost_their_runs_alone():
    """C33: an IPv6 /32 less a hole is two runs, whatever lies between."""
    left = IntervalSet.of(parse_prefix("fd00::/32")) - ranges("fd00::5")
    assert len(left.points) == 2
    assert left.count() == 2**96 - 1
    assert left.within(Prefix(Family.V6, 0xFD00 << 112, 64)).count() == 2**64 - 1
