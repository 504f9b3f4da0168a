"""What objects mean for a node: the table from (Network, Allocation) to what the lease book may do (I4)."""

from __future__ import annotations

import msgspec
import pytest

from allotment.addressing.address import parse_address, parse_prefix
from allotment.addressing.errors import NetworkClosed, NetworkDraining, NotAdmitted
from allotment.addressing.plan import Layer
from allotment.api.allocation import Allocation, AllocationSpec, Block
from allotment.api.ipamconfig import IPAMConfig, IPAMConfigSpec
from allotment.api.meta import NODE_FINALIZER, ObjectMeta
from allotment.api.network import Network, NetworkSpec, Subnet
from allotment.api.reservation import IPReservation, IPReservationSpec
from allotment.node.plans import network_plans
from allotment.node.view import View

change = msgspec.structs.replace

L3 = Network(
    metadata=ObjectMeta(name="blue"),
    spec=NetworkSpec(
        type=Layer.L3,
        subnets=(
            Subnet("10.4.0.0/16", 24, exclude=("10.4.1.9", "10.4.1.16/28")),
            Subnet("fd00:4::/56", 64),
        ),
    ),
)
L2 = Network(
    metadata=ObjectMeta(name="blue"),
    spec=NetworkSpec(type=Layer.L2, subnets=(Subnet("192.0.2.0/24", gateway="192.0.2.254"),)),
)
ALLOCATION = Allocation(
    metadata=ObjectMeta(name="blue.n1", finalizers=(NODE_FINALIZER,)),
    spec=AllocationSpec(
        network="blue",
        node="n1",
        type=Layer.L3,
        blocks=(Block("10.4.1.0/24", "Confirmed"), Block("10.4.2.0/24", "Pending"), Block("fd00:4::/64", "Confirmed")),
    ),
)


def plan(network: Network | None, allocation: Allocation | None, **view):
    networks = {"blue": network} if network else {}
    allocations = {"blue": allocation} if allocation else {}
    found = network_plans(View(networks=networks, allocations=allocations, synced=True, **view), "n1")
    assert len(found) == 1
    return found[0]


def test_only_confirmed_blocks_are_there_with_their_own_length_and_first_address_as_gateway() -> None:
    """I4: a Pending block is nobody's yet."""
    found = plan(L3, ALLOCATION)
    assert found.refusal is None
    assert [(str(block.prefix), block.length, str(block.gateway)) for block in found.blocks] == [
        ("10.4.1.0/24", 24, "10.4.1.1"),
        ("fd00:4::/64", 64, "fd00:4::1"),
    ]


def test_a_block_too_small_for_a_gateway_has_none() -> None:
    spec = change(ALLOCATION.spec, blocks=(Block("10.4.1.6/31", "Confirmed"), Block("fd00:4::8/128", "Confirmed")))
    assert [block.gateway for block in plan(L3, change(ALLOCATION, spec=spec)).blocks] == [None, None]


def test_exclusions_and_reservations_are_sets() -> None:
    reservation = IPReservation(
        metadata=ObjectMeta(name="printers"), spec=IPReservationSpec(reserved_cidrs=("10.4.1.64/26", "10.4.1.64/27"))
    )
    found = plan(L3, ALLOCATION, reservations={"printers": reservation})
    assert found.excluded.count() == 17
    assert parse_address("10.4.1.9") in found.excluded
    assert found.reserved.count() == 64


def test_on_l2_in_standalone_the_subnets_are_served_as_they_are() -> None:
    marker = change(ALLOCATION, spec=change(ALLOCATION.spec, type=Layer.L2, blocks=()))
    found = plan(L2, marker, local_l2=True)
    assert found.refusal is None
    (block,) = found.blocks
    assert (block.prefix, block.length, str(block.gateway)) == (parse_prefix("192.0.2.0/24"), 24, "192.0.2.254")


def test_on_l2_in_a_cluster_no_node_gives_of_the_subnet_what_all_nodes_share() -> None:
    """I1, I4: the plan is for Claims, and says of the subnet only length and gateway."""
    marker = change(ALLOCATION, spec=change(ALLOCATION.spec, type=Layer.L2, blocks=()))
    found = plan(L2, marker)
    assert found.refusal is None
    assert found.claimed
    (block,) = found.blocks
    assert (block.prefix, str(block.gateway)) == (parse_prefix("192.0.2.0/24"), "192.0.2.254")
    assert not plan(L2, marker, local_l2=True).claimed
    assert not plan(L3, ALLOCATION).claimed


