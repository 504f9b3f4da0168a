"""What the lease book does with the addresses of virtual machines (ADR 0013)."""

from dataclasses import replace

import pytest

from allotment.addressing.address import parse_address
from allotment.addressing.book import Ask
from allotment.addressing.errors import AddressUnavailable, Exhausted, NetworkClosed, NotAdmitted, TryAgain
from allotment.addressing.lease import Cause, Granted, LeaseKind, Owner, Released
from allotment.addressing.plan import Refusal
from allotment.addressing.state import StateKind

from .networks import block, book, give, moment, plan, ranges, texts

BOTH = ("10.4.0.0/28", "fd00::/124")


def vm_ask(container, *addresses, vm="db", interface="eth0", **rest):
    owner = Owner("blue", container, interface, "shop", f"launcher-{container}", vm=vm)
    return Ask(owner, "/run/netns/" + container, tuple(map(parse_address, addresses)), **rest)


def start(made, container, *addresses, at=1000, **rest):
    """A pod of VM shop/db gets its addresses."""
    proposal = made.propose(vm_ask(container, *addresses, **rest), moment(at), 1.7e9 + at)
    made.commit(proposal)
    return proposal.leases


def stop(made, container, cause=Cause.DEL, interface="eth0"):
    removal = made.remove(made.of_container(container, interface), moment(1000), 0.0, cause, "test")
    made.commit(removal)
    return removal


def kept(made):
    return sorted(texts(made.kept()))


def test_what_a_pod_leaves_is_kept_in_the_same_change_and_the_next_pod_takes_it_over():
    """I6, I7: three leases one after the other, each with a number of its own; never free, never cooling."""
    made = book(plan(*BOTH, keeps=True))
    before = start(made, "c1")
    removal = made.remove(before, moment(1001), 0.0, Cause.DEL, "test")
    assert [type(change) for change in removal.writes] == [Released, Released, Granted, Granted]
    assert kept(made) == [], "nothing before it is on disk"
    made.commit(removal)
    assert kept(made) == texts(before)
    assert {lease.owner for lease in made.kept()} == {
        Owner("blue", "shop/db", "eth0", "shop", kind=LeaseKind.VM, vm="db")
    }
    state = made.state_of("blue", before[0].address, moment(1001))
    assert state.kind is StateKind.LEASED
    assert "virtual machine shop/db" in str(state)
    assert texts(give(made, "other", at=1001)) != texts(before)
    proposal = made.propose(vm_ask("c2"), moment(1002), 0.0)
    assert [type(change) for change in proposal.writes] == [Released, Released, Granted, Granted]
    assert {change.cause for change in proposal.ended} == {Cause.RESUMED}
    made.commit(proposal)
    assert texts(proposal.leases) == texts(before)
    assert kept(made) == []
    numbers = [lease.sequence for lease in (*before, *(change.lease for change in proposal.ended), *proposal.leases)]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("again", [True, False])
def test_what_the_disk_refuses_changes_nothing(again):
    made = book(plan(*BOTH, keeps=True))
    before = start(made, "c1")
    made.cancel(made.remove(before, moment(1000), 0.0, Cause.DEL, "test"))
    assert made.of_container("c1", "eth0") == before
    stop(made, "c1")
    state = made.snapshot()
    made.cancel(made.propose(vm_ask("c2"), moment(1000), 0.0))
    assert replace(made.snapshot(), sequence=state.sequence) == state
    if again:
        assert texts(start(made, "c2")) == texts(before)
    else:
        made.commit(made.remove(made.kept(), moment(1000), 0.0, Cause.UNKEPT, "test"))
        assert made.state_of("blue", before[0].address, moment(1000)).kind is StateKind.COOLING


def test_a_kept_address_that_is_just_being_ended_is_not_taken_over():
    """I7: the end that is on its way to the disk names it; the pod gets another."""
    made = book(plan("10.4.0.0/28", keeps=True))
    before = start(made, "c1")
    stop(made, "c1")
    ending = made.remove(made.kept(), moment(1000), 0.0, Cause.UNKEPT, "test")
    assert texts(start(made, "c2")) != texts(before)
    made.commit(ending)
    assert kept(made) == []


