"""What the conditions of an Allocation say, and since when."""

from __future__ import annotations

import msgspec
import pytest

from allotment.addressing.address import parse_address, parse_prefix
from allotment.addressing.errors import NetworkClosed
from allotment.addressing.lease import Lease, Moment, Owner
from allotment.addressing.plan import BlockPlan, Layer, NetworkPlan, Refusal
from allotment.api.allocation import Allocation, AllocationSpec
from allotment.api.meta import ObjectMeta
from allotment.node.conditions import Facts, condition, conditions
from allotment.node.notices.table import CONDITIONS
from allotment.node.orphans.adoption import Conflict, User

V4, V6 = parse_prefix("10.4.1.0/26"), parse_prefix("fd00:4::/122")
BLUE = Allocation(
    metadata=ObjectMeta(name="blue.n1", generation=7), spec=AllocationSpec(network="blue", node="n1", type=Layer.L3)
)
TWICE = Conflict("blue", parse_address("10.4.1.2"), (User("shop/web-0", "c0"), User("shop/web-1", "c1")))


def plan(*blocks, **more):
    made = tuple(BlockPlan(prefix, prefix.length, None) for prefix in blocks or (V4,))
    return NetworkPlan("blue", Layer.L3, (), made, 0.0, **more)


def facts(plan=None, available=None, **more):
    return Facts(node="n1", plan=plan, available=available or {V4: 3}, **more)


def lease(number):
    owner = Owner("blue", f"c{number}", "eth0", pod_namespace="shop", pod_name=f"web-{number}")
    return Lease(parse_address(f"10.4.1.{number}"), V4, owner, number, Moment("b", 0.0), 0.0, "")


def ready(known, before=BLUE, wall=0.0):
    return next(each for each in conditions(before, known, wall) if each.type == "Ready")


def test_it_is_ready_while_every_family_has_something_to_give():
    found = ready(facts(plan(V4, V6), {V4: 1, V6: 1}))
    assert (found.status, found.reason, found.observed_generation) == ("True", "Serving", 7)


@pytest.mark.parametrize(
    ("known", "reason", "says"),
    [
        (facts(plan(), fault="the disk is full"), "LedgerUnavailable", "the disk is full"),
        (facts(plan(refusal=Refusal(NetworkClosed, "it is closed"))), "NetworkClosed", "it is closed"),
        (facts(NetworkPlan("blue", Layer.L3, (), (), 0.0, no_more="pool empty")), "NoBlock", "pool empty"),
        (facts(NetworkPlan("blue", Layer.L3, (), (), 0.0, pending=(V4,))), "BlockNotConfirmed", "10.4.1.0/26"),
        (facts(plan(no_more="the cap is reached"), {V4: 0}), "AddressesExhausted", "cap is reached"),
        (facts(plan(V4, V6), {V4: 9, V6: 0}), "AddressesExhausted", "every IPv6 address"),
        (facts(None), "NotAdmitted", "n1"),
    ],
)
def test_it_says_why_it_is_not_ready(known, reason, says):
    found = ready(known)
    assert (found.status, found.reason) == ("False", reason)
    assert says in found.message


def test_a_block_that_gives_nothing_new_counts_for_nothing():
    shut = NetworkPlan("blue", Layer.L3, (), (BlockPlan(V4, 26, None, gives=False),), 0.0)
    assert ready(facts(shut, {V4: 60})).reason == "AddressesExhausted"


def test_an_l2_network_is_ready_without_blocks():
    assert ready(facts(NetworkPlan("blue", Layer.L2, (), (), 0.0))).status == "True"


def test_the_time_is_that_of_the_last_change_of_status_whatever_the_reason():
    first = conditions(BLUE, facts(None), 1_000_000_000.0)
    told = msgspec.structs.replace(BLUE, status=msgspec.structs.replace(BLUE.status, conditions=first))
    again = ready(facts(plan(), {V4: 0}), told, 1_000_000_500.0)
    assert again.reason == "AddressesExhausted"
    assert again.last_transition_time == first[0].last_transition_time == "2001-09-09T01:46:40Z"
    assert ready(facts(plan()), told, 1_000_000_500.0).last_transition_time == "2001-09-09T01:55:00Z"


def test_a_drain_names_some_of_whom_it_waits_for():
    left = tuple(lease(number) for number in range(2, 10))
    draining = next(
        each
        for each in conditions(BLUE, facts(plan(), draining="Network blue is gone", left=left), 0.0)
        if each.type == "Draining"
    )
    assert draining.reason == "LeasesLeft"
    assert draining.message.startswith("Network blue is gone; 8 leases left: shop/web-2, ")
    assert draining.message.endswith(" and 3 more")


def test_a_drain_without_leases_waits_for_a_request_under_way():
    found = conditions(BLUE, facts(plan(), draining="Network blue is gone"), 0.0)
    assert [each.reason for each in found if each.type == "Draining"] == ["RequestsInFlight"]


def test_a_conflict_is_told_and_its_end_as_well():
    found = conditions(BLUE, facts(plan(), conflicts=(TWICE,)), 0.0)
    told = msgspec.structs.replace(BLUE, status=msgspec.structs.replace(BLUE.status, conditions=found))
    conflict = condition(told.status, "Conflict")
    assert (conflict.status, conflict.reason) == ("True", "AddressUsedTwice")
    assert conflict.message == "10.4.1.2 is used by shop/web-0 (c0) and shop/web-1 (c1)"
    after = [each for each in conditions(told, facts(plan(), conflicts=()), 0.0) if each.type == "Conflict"]
    assert [(each.status, each.reason) for each in after] == [("False", "NoConflict")]
    first = conditions(BLUE, facts(plan(), conflicts=()), 0.0)
    assert [each.type for each in first] == ["Ready"], "nobody spoke of a conflict"


def test_an_agent_that_has_not_looked_yet_leaves_a_conflict_told():
    found = conditions(BLUE, facts(plan(), conflicts=(TWICE,)), 0.0)
    told = msgspec.structs.replace(BLUE, status=msgspec.structs.replace(BLUE.status, conditions=found))
    assert conditions(told, facts(plan()), 9.0) == found


def test_many_conflicts_fit_into_a_condition():
    found = conditions(BLUE, facts(plan(), conflicts=(TWICE,) * 500), 0.0)
    assert len(found[-1].message) < 32768
    assert found[-1].message.endswith("and 495 more")


def test_every_reason_is_in_the_documentation():
    known = facts(plan(), draining="x", left=(lease(2),), conflicts=(TWICE,))
    for each in conditions(BLUE, known, 0.0):
        assert each.reason in CONDITIONS[each.type]