def test_an_l2_network_on_its_way_out_still_says_where_its_addresses_lie() -> None:
    """I5: the marker goes first, and a pod that asks again is told its subnet's gateway."""
    leaving = change(L2, metadata=change(L2.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    assert len(plan(leaving, None).blocks) == 1
    assert plan(L2, None).blocks == ()


@pytest.mark.parametrize(
    ("network", "allocation", "error", "words"),
    [
        pytest.param(L3, None, NotAdmitted, "no Allocation", id="not admitted"),
        pytest.param(
            L3,
            change(ALLOCATION, metadata=change(ALLOCATION.metadata, finalizers=())),
            NotAdmitted,
            "finalizer is not on Allocation blue.n1",
            id="no finalizer",
        ),
        pytest.param(
            L3,
            change(ALLOCATION, metadata=change(ALLOCATION.metadata, finalizers=("allotment.dev/guard",))),
            NotAdmitted,
            "finalizer",
            id="somebody else's finalizer",
        ),
        pytest.param(
            L3, change(ALLOCATION, spec=change(ALLOCATION.spec, closed=True)), NetworkClosed, "closed", id="closed"
        ),
        pytest.param(
            L3,
            change(ALLOCATION, metadata=change(ALLOCATION.metadata, deletion_timestamp="2026-01-01T00:00:00Z")),
            NetworkDraining,
            "Allocation blue.n1 is being deleted",
            id="allocation terminating",
        ),
        pytest.param(
            change(L3, metadata=change(L3.metadata, deletion_timestamp="2026-01-01T00:00:00Z")),
            ALLOCATION,
            NetworkDraining,
            "Network blue is being deleted",
            id="network terminating",
        ),
        pytest.param(None, ALLOCATION, NetworkDraining, "Network blue is gone", id="network absent"),
        pytest.param(
            change(L3, metadata=change(L3.metadata, deletion_timestamp="2026-01-01T00:00:00Z")),
            None,
            NetworkDraining,
            "being deleted",
            id="network terminating, never admitted",
        ),
    ],
)
def test_what_gives_nothing_new_and_says_why(network, allocation, error, words) -> None:
    """I4, I9: anything but a live, open Allocation with our finalizer, of a live Network, gives nothing."""
    refusal = plan(network, allocation).refusal
    assert refusal is not None
    assert refusal.error is error
    assert words in refusal.message
    assert "n1" in refusal.message or allocation is None


def test_a_closed_subnet_keeps_its_blocks_and_gives_from_none_of_them() -> None:
    subnets = (change(L3.spec.subnets[0], closed=True), Subnet("10.5.0.0/16", 24), L3.spec.subnets[1])
    found = plan(change(L3, spec=change(L3.spec, subnets=subnets)), ALLOCATION)
    assert [block.gives for block in found.blocks] == [False, True]
    assert found.refusal is None


@pytest.mark.parametrize(
    ("closed", "words"),
    [
        ((True, False), "is closed: its IPv4 subnets all are, and a pod gets an address of each family or none"),
        ((False, True), "is closed: its IPv6 subnets all are, and a pod gets an address of each family or none"),
        ((True, True), "is closed: all its subnets are"),
    ],
)
def test_a_network_whose_last_subnet_of_a_family_is_closed_is_closed(closed, words) -> None:
    subnets = tuple(change(subnet, closed=shut) for subnet, shut in zip(L3.spec.subnets, closed, strict=True))
    refusal = plan(change(L3, spec=change(L3.spec, subnets=subnets)), ALLOCATION).refusal
    assert refusal is not None
    assert refusal.error is NetworkClosed
    assert words in refusal.message


def test_a_family_that_never_had_a_block_here_closes_nothing() -> None:
    """A subnet that was closed from the start was never taken up: pods get the other family alone."""
    subnets = (L3.spec.subnets[0], change(L3.spec.subnets[1], closed=True))
    v4 = change(ALLOCATION, spec=change(ALLOCATION.spec, blocks=(Block("10.4.1.0/24", "Confirmed"),)))
    assert plan(change(L3, spec=change(L3.spec, subnets=subnets)), v4).refusal is None


def test_a_block_that_was_offered_back_gives_nothing() -> None:
    status = change(ALLOCATION.status, relinquished=("10.4.1.0/24",))
    assert [block.gives for block in plan(L3, change(ALLOCATION, status=status)).blocks] == [False, True]


def test_the_networks_own_cooldown_goes_before_the_config_and_that_before_the_default() -> None:
    config = IPAMConfig(metadata=ObjectMeta(name="default"), spec=IPAMConfigSpec(cooldown_seconds=77))
    own = change(L3, spec=change(L3.spec, cooldown_seconds=5))
    assert plan(own, ALLOCATION, config=config).cooldown == 5.0
    assert plan(L3, ALLOCATION, config=config).cooldown == 77.0
    assert plan(L3, ALLOCATION).cooldown == 30.0


def test_why_a_network_is_not_admitted_is_told_in_the_sources_words() -> None:
    refusal = plan(L3, None, unadmitted={"blue": "broken.yaml can't be read"}).refusal
    assert refusal is not None
    assert "broken.yaml can't be read" in refusal.message


def test_why_there_is_no_further_block() -> None:
    whole = change(ALLOCATION.spec, blocks=(Block("10.4.0.0/16", "Confirmed"), Block("fd00:4::/56", "Confirmed")))
    assert "this node has all of it" in plan(L3, change(ALLOCATION, spec=whole)).no_more
    assert plan(L3, ALLOCATION).no_more == "none was given to this node from net.blue.v4 and net.blue.v6"
