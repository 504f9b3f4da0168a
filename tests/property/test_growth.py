"""When blocks are wanted, offered and taken back: over any use of any number of blocks of any size."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from allotment.addressing.address import parse_prefix
from allotment.node.growth import EMPTY_FOR, BlockLook, Wants, judge

SIZES = st.sampled_from([1, 2, 5, 13, 61, 253, (1 << 64) - 2])
NETS = [parse_prefix(f"10.4.{number}.0/24") for number in range(8)]


@st.composite
def looks(draw, size, most=6):
    found = []
    for prefix in NETS[: draw(st.integers(0, most))]:
        empty = draw(st.one_of(st.none(), st.sampled_from([0.0, 59.0, 60.0, 600.0])))
        found.append(
            BlockLook(
                prefix,
                size if empty is not None else draw(st.integers(0, size - 1)),
                gives=draw(st.booleans()),
                pending=draw(st.booleans()) and empty is None,
                offered=draw(st.booleans()),
                kept=draw(st.booleans()),
                empty_for=empty,
            )
        )
    return found


@st.composite
def situations(draw):
    size = draw(SIZES)
    blocks = [replace(look, gives=look.gives and not look.pending) for look in draw(looks(size))]
    blocks = [replace(look, available=0) if look.pending else look for look in blocks]
    wants = Wants(size, draw(st.integers(0, 20)), draw(st.integers(0, 300)), draw(st.integers(0, 9)))
    return blocks, wants


def follow(blocks, wants, verdict):
    """What there is once everybody has done what was said: wanted blocks come, what was offered goes."""
    after = [replace(look, offered=look.offered and look.prefix not in verdict.take_back) for look in blocks]
    after = [look for look in after if look.prefix not in verdict.offer and not look.offered]
    missing = max(0, verdict.blocks - len(after))
    return after + [BlockLook(parse_prefix(f"10.5.{n}.0/24"), wants.size, empty_for=0.0) for n in range(missing)]


def spare(blocks):
    return sum(look.available for look in blocks if look.gives and not look.offered)


@given(situations())
def test_no_block_that_is_used_kept_or_only_just_empty_is_offered(situation):
    blocks, wants = situation
    verdict = judge(blocks, wants)
    by_prefix = {look.prefix: look for look in blocks}
    for prefix in verdict.offer:
        look = by_prefix[prefix]
        assert look.empty_for is not None
        assert look.empty_for >= EMPTY_FOR
        assert not look.kept
        assert not look.offered
        assert not look.pending


@given(situations())
def test_an_offered_block_that_is_in_use_is_taken_back_at_once(situation):
    blocks, wants = situation
    verdict = judge(blocks, wants)
    for look in blocks:
        if look.offered and look.empty_for is None:
            assert look.prefix in verdict.take_back


@given(situations())
def test_the_limit_is_kept_and_only_new_blocks_are_limited_by_it(situation):
    blocks, wants = situation
    verdict = judge(blocks, wants)
    assert verdict.blocks <= max(wants.limit, 0)
    if not wants.limit:
        assert not verdict.offer


@given(situations())
def test_who_waits_for_an_address_gets_enough_blocks_asked_for(situation):
    """Unless the limit forbids it, or what was offered is enough."""
    blocks, wants = situation
    verdict = judge(blocks, wants)
    after = follow(blocks, wants, verdict)
    coming = sum(wants.size for look in after if look.pending)
    if verdict.blocks < wants.limit and len(after) < wants.limit:
        assert spare(after) + coming >= wants.short


@given(situations())
def test_nothing_is_wanted_and_offered_at_once(situation):
    verdict = judge(*situation)
    assert not (verdict.offer and (verdict.blocks or verdict.take_back))


@given(situations())
def test_what_is_done_as_said_is_not_undone(situation):
    """No flapping: with the same use, what came as wanted is enough, and what went as offered is not missed."""
    blocks, wants = situation
    verdict = judge(blocks, wants)
    after = follow(blocks, wants, verdict)
    settled = judge(after, replace(wants, before=verdict.blocks, limit=wants.limit and 20))
    if verdict.offer:
        assert settled.blocks == 0
        assert not settled.take_back
        assert spare(after) > 0 or not any(look.gives for look in blocks)
    if verdict.blocks and verdict.blocks < wants.limit:
        assert settled.blocks == 0
        # The new blocks are needed: they don't go either, once they have been empty for long.
        long = [replace(look, empty_for=look.empty_for and 600.0) for look in after]
        new = {look.prefix for look in after} - {look.prefix for look in blocks}
        assert not new & {*judge(long, replace(wants, short=0, before=0)).offer} or wants.short


@given(situations(), st.integers(0, 300))
def test_a_wish_stays_while_the_use_hardly_changes(situation, less):
    """Between the two marks what was wanted is wanted still."""
    blocks, wants = situation
    wants = replace(wants, short=0)
    verdict = judge(blocks, wants)
    if verdict.blocks and not verdict.take_back:
        again = judge(blocks, replace(wants, before=verdict.blocks))
        assert again.blocks == verdict.blocks


def test_a_block_is_wanted_before_the_last_address_is_gone():
    [prefix, *_] = NETS
    assert judge([BlockLook(prefix, 16)], Wants(61, 20)).blocks == 0
    assert judge([BlockLook(prefix, 15)], Wants(61, 20)).blocks == 2
    assert judge([BlockLook(prefix, 20)], Wants(61, 20, before=2)).blocks == 2, "still wanted between the marks"
    assert judge([BlockLook(prefix, 31)], Wants(61, 20, before=2)).blocks == 0
    assert judge([BlockLook(prefix, 0)], Wants(61, 20, short=200)).blocks == 5
    assert judge([BlockLook(prefix, 0)], Wants(61, 3, short=200)).blocks == 3
    assert judge([BlockLook(prefix, 0)], Wants(61, 1)).blocks == 0
    assert judge([], Wants(61, 20)).blocks == 1


def test_a_block_of_a_closed_subnet_goes_though_it_is_the_last():
    [first, second, *_] = NETS
    verdict = judge([BlockLook(first, 61, gives=False, empty_for=60.0), BlockLook(second, 40)], Wants(61, 20))
    assert verdict.offer == (first,)


def test_the_last_giving_block_stays():
    [first, second, *_] = NETS
    empty = [BlockLook(first, 253, empty_for=90.0), BlockLook(second, 253, empty_for=90.0)]
    assert judge(empty, Wants(253, 20)).offer == (second,)
    assert judge(empty[:1], Wants(253, 20)).offer == ()
