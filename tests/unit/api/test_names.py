"""Names: valid, and one for each value (C31)."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allotment.addressing.address import Address, Family, Prefix, parse_address, parse_prefix
from allotment.api.meta import wire_name
from allotment.api.names import address_name, allocation_name, index_name, is_label, is_subdomain, prefix_name

LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
POOL = st.one_of(LABEL, LABEL.map(lambda label: f"net.{label}.v4"), st.sampled_from(["a", "a-10.0.0.0", "a-b"]))
ADDRESS = st.sampled_from(list(Family)).flatmap(
    lambda family: st.integers(0, family.top).map(lambda value: Address(family, value))
)


@st.composite
def prefixes(draw):
    address = draw(ADDRESS)
    length = draw(st.integers(0, address.family.bits))
    host = address.family.bits - length
    return Prefix(address.family, address.value >> host << host, length)


@pytest.mark.parametrize("text", ["fd00::", "::", "2001:db8::", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"])
def test_ipv6_names_are_valid_object_names_c31(text):
    assert is_subdomain(address_name("pool", parse_address(text)))


def test_names_made_from_values():
    assert address_name("web", parse_address("10.4.0.5")) == "web-10.4.0.5"
    assert address_name("web", parse_address("fd00::")) == "web-fd00-0000-0000-0000-0000-0000-0000-0000"
    assert prefix_name("net.blue.v4", parse_prefix("10.4.0.0/24")) == "net.blue.v4-10.4.0.0-24"
    assert index_name("vni", 5) == "vni-5"


@settings(max_examples=50, deadline=None)
@given(POOL, ADDRESS, POOL, ADDRESS)
def test_two_addresses_never_share_a_name(pool, address, other_pool, other):
    same = address_name(pool, address) == address_name(other_pool, other)
    assert same == ((pool, address) == (other_pool, other))


@settings(max_examples=50, deadline=None)
@given(POOL, prefixes(), POOL, prefixes())
def test_two_prefixes_never_share_a_name(pool, prefix, other_pool, other):
    assert is_subdomain(prefix_name(pool, prefix))
    same = prefix_name(pool, prefix) == prefix_name(other_pool, other)
    assert same == ((pool, prefix) == (other_pool, other))


def test_a_long_allocation_name_has_the_nodes_digest():
    assert allocation_name("blue", "n1") == "blue.n1"
    at_limit = "n" * (253 - len("blue."))
    assert allocation_name("blue", at_limit) == f"blue.{at_limit}"
    longer = at_limit + "n"
    assert allocation_name("blue", longer) == f"blue.{hashlib.sha256(longer.encode()).hexdigest()[:40]}"


def test_labels():
    assert is_label("a" * 50, 50)
    assert not is_label("a" * 51, 50)
    assert not any(map(is_label, ["", "-a", "a-", "A", "a.b", "a_b", "a\n", "ä"]))
    assert not any(map(is_subdomain, ["", "a..b", ".a", "a.", "a" * 254]))


def test_field_names_on_the_wire():
    names = ["network_uid", "network_id_pool", "node_pod_cidrs", "reserved_cidrs", "uid", "cidr", "api_version"]
    assert [wire_name(name) for name in names] == [
        "networkUID",
        "networkIDPool",
        "nodePodCIDRs",
        "reservedCIDRs",
        "uid",
        "cidr",
        "apiVersion",
    ]
