"""Leases and rests survive the way to the disk and back, and nothing else comes back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allotment.addressing.address import Address, Family, Prefix
from allotment.addressing.lease import Lease, LeaseKind, Moment, Owner, Rest
from allotment.ledger.rows import Decoder, RowError, narrow, parse_written, row_of_lease, row_of_rest, wide
from unit.ledger.examples import lease

families = st.sampled_from(Family)
addresses = families.flatmap(lambda family: st.integers(0, family.top).map(lambda value: Address(family, value)))
texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
moments = st.builds(Moment, names, numbers)


@st.composite
def prefixes(draw):
    family = draw(families)
    length = draw(st.integers(0, family.bits))
    shift = family.bits - length
    return Prefix(family, draw(st.integers(0, family.top)) >> shift << shift, length)


owners = st.builds(Owner, names, names, texts, texts, texts, texts, texts, st.sampled_from(LeaseKind))
leases = st.builds(Lease, addresses, prefixes(), owners, st.integers(0, 2**63 - 1), moments, numbers, texts)


@settings(max_examples=50)
@given(leases)
def test_a_lease_comes_back_as_it_was(each):
    assert Decoder().lease(row_of_lease(each)) == each


@settings(max_examples=50)
@given(addresses, st.integers(0, 300), prefixes(), moments, numbers)
def test_a_rest_comes_back_as_it_was(first, more, block, moment, wall):
    last = Address(first.family, min(first.value + more, first.family.top))
    rest = Rest("blue", block, first, last, moment, wall)
    assert Decoder().rest(row_of_rest(rest)) == rest


@settings(max_examples=50)
@given(addresses)
def test_both_spellings_of_an_address_come_back(address):
    assert narrow(wide(address)) == address
    assert parse_written(str(address)) == address


@settings(max_examples=50)
@given(addresses, addresses)
def test_the_order_of_wide_text_is_the_order_of_addresses(one, other):
    assert (wide(one) < wide(other)) == (one < other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.4.1",
        "10.4.1.07",
        "10.4.1.256",
        "FD00::5",
        "fd00::0005",
        "fd00:0:0:0:0:0:0:5",
        " 10.4.1.7",
        "::ffff:0a04:1",
    ],
)
def test_another_spelling_is_damage(text):
    """Two spellings of one address would be two rows for the primary key (I1)."""
    with pytest.raises((RowError, OSError)):
        parse_written(text)
    row = list(row_of_lease(lease(7)))
    row[1] = text
    with pytest.raises(RowError, match="lease"):
        Decoder().lease(tuple(row))


@pytest.mark.parametrize("text", ["", "10.4.1.7", "010.004.001.256", "fd00::5", "[fd00::5]", "010.004.001.00a"])
def test_another_wide_spelling_is_damage(text):
    with pytest.raises(RowError):
        narrow(text)


@pytest.mark.parametrize(
    ("column", "value"),
    [(0, ""), (2, "10.4.1.7/24"), (2, "10.4.1.0"), (2, "10.4.1.0/33"), (3, ""), (9, "ghost"), (10, -1), (12, "x")],
)
def test_a_row_that_says_something_impossible_is_damage(column, value):
    row = list(row_of_lease(lease(7)))
    row[column] = value
    with pytest.raises(RowError):
        Decoder().lease(tuple(row))


def test_what_repeats_is_held_once():
    """60,000 leases must fit into 140 MiB."""

    def from_disk(number):
        return tuple("".join(list(value)) if isinstance(value, str) else value for value in row_of_lease(lease(number)))

    decoder = Decoder()
    one, other = decoder.lease(from_disk(1)), decoder.lease(from_disk(2))
    assert one.block is other.block
    assert one.owner.network is other.owner.network
    assert one.since.boot is other.since.boot
