"""Pools, Claims and allocation objects: what their fields mean, and the names made from them."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allotment.addressing.address import Family, parse_address, parse_prefix
from allotment.addressing.errors import ConfigError
from allotment.api.decoding import decode
from allotment.api.indexes import INDEX_LIMIT, IndexRun, parse_indexes
from allotment.api.kinds import KINDS
from allotment.api.names import NAME_LIMIT, claim_name, is_pool_name, is_subdomain, pool_name
from allotment.api.numbered import ClaimRef
from unit.api.loadbalancer_cases import V6, adv, lbc
from unit.api.pool_cases import address, addresses, index, indexes, prefix, prefixes

TYPES = {kind.name: kind.type for kind in KINDS}
NUMBER = st.integers(0, INDEX_LIMIT)


def read(raw):
    decoded = decode(raw, TYPES)
    assert decoded.problems == ()
    return decoded.resource


@given(NUMBER, NUMBER)
@settings(max_examples=50, deadline=None)
def test_a_range_of_indexes_is_read_as_it_is_written(one, other):
    run = IndexRun(min(one, other), max(one, other))
    assert parse_indexes(str(run)) == run
    assert run.covers(run)
    assert run.size == run.last - run.first + 1


@pytest.mark.parametrize(
    "text", ["", "..", "1..", "..1", "1...2", "1..2..3", " 1", "+1", "1_0", "٣", "²", "0x1", "01", "1-2"]
)
def test_what_is_no_range_of_indexes(text):
    with pytest.raises(ConfigError):
        parse_indexes(text)


def test_a_pool_s_fields_are_parsed():
    pool = read(indexes("7", "64512..65534", exclude=["7"])).spec
    assert (pool.runs, pool.excluded) == ((IndexRun(7, 7), IndexRun(64512, 65534)), (IndexRun(7, 7),))
    assert (pool.reclaim_policy, pool.cooldown_seconds, pool.allowed_uses) == ("Recycle", 0, None)
    pool = read(prefixes("10.4.0.0/16", exclude=["10.4.0.0/24"])).spec
    assert (pool.parsed, pool.prefix_length, pool.excluded.count()) == ((parse_prefix("10.4.0.0/16"),), 26, 256)
    assert read(addresses("fd00::/64")).spec.parsed == (parse_prefix("fd00::/64"),)


def test_the_value_of_an_allocation_object_is_parsed():
    assert read(index()).spec.index == 65001
    assert read(address()).spec.parsed == parse_address("10.4.0.5")
    assert read(prefix()).spec.parsed == parse_prefix("10.4.0.0/26")
    assert not read(index()).allows_binding
    raw = index()
    raw["metadata"]["annotations"] = {"allotment.dev/allow-binding": "true"}
    assert read(raw).allows_binding


def test_a_holder_without_a_namespace_is_in_default_if_its_kind_has_one():
    assert ClaimRef("a").home == "default"
    assert ClaimRef("a", namespace="web").home == "web"
    assert ClaimRef("a", kind="Service").home == "default"
    assert ClaimRef("a", kind="Network").home == ClaimRef("a", kind="Allocation").home == ""


def test_the_addresses_of_a_class_count_as_one_set_per_family():
    pools = read(lbc(v4={"cidrs": ["192.0.2.0/28"], "ranges": ["192.0.2.8-192.0.2.19"]}, v6=V6)).spec.pools
    assert (pools.of(Family.V4).count(), pools.of(Family.V6).count()) == (20, 1 << 16)
    assert not read(lbc(v6=V6)).spec.pools.of(Family.V4)
    assert read(adv("192.0.2.9", "2001:db8::9")).spec.class_ == "public"


def test_a_namespace_of_a_namespaced_kind_is_no_matter():
    raw = adv("192.0.2.9")
    raw["metadata"]["namespace"] = "web"
    assert decode(raw, TYPES).warnings == ()


def test_the_pools_behind_a_network_have_names_that_nobody_else_can_give():
    assert pool_name("blue", Family.V4) == "net.blue.v4"
    assert is_pool_name(pool_name("n" * 50, Family.V6))
    assert not is_pool_name("net.blue")
    assert not is_pool_name("net.a.b.v4")


def test_a_pods_claim_is_named_after_pod_and_attachment():
    digest = hashlib.sha256(b"net.flat.v4\0abc\0eth0").hexdigest()[:16]
    assert claim_name("web-0", "net.flat.v4", "abc", "eth0") == f"web-0.{digest}"
    attachments = [("net.flat.v4", "abc", "eth0"), ("net.flat.v6", "abc", "eth0"), ("net.flat.v4", "abc", "eth1")]
    assert len({claim_name("web-0", *attachment) for attachment in attachments}) == 3


@pytest.mark.parametrize("pod", ["p" * NAME_LIMIT, "p" * 199 + "-" * 10 + "p", "p" * 199 + ".b", "p" * 198 + ".-x"])
def test_a_long_pods_claim_has_a_valid_name(pod):
    name = claim_name(pod, "net.flat.v4", "abc", "eth0")
    assert is_subdomain(name)
    assert len(name) <= 217