def test_a_kept_address_that_is_just_being_taken_over_is_not_ended():
    """I7."""
    made = book(plan("10.4.0.0/28", keeps=True))
    start(made, "c1")
    stop(made, "c1")
    proposal = made.propose(vm_ask("c2"), moment(1000), 0.0)
    assert made.remove(made.kept(), moment(1000), 0.0, Cause.UNKEPT, "test").changes == ()
    made.commit(proposal)
    assert len(made.of_container("c2", "eth0")) == 1


def test_a_second_pod_waits_for_the_first_ones_end_also_while_that_is_being_given():
    """I1."""
    made = book(plan("10.4.0.0/28", keeps=True))
    proposal = made.propose(vm_ask("c1"), moment(1000), 0.0)
    with pytest.raises(TryAgain, match="by its pod shop/launcher-c1"):
        made.propose(vm_ask("c2"), moment(1000), 0.0)
    made.commit(proposal)
    with pytest.raises(TryAgain, match="by its pod shop/launcher-c1"):
        made.propose(vm_ask("c2"), moment(1000), 0.0)
    assert start(made, "c3", vm="cart")
    assert start(made, "c2", interface="net1"), "another interface has an address of its own"


def test_another_vm_of_the_same_name_elsewhere_is_another():
    made = book(plan("10.4.0.0/28", keeps=True))
    before = start(made, "c1")
    stop(made, "c1")
    owner = replace(vm_ask("c2").owner, pod_namespace="other")
    proposal = made.propose(Ask(owner), moment(1000), 0.0)
    made.commit(proposal)
    assert texts(proposal.leases) != texts(before)
    assert kept(made) == texts(before)


def test_without_persistence_two_pods_have_two_addresses_and_the_last_one_is_kept_once_it_is_on():
    made = book(plan("10.4.0.0/28"))
    first, second = start(made, "c1"), start(made, "c2")
    made.apply([plan("10.4.0.0/28", keeps=True)], moment(1000))
    stop(made, "c1")
    assert kept(made) == [], "the machine has another"
    stop(made, "c2")
    assert kept(made) == texts(second)
    assert made.state_of("blue", first[0].address, moment(1000)).kind is StateKind.COOLING


@pytest.mark.parametrize("cause", [each for each in Cause if each not in (Cause.OPERATOR, Cause.RESUMED, Cause.UNKEPT)])
def test_however_a_pods_lease_ends_its_address_is_kept(cause):
    made = book(plan("10.4.0.0/28", keeps=True))
    before = start(made, "c1")
    assert stop(made, "c1", cause).leases == before
    assert kept(made) == texts(before)


def test_an_operators_word_a_pod_of_no_vm_and_a_kept_one_itself_keep_nothing():
    made = book(plan("10.4.0.0/28", keeps=True))
    start(made, "c1")
    stop(made, "c1", Cause.OPERATOR)
    assert kept(made) == []
    start(made, "c2", vm="")
    stop(made, "c2")
    assert kept(made) == []
    start(made, "c3")
    stop(made, "c3")
    made.commit(made.remove(made.kept(), moment(1000), 0.0, Cause.UNKEPT, "test"))
    assert kept(made) == []


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(plan("10.4.0.0/28"), id="persistence off"),
        pytest.param(plan("10.4.0.0/28", keeps=True, excluded=ranges("10.4.0.2")), id="excluded"),
        pytest.param(plan("10.4.0.0/28", keeps=True, reserved=ranges("10.4.0.2")), id="reserved"),
        pytest.param(plan(block("10.4.0.0/28", gives=False), "10.5.0.0/28", keeps=True), id="closed block"),
        pytest.param(plan("10.5.0.0/28", keeps=True), id="block gone"),
    ],
)
def test_what_may_not_be_given_is_neither_kept_nor_taken_over(now):
    made = book(plan("10.4.0.0/28", keeps=True))
    (lease,) = start(made, "c1")
    stop(made, "c1")
    made.apply([now], moment(1000))
    assert not made.may_keep(lease)
    again = start(made, "c2")
    assert again[0].address != lease.address
    assert kept(made) == [], "what was kept ends with it"
    if now.keeps:
        assert made.remove(again, moment(1000), 0.0, Cause.DEL, "test").kept


