"""What is owed about Claims, rule by rule (ADR 0011); the state machine has the orders."""

import pytest
from msgspec.structs import replace

from allotment.addressing.address import Family, parse_address, parse_prefix
from allotment.addressing.errors import AddressUnavailable, ConfigError, Exhausted, NetworkDraining
from allotment.addressing.lease import Lease, Moment, Owner
from allotment.api.claim import AllocationRef, ClaimStatus
from allotment.api.meta import Condition
from allotment.node.claims.owed import SETTLED, Known, Step, owed
from allotment.node.claims.wanted import Fit, claim_for, fit, key_of_claim, verdict

OWNER = Owner("blue", "c1", "eth0", "shop", "web-0", "uid-1")
POOL = "net.blue.v4"
GONE = "2026-01-01T00:00:00Z"
HELD = ClaimStatus(value="192.0.2.7", allocation_ref=AllocationRef("IPAddress", "net.blue.v4-192.0.2.7"))


def claim(*, ledger="L", status=None, address=None, **metadata):
    made = claim_for(OWNER, Family.V4, address, node="n1", ledger_id=ledger, pod=None)
    return replace(made, metadata=replace(made.metadata, **metadata), status=status or ClaimStatus())


def lease(seconds=0.0, owner=OWNER):
    return Lease(parse_address("192.0.2.7"), parse_prefix("192.0.2.0/24"), owner, 1, Moment("b", seconds), 0.0)


def known(*claims, leases=(), **more):
    return Known(
        **{
            "ledger_id": "L",
            "now": Moment("b", 100.0),
            "claims": claims,
            "leases_of": lambda container, interface: [
                each for each in leases if (each.owner.container_id, each.owner.interface) == (container, interface)
            ],
            "claimed": leases,
            "networks": {POOL: "blue"},
            **more,
        }
    )


def steps(state):
    return [due.step for due in owed(state).due]


KEY = key_of_claim(claim())


def test_a_claim_without_a_lease_is_deleted_and_then_let_go():
    assert steps(known(claim())) == [Step.DELETE]
    assert steps(known(claim(deletion_timestamp=GONE))) == [Step.LET_GO]
    assert steps(known(claim(deletion_timestamp=GONE, finalizers=("x",)))) == []


def test_a_claim_with_a_lease_is_left_alone_also_while_it_is_being_deleted():
    """I6: foreground deletion of a pod marks the Claim while the pod runs."""
    for each in (claim(status=HELD), claim(status=HELD, deletion_timestamp=GONE)):
        found = owed(known(each, leases=[lease()]))
        assert not found.due
        assert found.held == {KEY}


def test_a_lease_of_another_interface_or_network_holds_nothing():
    for owner in (replace_owner(interface="net1"), replace_owner(network="green")):
        assert Step.DELETE in steps(known(claim(), leases=[lease(owner=owner)]))


def replace_owner(**fields):
    return Owner(**{**{name: getattr(OWNER, name) for name in Owner.__slots__}, **fields})


def test_what_a_request_is_at_work_on_is_looked_at_again_soon():
    found = owed(known(claim(), busy={KEY}))
    assert not found.due
    assert found.again is not None


def test_what_a_failed_add_left_waits_for_a_retry_and_no_longer():
    found = owed(known(claim(), left={KEY: 110.0}))
    assert (found.due, found.again, found.left) == ((), 10.0, 1)
    assert steps(known(claim(), left={KEY: 100.0})) == [Step.DELETE]


def test_a_claim_of_a_lost_ledger_becomes_a_lease_again_and_is_not_withdrawn():
    """I1, I6."""
    lost = claim(ledger="lost", status=HELD)
    assert steps(known(lost)) == [Step.ADOPT]
    assert steps(known(replace(lost, metadata=replace(lost.metadata, deletion_timestamp=GONE)))) == [Step.ADOPT]
    assert steps(known(lost, networks={})) == [], "its network is not known yet"
    assert steps(known(lost, leases=[lease()])) == [Step.STAMP]


def test_a_claim_of_a_lost_ledger_goes_where_a_del_said_so_or_it_never_had_an_address():
    assert steps(known(claim(ledger="lost", status=HELD), ended={KEY})) == [Step.DELETE]
    assert steps(known(claim(ledger="lost"))) == [Step.DELETE]


def test_a_lease_whose_claim_is_gone_gets_one_again_after_a_while():
    """I15."""
    assert steps(known(leases=[lease()])) == [Step.CLAIM]
    young = owed(known(leases=[lease(99.0)]))
    assert not young.due
    assert young.again == pytest.approx(SETTLED - 1)
    assert not steps(known(leases=[lease(owner=replace_owner(pod_namespace="", pod_name=""))]))


def test_a_claim_of_people_is_none_of_ours():
    peoples = claim()
    peoples = replace(peoples, spec=replace(peoples.spec, pod=None))
    assert steps(known(peoples)) == []


# -- what a Claim that is there means


def test_a_retry_takes_its_own_claim_whoever_owns_it():
    assert fit(claim(status=HELD), claim()) is Fit.OURS


def test_a_claim_that_is_being_deleted_is_never_used_again():
    """I1: a dead agent's write that lets it go may still be on its way."""
    assert fit(claim(status=HELD, deletion_timestamp=GONE), claim()) is Fit.PAST


def test_a_claim_without_our_finalizer_or_for_another_value_is_let_go_first():
    assert fit(claim(finalizers=()), claim()) is Fit.PAST
    assert fit(claim(), claim(address=parse_address("192.0.2.9"))) is Fit.PAST


def test_a_claim_of_another_node_or_pool_is_not_ours():
    ours = claim()
    for spec in (replace(ours.spec, node="n2"), replace(ours.spec, pod=None)):
        assert fit(replace(ours, spec=spec), ours) is Fit.FOREIGN


def test_an_address_counts_while_our_finalizer_holds_it():
    assert verdict(claim(status=HELD), "blue", "n1") == parse_address("192.0.2.7")
    assert verdict(claim(status=HELD, deletion_timestamp=GONE), "blue", "n1") == parse_address("192.0.2.7")
    assert isinstance(verdict(claim(status=HELD, finalizers=()), "blue", "n1"), str)


@pytest.mark.parametrize(
    ("reason", "error"),
    [("PoolExhausted", Exhausted), ("ValueUnavailable", AddressUnavailable), ("PoolDraining", NetworkDraining)],
)
def test_a_refusal_is_told_in_the_controllers_words(reason, error):
    told = ClaimStatus(conditions=(Condition("Allocated", "False", reason, "held by shop/web-1"),))
    with pytest.raises(error, match="held by shop/web-1"):
        verdict(claim(status=told), "blue", "n1")


def test_other_reasons_are_waited_for():
    told = ClaimStatus(conditions=(Condition("Allocated", "False", "PoolNotFound", "there is no pool yet"),))
    assert "no pool yet" in verdict(claim(status=told), "blue", "n1")
    assert "controller" in verdict(claim(), "blue", "n1")


def test_a_claim_that_is_being_deleted_without_an_address_gets_none():
    with pytest.raises(ConfigError, match="being deleted"):
        verdict(claim(deletion_timestamp=GONE), "blue", "n1")


def test_a_container_without_a_pod_can_have_no_claim():
    with pytest.raises(ConfigError, match="names no pod"):
        claim_for(Owner("blue", "c1", "eth0"), Family.V4, None, node="n1", ledger_id="L", pod=None)
