"""Whether a node can have addresses for all pods that its kubelet takes."""

from __future__ import annotations

import pytest

from allotment.addressing.address import Family
from allotment.addressing.plan import Layer
from allotment.api.allocation import Allocation, AllocationSpec, Block
from allotment.api.ipamconfig import IPAMConfig, IPAMConfigSpec
from allotment.api.meta import ObjectMeta
from allotment.api.network import Network, NetworkSpec, Subnet
from allotment.api.reservation import IPReservation, IPReservationSpec
from allotment.node.room import addresses_at_most, too_few
from allotment.node.view import View

STRICT = IPAMConfig(metadata=ObjectMeta(name="default"), spec=IPAMConfigSpec(strict_affinity=True))


def view(*subnets, blocks=("10.4.0.0/26",), limit=110, layer=Layer.L3, cap=1, closed=False, config=STRICT, **more):
    cap = cap if layer is Layer.L3 else None
    network = Network(
        metadata=ObjectMeta(name="blue"),
        spec=NetworkSpec(type=layer, subnets=subnets or (Subnet("10.4.0.0/16", 26),), max_blocks_per_node=cap),
    )
    held = tuple(Block(cidr, "Confirmed") for cidr in blocks) if layer is Layer.L3 else ()
    spec = AllocationSpec(network="blue", node="n1", type=layer, blocks=held, closed=closed)
    allocation = Allocation(metadata=ObjectMeta(name="blue.n1"), spec=spec)
    return View(
        networks={"blue": network},
        allocations={"blue": allocation},
        config=config,
        pod_limit=limit,
        controlled=True,
        synced=True,
        **more,
    )


def most(known):
    return addresses_at_most(known, "blue")


def test_a_block_has_neither_its_edges_nor_its_gateway_to_give():
    assert most(view()) == {Family.V4: 61}


@pytest.mark.parametrize(("cap", "count"), [(1, 61), (2, 122), (20, 1220), (5000, 1024 * 61)])
def test_it_grows_to_its_cap_or_to_what_the_subnet_has(cap, count):
    assert most(view(cap=cap)) == {Family.V4: count}


def test_further_blocks_are_taken_for_the_largest_there_are():
    subnets = (Subnet("10.4.0.0/24", 26), Subnet("10.5.0.0/24", 25))
    assert most(view(*subnets, cap=4)) == {Family.V4: 61 + 125 + 125 + 61}


def test_what_is_excluded_or_reserved_does_not_count():
    subnet = Subnet("10.4.0.0/16", 26, exclude=("10.4.0.16/28",))
    kept = IPReservation(metadata=ObjectMeta(name="printers"), spec=IPReservationSpec(("10.4.0.32/29",)))
    assert most(view(subnet, reservations={"printers": kept})) == {Family.V4: 61 - 16 - 8}


def test_a_node_that_gets_no_further_block_keeps_to_those_it_has():
    fixed = IPAMConfig(metadata=ObjectMeta(name="default"), spec=IPAMConfigSpec(True, auto_allocate_blocks=False))
    assert most(view(cap=9, config=fixed)) == {Family.V4: 61}


def test_a_flat_network_has_its_whole_subnet():
    assert most(view(Subnet("10.4.0.0/24", gateway="10.4.0.1"), layer=Layer.L2)) == {Family.V4: 253}


def test_ipv6_blocks_are_never_too_few():
    subnets = (Subnet("10.4.0.0/16", 26), Subnet("fd00:4::/48", 64))
    assert most(view(*subnets))[Family.V6] > 1 << 63


def test_too_few_are_told_with_both_numbers():
    said = too_few(view())
    assert "takes 110 pods" in said
    assert "blue 61" in said


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(view(limit=61), id="just enough"),
        pytest.param(view(cap=2), id="can grow"),
        pytest.param(view(limit=None), id="nobody knows how many pods"),
        pytest.param(view(closed=True), id="closed"),
        pytest.param(View(pod_limit=110, synced=True), id="no network"),
    ],
)
def test_nothing_is_said(known):
    assert too_few(known) == ""


def test_one_network_with_room_is_enough():
    """Which one the pods are to have, the node doesn't know."""
    small, large = view(), view(cap=20)
    networks = {**small.networks, "green": large.networks["blue"]}
    allocations = {**small.allocations, "green": large.allocations["blue"]}
    known = View(networks=networks, allocations=allocations, config=STRICT, pod_limit=110, controlled=True, synced=True)
    assert too_few(known) == ""
