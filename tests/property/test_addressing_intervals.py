"""The algebra of interval sets against sets of single addresses, in small universes at both ends of both families."""

from hypothesis import given
from hypothesis import strategies as st

from allotment.addressing.address import Address, Family, Prefix
from allotment.addressing.intervals import IntervalSet, parse_range

SPAN = 24
BASES = [(Family.V4, 0), (Family.V4, 2**32 - SPAN), (Family.V6, 0), (Family.V6, 2**128 - SPAN)]
UNIVERSE = [Address(family, base + step) for family, base in BASES for step in range(SPAN)]


@st.composite
def pairs(draw):
    family, base = draw(st.sampled_from(BASES))
    first, last = sorted(draw(st.tuples(st.integers(0, SPAN - 1), st.integers(0, SPAN - 1))))
    return (Address(family, base + first), Address(family, base + last))


many_pairs = st.lists(pairs(), max_size=8)


def members(drawn):
    return {address for first, last in drawn for address in UNIVERSE if first <= address <= last}


def exploded(intervals):
    return {address for address in UNIVERSE if address in intervals}


@given(many_pairs, many_pairs)
def test_algebra_is_that_of_sets(one, other):
    a, b = IntervalSet.of(*one), IntervalSet.of(*other)
    x, y = members(one), members(other)
    assert exploded(a) == x
    assert exploded(a | b) == x | y
    assert exploded(a & b) == x & y
    assert exploded(a - b) == x - y
    assert bool(a) == bool(x)
    for result, expected in ((a | b, x | y), (a & b, x & y), (a - b, x - y)):
        assert result.count() == len(expected)
        for family in Family:
            assert result.count(family) == sum(address.family is family for address in expected)
        assert result == IntervalSet.of(*expected)
        runs = list(result)
        assert runs == sorted(runs)
        assert all(
            first.family is last.family and (index == 0 or runs[index - 1][1] < first)
            for index, (first, last) in enumerate(runs)
        )


@given(many_pairs, many_pairs)
def test_results_are_in_the_one_form_and_survive_being_written(one, other):
    a, b = IntervalSet.of(*one), IntervalSet.of(*other)
    assert (a - b) | (a & b) == a
    assert (a | b) - b == a - b
    assert IntervalSet.of(*(parse_range(text) for text in str(a).split(", ") if text)) == a


@given(many_pairs, st.sampled_from(UNIVERSE), st.integers(0, 5))
def test_lookups_and_clipping(drawn, address, host_bits):
    a, x = IntervalSet.of(*drawn), members(drawn)
    assert (address in a) == (address in x)
    bits = address.family.bits
    prefix = Prefix(address.family, address.value >> host_bits << host_bits, bits - host_bits)
    inside = {each for each in x if each in prefix}
    assert exploded(a.within(prefix)) == inside
    assert a.within(prefix).count() == len(inside)
    assert (prefix in a) == (len(inside) == prefix.size)
