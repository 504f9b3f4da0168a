"""Addresses and prefixes: one value, one text; anything else is refused with the right form."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allotment.addressing.address import Address, Family, Prefix, parse_address, parse_prefix
from allotment.addressing.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "written"),
    [("10.1.2.3", "10.1.2.3"), ("::0005", "::5"), ("FD00:0:0::1", "fd00::1"), ("0.0.0.0", "0.0.0.0")],
)
def test_an_address_has_one_text(text, written):
    assert str(parse_address(text)) == written
    assert parse_address(written) == parse_address(text)


@pytest.mark.parametrize(
    ("text", "right_form"),
    [
        ("10.1.2.03", "'10.1.2.3'"),
        ("::ffff:10.1.2.3", "'10.1.2.3'"),
        ("fe80::1%eth0", "'fe80::1'"),
        ("10.1.2.3/24", "'10.1.2.3'"),
        ("10.1.2", "10.1.2.3"),
        ("10.1.2.256", "10.1.2.3"),
        ("\uff11\uff10.1.2.3", "10.1.2.3"),
    ],
)
def test_a_wrong_address_is_refused_with_the_right_form(text, right_form):
    with pytest.raises(ConfigError) as refused:
        parse_address(text)
    assert right_form in refused.value.message


@pytest.mark.parametrize(
    ("text", "right_form"),
    [
        ("10.1.2.3/24", "'10.1.2.0/24'"),
        ("fd00::1/64", "'fd00::/64'"),
        ("10.1.2.0", "10.4.0.0/16"),
        ("10.1.2.0/33", "0 to 32"),
        ("10.1.2.0/024", "0 to 32"),
        ("10.1.2.0/", "0 to 32"),
        ("fd00::/129", "0 to 128"),
    ],
)
def test_a_wrong_prefix_is_refused_with_the_right_form(text, right_form):
    with pytest.raises(ConfigError) as refused:
        parse_prefix(text)
    assert right_form in refused.value.message


def test_prefix_containment_and_order():
    wide, narrow = parse_prefix("10.0.0.0/8"), parse_prefix("10.1.0.0/16")
    assert narrow in wide
    assert wide not in narrow
    assert wide.overlaps(narrow)
    assert narrow.overlaps(wide)
    assert not narrow.overlaps(parse_prefix("10.2.0.0/16"))
    assert parse_address("10.1.2.3") in narrow
    assert parse_address("::1") not in wide
    assert sorted([narrow, wide]) == [wide, narrow]
    assert (wide.first, wide.last, wide.size) == (parse_address("10.0.0.0"), parse_address("10.255.255.255"), 2**24)


def test_steps_stay_in_the_family():
    assert parse_address("10.0.0.255") + 1 == parse_address("10.0.1.0")
    with pytest.raises(ValueError, match="outside IPv4"):
        _ = parse_address("255.255.255.255") + 1
    assert str(Prefix(Family.V6, 0, 0)) == "::/0"
    assert Address(Family.V4, 1) < Address(Family.V6, 0)


@given(st.lists(st.sampled_from([0, 0, 0, 1, 0x20, 0xABC, 0xFFFF]), min_size=8, max_size=8))
def test_ipv6_is_written_as_rfc_5952_asks(groups):
    value = int.from_bytes(b"".join(group.to_bytes(2, "big") for group in groups), "big")
    assert str(Address(Family.V6, value)) == str(ipaddress.IPv6Address(value))


def test_a_number_of_any_length_is_refused_and_not_tripped_over():
    with pytest.raises(ConfigError):
        parse_address("1.2.3." + "9" * 5000)