def test_an_address_asked_for_goes_before_the_one_that_was_kept():
    made = book(plan("10.4.0.0/28", keeps=True))
    start(made, "c1", "10.4.0.9")
    stop(made, "c1")
    assert texts(start(made, "c2", "10.4.0.9")) == ["10.4.0.9"]
    stop(made, "c2")
    assert texts(start(made, "c3", "10.4.0.5")) == ["10.4.0.5"]
    assert made.state_of("blue", parse_address("10.4.0.9"), moment(1000)).kind is StateKind.COOLING
    assert kept(made) == []


def test_nobody_else_may_ask_for_a_kept_address():
    made = book(plan("10.4.0.0/28", keeps=True))
    start(made, "c1", "10.4.0.9")
    stop(made, "c1")
    with pytest.raises(AddressUnavailable, match="virtual machine shop/db"):
        give(made, "other", "10.4.0.9")
    with pytest.raises(AddressUnavailable, match="virtual machine shop/db"):
        start(made, "c2", "10.4.0.9", vm="cart")


def test_a_family_that_came_since_is_given_and_one_that_went_is_let_go():
    made = book(plan("10.4.0.0/28", keeps=True))
    first = start(made, "c1")
    stop(made, "c1")
    made.apply([plan(*BOTH, keeps=True)], moment(1000))
    both = start(made, "c2")
    assert texts(both)[0] == texts(first)[0]
    assert len(both) == 2
    stop(made, "c2")
    made.apply([plan("fd00::/124", keeps=True)], moment(1000))
    assert texts(start(made, "c3")) == texts(both)[1:]
    assert kept(made) == []


def test_a_family_that_is_exhausted_leaves_the_other_kept():
    """All families or none."""
    made = book(plan("10.4.0.0/28", keeps=True))
    first = start(made, "c1")
    stop(made, "c1")
    made.apply([plan("10.4.0.0/28", "fd00::/126", keeps=True)], moment(1000))
    give(made, "x1")
    give(made, "x2")
    with pytest.raises(Exhausted):
        start(made, "c2")
    assert kept(made) == texts(first)
    assert made.state_of("blue", first[0].address, moment(1000)).kind is StateKind.LEASED


def test_under_the_bridge_plugin_an_address_of_another_block_is_let_go():
    made = book(plan("10.4.0.0/29", "10.4.0.8/29", keeps=True))
    start(made, "c1", "10.4.0.10")
    stop(made, "c1")
    assert texts(start(made, "c2", one_block=True)) == ["10.4.0.10"]
    stop(made, "c2")
    give(made, "x", "10.4.0.3")
    assert texts(start(made, "c3", one_block=True)) == ["10.4.0.2"]
    assert kept(made) == []


@pytest.mark.parametrize("error", [NotAdmitted, NetworkClosed])
def test_a_network_that_refuses_gives_not_even_what_it_kept(error):
    """I4."""
    made = book(plan("10.4.0.0/28", keeps=True))
    before = start(made, "c1")
    stop(made, "c1")
    made.apply([plan("10.4.0.0/28", keeps=True, refusal=Refusal(error, "for the test"))], moment(1000))
    with pytest.raises(error):
        start(made, "c2")
    assert kept(made) == texts(before)


def test_a_block_with_a_kept_address_is_not_empty_and_the_address_counts_as_in_use():
    made = book(plan("10.4.0.0/28", keeps=True, cooldown=0.0))
    (lease,) = start(made, "c1")
    stop(made, "c1")
    assert not made.is_empty("blue", lease.block, moment(2000))
    assert lease.address in made.use("blue", moment(2000)).in_use


def test_what_was_kept_is_there_after_a_start_in_another_boot_too():
    made = book(plan("10.4.0.0/28", keeps=True))
    before = start(made, "c1")
    stop(made, "c1")
    state = made.snapshot()
    again = type(made)("node-3")
    again.load(state.leases, state.rests, sequence=state.sequence, now=moment(5, "boot-2"))
    again.apply([plan("10.4.0.0/28", keeps=True)], moment(5, "boot-2"))
    proposal = again.propose(vm_ask("c2"), moment(5, "boot-2"), 0.0)
    again.commit(proposal)
    assert texts(proposal.leases) == texts(before)
    assert proposal.leases[0].since == moment(5, "boot-2")
