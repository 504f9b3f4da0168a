"""Utilization is of sets: what overlaps counts once, and available can't be worked out from the other four."""

import pytest

from allotment.addressing.address import Family, parse_prefix
from allotment.addressing.utilization import Use, Utilization, of_block, of_network, reserved_alone

from .networks import book, give, moment, plan, ranges, take_back


def numbers(made, at=1000):
    use = made.use("blue", moment(at))
    return of_network(use), {str(prefix): of_block(use, prefix) for prefix in use.blocks}


def test_states_follow_the_clock_without_a_write():
    made = book(plan("10.4.0.0/29"))
    give(made, "c1")
    take_back(made, give(made, "c2"))
    whole, blocks = numbers(made, at=1029)
    assert whole == Utilization(capacity=6, in_use=1, reserved=1, cooling=1, available=3)
    assert blocks == {"10.4.0.0/29": whole}
    assert numbers(made, at=1030)[0] == Utilization(capacity=6, in_use=1, reserved=1, cooling=0, available=4)


def test_a_lease_inside_a_reservation_counts_in_both_and_is_taken_off_once():
    made = book(plan("10.4.0.0/29"))
    give(made, "c1")
    give(made, "c2")
    take_back(made, made.of_container("c2", "eth0"))
    made.apply([plan("10.4.0.0/29", reserved=ranges("10.4.0.0/30"), excluded=ranges("10.4.0.3"))], moment(1000))
    whole, _ = numbers(made)
    assert whole == Utilization(capacity=6, in_use=1, reserved=3, cooling=1, available=3)


def test_overlapping_and_nested_reservations_count_once():
    use = Use(
        subnets=(parse_prefix("10.4.0.0/24"),),
        reserved=ranges("10.4.0.0/28", "10.4.0.8/29", "10.4.0.4-10.4.0.20", "10.9.0.0/16"),
    )
    assert of_network(use) == Utilization(capacity=254, in_use=0, reserved=20, cooling=0, available=234)


def test_a_network_spans_its_subnets_cut_or_not():
    """The edges of the blocks there are can't be handed out either; the rest of the subnet counts as it is."""
    made = book(plan("10.4.0.0/29", "10.4.0.8/29", subnets=["10.4.0.0/24"], reserved=ranges("10.4.0.128/25")))
    whole, blocks = numbers(made)
    # 256 less the subnet's two edges, the first block's end and the second one's both edges.
    assert whole.capacity == 256 - 2 - 3
    assert whole.reserved == 2 + 127  # two gateways; the subnet's last address is no part of the capacity
    assert whole.available == whole.capacity - whole.reserved
    assert [each.available for each in blocks.values()] == [5, 5]


def test_families_apart_and_together():
    made = book(plan("10.4.0.0/29", "fd00::/126"))
    give(made, "c1")
    use = made.use("blue", moment(1000))
    four, six = of_network(use, Family.V4), of_network(use, Family.V6)
    assert four == Utilization(capacity=6, in_use=1, reserved=1, cooling=0, available=4)
    assert six == Utilization(capacity=3, in_use=1, reserved=1, cooling=0, available=1)
    assert of_network(use).available == four.available + six.available


def test_an_unknown_network_has_nothing():
    assert of_network(book().use("red", moment(1000))) == Utilization(0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        (("10.4.0.0/25",), 127),
        (("10.4.0.0/25", "10.4.0.0/26", "10.4.0.100-10.4.0.130"), 130),
        (("10.9.0.0/16",), 0),
        (("0.0.0.0/0", "::/0"), 254 + 2**64 - 1),
    ],
)
def test_the_reserved_count_alone_agrees_with_the_whole(reserved, expected):
    subnets = (parse_prefix("10.4.0.0/24"), parse_prefix("fd00::/64"))
    assert reserved_alone(ranges(*reserved), subnets) == expected
    assert of_network(Use(subnets=subnets, reserved=ranges(*reserved))).reserved == expected
