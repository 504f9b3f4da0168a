"""C33: what is done does not grow with the block, the exclusions or the leases. Counted in lines run, not in time."""

import gc
import sys
import tracemalloc
from pathlib import Path

import pytest

from allotment import addressing
from allotment.addressing.address import Prefix, parse_prefix
from allotment.addressing.cutting import BlockCutter
from allotment.addressing.errors import Exhausted
from allotment.addressing.intervals import IntervalSet
from allotment.addressing.lease import Rested
from allotment.addressing.utilization import of_network

from .networks import ask, book, give, moment, plan, ranges, take_back, texts

_ADDRESSING = f"{Path(addressing.__file__).parent}/"


def lines_run(action):
    """How many lines of `allotment.addressing` `action` executes; not what a collection of garbage runs meanwhile."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if not frame.f_code.co_filename.startswith(_ADDRESSING):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def refused(made):
    def action():
        try:
            made.propose(ask("c-new"), moment(5000), 0.0)
        except Exhausted:
            return
        raise AssertionError("something was given")

    return action


def add_and_delete(made, at=1000):
    def action():
        take_back(made, give(made, "c-new", at=at), at=at)

    return action


@pytest.mark.parametrize("large", ["10.0.0.0/8", "fd00::/32", "::/0"])
def test_a_fully_excluded_block_answers_at_once(large):
    small = "10.0.0.0/29" if "." in large else "fd00::/125"
    efforts = []
    for text in (small, large):
        made = book(plan(text, excluded=ranges(text)))
        efforts.append([lines_run(refused(made)) for _ in range(3)])
    assert max(efforts[1]) <= max(efforts[0])


def test_a_full_block_answers_at_once():
    efforts = []
    for text, size in (("10.0.0.0/29", 5), ("10.0.0.0/22", 1021)):
        made = book(plan(text))
        for number in range(size):
            give(made, f"c{number}")
        lines_run(refused(made))
        efforts.append(lines_run(refused(made)))
    assert efforts[1] == efforts[0]


def test_a_block_whose_last_address_alone_is_free_gives_it_at_once():
    efforts = []
    for text, last in (("10.0.0.0/24", "10.0.0.254"), ("10.0.0.0/8", "10.255.255.254")):
        made = book(plan(text, excluded=ranges(text) - ranges(last)))
        efforts.append(lines_run(lambda made=made: give(made, "c1")))
        assert texts(made.leases()) == [last]
    assert efforts[1] == efforts[0]


def test_many_exclusions_are_passed_over_once_and_not_again():
    """Ten thousand runs to skip: the first request pays, the next ones don't, and a hang-up doesn't start it anew."""
    first = parse_prefix("10.0.0.0/16").value
    every_other = IntervalSet.of_numbers(
        parse_prefix("10.0.0.0/16").family, ((first + 2 + 2 * n, first + 2 + 2 * n) for n in range(10_000))
    )
    between = IntervalSet.of_numbers(
        parse_prefix("10.0.0.0/16").family, ((first + 3 + 2 * n, first + 3 + 2 * n) for n in range(9_999))
    )
    made = book(plan("10.0.0.0/16", excluded=every_other))
    for number in range(9_999):
        give(made, f"c{number}")
    made.apply([plan("10.0.0.0/16", excluded=every_other, reserved=between - every_other)], moment(1000))
    give(made, "pays")
    plain = book(plan("10.0.0.0/16"))
    expected = lines_run(add_and_delete(plain))
    assert lines_run(add_and_delete(made)) <= 1.3 * expected
    made.cancel(made.propose(ask("hangs-up"), moment(1000), 0.0))
    assert lines_run(add_and_delete(made)) <= 1.3 * expected


@pytest.mark.parametrize("text", ["10.0.0.0/8", "fd00::/64"])
def test_an_attachment_costs_the_same_with_many_leases(text):
    made = book(plan(text))
    efforts = []
    for number in range(4_000):
        give(made, f"c{number}", pod=f"web-{number}")
        if number in {200, 3_999}:
            efforts.append(max(lines_run(add_and_delete(made)) for _ in range(3)))
    assert efforts[1] <= 1.3 * efforts[0]


def test_an_attachment_costs_the_same_with_many_full_blocks():
    efforts = []
    for blocks in (3, 300):
        made = book(plan(*(f"10.{n >> 6}.{(n & 63) * 4}.0/29" for n in range(blocks))))
        leases = [lease for number in range(5 * blocks) for lease in give(made, f"c{number}")]
        take_back(made, leases[4::5])  # one rests in each, so that nothing was never used
        give(made, "settles", at=1030)
        efforts.append(max(lines_run(add_and_delete(made, at=1030 + 30 * n)) for n in range(3)))
    assert efforts[1] <= 1.3 * efforts[0]


def test_one_workload_name_with_many_leases_costs_no_more():
    """Also when every container claims to be the same pod."""
    made = book(plan("10.0.0.0/16"))
    efforts = []
    for number in range(2_000):
        give(made, f"c{number}", pod="same")
        if number in {20, 1_999}:
            efforts.append(lines_run(lambda: take_back(made, give(made, "c-new", pod="same"))))
    assert efforts[1] <= 1.3 * efforts[0]


def test_a_long_life_leaves_a_bounded_memory_and_the_order_of_what_is_young():
    """A /64 in which every pod gets a new address: what rested is joined, what is young is remembered one by one."""
    made = book(plan("fd00::/64", cooldown=1.0), rest_limit=50)
    pinned = [give(made, f"pinned-{number}", at=1000) for number in range(3)]
    on_file = 0
    for number in range(3_000):
        at = 1001 + number
        take_back(made, give(made, f"c{number}", at=at), at=at)
        on_file += 1
        for change in made.housekeeping(moment(at)):
            assert isinstance(change, Rested)
            on_file -= len(change.before) - 1
    rests = made.snapshot().rests
    assert len(rests) == on_file
    assert len(rests) <= 50 + len(pinned) + 3
    assert sum(rest.last.value - rest.first.value + 1 for rest in rests) == 3_000


def test_what_is_asked_for_again_and_again_leaves_nothing_behind():
    """A static address and hang-ups in a loop must not fill the queues."""
    made = book(plan("10.0.0.0/24", cooldown=0.0))
    give(made, "c0")

    def traffic(rounds):
        for _ in range(rounds):
            made.cancel(made.propose(ask("hangs-up"), moment(1000), 0.0))
            made.cancel(made.propose(ask("hangs-up", "10.0.0.9"), moment(1000), 0.0))
            take_back(made, give(made, "static", "10.0.0.50"))

    traffic(200)
    gc.collect()
    tracemalloc.start()
    try:
        traffic(200)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        traffic(1_000)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 20_000


def test_a_lease_takes_little_memory():
    """60,000 of them are to fit in about 60 MiB: 1 KiB each, with all that finds them."""
    made = book(plan("10.0.0.0/16"))
    give(made, "first", pod="first")
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(4_000):
            container = f"{number:064x}"
            give(made, container, pod=f"web-7d4b9c6f5-{number:05d}")
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used / 4_000 < 1_024


def test_utilization_of_more_than_two_to_the_63():
    made = book(plan("fd00::/32", "10.0.0.0/8", reserved=ranges("fd00::/33"), excluded=ranges("fd00::/34")))
    give(made, "c1")
    small = book(plan("fd00::/124", "10.0.0.0/24", reserved=ranges("fd00::/125"), excluded=ranges("fd00::/126")))
    give(small, "c1")
    efforts = [lines_run(lambda one=one: of_network(one.use("blue", moment(1000)))) for one in (small, made)]
    counts = of_network(made.use("blue", moment(1000)))
    assert counts.capacity == 2**96 - 1 + 2**24 - 2
    assert counts.reserved == 2**95 - 1 + 1  # half of it less the anycast address, and the IPv4 gateway
    assert counts.available == 2**95 + 2**24 - 2 - 1 - 2
    assert efforts[1] == efforts[0]


@pytest.mark.parametrize(("text", "length"), [("10.0.0.0/8", 32), ("fd00::/32", 64), ("::/0", 128)])
def test_the_last_free_block_is_found_at_once(text, length):
    subnet = parse_prefix(text)
    last = Prefix(
        subnet.family, subnet.last.value >> (subnet.family.bits - length) << (subnet.family.bits - length), length
    )
    cutter = BlockCutter(subnet, length, forbidden=IntervalSet.of(subnet) - IntervalSet.of(last))
    assert cutter.remaining == 1
    assert lines_run(lambda: cutter.is_free(last)) < 30
    assert lines_run(cutter.cut) < 60
    assert not cutter.is_free(last)
    assert cutter.cut() is None
    assert lines_run(cutter.cut) < 60
    assert cutter.give_back(last)
    assert cutter.cut() == last
