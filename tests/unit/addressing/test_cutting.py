"""Cutting subnets into blocks: what is passed over, and what is refused. Orders at random: tests/property."""

import pytest

from allotment.addressing.address import parse_prefix
from allotment.addressing.cutting import BlockCutter
from allotment.addressing.errors import ConfigError

from .networks import ranges


def cutter(text="10.0.0.0/24", length=26, **left_out):
    return BlockCutter(parse_prefix(text), length, **left_out)


def cut_all(one):
    blocks = []
    while (block := one.cut()) is not None:
        blocks.append(str(block))
    return blocks


def test_blocks_come_lowest_first_and_go_back():
    one = cutter()
    assert cut_all(one) == ["10.0.0.0/26", "10.0.0.64/26", "10.0.0.128/26", "10.0.0.192/26"]
    assert one.give_back(parse_prefix("10.0.0.128/26"))
    assert not one.give_back(parse_prefix("10.0.0.128/26"))
    assert one.give_back(parse_prefix("10.0.0.64/26"))
    assert cut_all(one) == ["10.0.0.64/26", "10.0.0.128/26"]


def test_a_touched_block_is_forbidden_and_a_partly_reserved_one_is_not():
    assert cut_all(cutter(forbidden=ranges("10.0.0.63"))) == ["10.0.0.64/26", "10.0.0.128/26", "10.0.0.192/26"]
    assert cut_all(cutter(reserved=ranges("10.0.0.3-10.0.0.189"))) == ["10.0.0.0/26", "10.0.0.128/26", "10.0.0.192/26"]


def test_a_block_whose_every_usable_address_is_reserved_is_passed_over():
    """Its network address, gateway and broadcast address give nothing either."""
    assert "10.0.0.64/26" not in cut_all(cutter(reserved=ranges("10.0.0.66-10.0.0.126")))
    assert "10.0.0.64/26" in cut_all(cutter(reserved=ranges("10.0.0.67-10.0.0.126")))
    assert "10.0.0.64/26" in cut_all(cutter(reserved=ranges("10.0.0.66-10.0.0.125")))
    assert "fd00::40/122" not in cut_all(cutter("fd00::/120", 122, reserved=ranges("fd00::42-fd00::7f")))
    assert "fd00::40/122" in cut_all(cutter("fd00::/120", 122, reserved=ranges("fd00::42-fd00::7e")))
    assert cut_all(cutter("10.0.0.0/31", 32, reserved=ranges("10.0.0.0"))) == ["10.0.0.1/32"]


def test_what_is_left_out_may_change_and_leaves_what_was_cut():
    one = cutter(forbidden=ranges("10.0.0.0/25"))
    assert str(one.cut()) == "10.0.0.128/26"
    assert one.remaining == 1
    one.leave_out(ranges("10.0.0.128/25"), ranges())
    assert cut_all(one) == ["10.0.0.0/26", "10.0.0.64/26"]
    assert [str(block) for block in one.taken()] == ["10.0.0.0/26", "10.0.0.64/26", "10.0.0.128/26"]


def test_a_given_block_is_taken_once_left_out_or_not():
    one = cutter(forbidden=ranges("10.0.0.0/25"))
    assert one.reserve(parse_prefix("10.0.0.0/26"))
    assert not one.reserve(parse_prefix("10.0.0.0/26"))


def test_what_is_no_block_is_refused():
    with pytest.raises(ConfigError, match="prefix length from 24 to 32"):
        cutter(length=23)
    with pytest.raises(ConfigError, match="prefix length from 64 to 128"):
        cutter("fd00::/64", 129)
    for text in ("10.0.0.0/25", "10.0.1.0/26", "fd00::/122"):
        with pytest.raises(ConfigError, match=r"not a block of 10\.0\.0\.0/24 cut into /26"):
            cutter().reserve(parse_prefix(text))
