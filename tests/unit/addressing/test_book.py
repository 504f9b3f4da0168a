"""The lease book: what it says, what it refuses and how, and the corners that random tests seldom reach."""

import pytest

from allotment.addressing.address import parse_address, parse_prefix
from allotment.addressing.book import Claimed, LeaseBook
from allotment.addressing.errors import (
    AddressUnavailable,
    ConfigError,
    Exhausted,
    InternalError,
    NetworkDraining,
    UnknownNetwork,
)
from allotment.addressing.lease import Cause, Forgotten, Owner, Rested
from allotment.addressing.plan import Refusal
from allotment.addressing.state import StateKind

from .networks import ask, block, book, give, moment, plan, ranges, take_back, texts


def refusal_of(made, error, *what, at=1000, **rest):
    with pytest.raises(error) as refused:
        made.propose(ask("c-new", *what, **rest), moment(at), 0.0)
    return refused.value.message


# -- messages


def test_exhaustion_says_the_numbers_and_why_there_is_no_more():
    made = book(plan("10.4.0.0/29", no_more="pool net.blue.v4 is exhausted"))
    leases = [lease for number in range(5) for lease in give(made, f"c{number}")]
    take_back(made, leases[:2], at=1000)
    assert refusal_of(made, Exhausted, at=1021) == (
        "no IP addresses available in network blue on node-3: 3 of 5 in use, 2 cooling (next in 9 s), 1 of 1 blocks; "
        "no further block: pool net.blue.v4 is exhausted"
    )


def test_exhaustion_of_one_family_names_it_and_gives_nothing_of_the_other():
    """Dual-stack is all or nothing."""
    made = book(plan("10.4.0.0/29", "fd00::/126"))
    give(made, "c1")
    give(made, "c2")
    message = refusal_of(made, Exhausted)
    assert "on node-3: IPv6: 2 of 2 in use, 0 cooling, 1 of 1 blocks" in message
    take_back(made, made.of_container("c2", "eth0"))
    assert texts(give(made, "c3", at=1030)) == ["10.4.0.4", "fd00::3"], "the IPv4 one of the failed ask was put back"


def test_exhaustion_counts_only_blocks_that_give():
    made = book(plan("10.4.0.0/30", block("10.4.0.4/30", gives=False)))
    give(made, "c1")
    assert "1 of 1 in use, 0 cooling, 1 of 2 blocks" in refusal_of(made, Exhausted)


def test_no_block_at_all_is_exhaustion_too():
    made = book(plan(subnets=["10.4.0.0/16"], no_more="ask your administrator"))
    assert refusal_of(made, Exhausted) == (
        "no IP addresses available in network blue on node-3: 0 of 0 blocks; no further block: ask your administrator"
    )


def test_an_unknown_network_is_answered_with_the_known_ones():
    made = book(plan("10.4.0.0/29"), plan("10.5.0.0/29", name="green"))
    assert refusal_of(made, UnknownNetwork, network="blu").endswith("the networks here are: blue, green")
    made.apply([], moment(1000))
    assert refusal_of(made, UnknownNetwork).endswith("there is no network here yet")


def test_the_plans_refusal_is_raised_as_it_is():
    made = book(plan("10.4.0.0/29", refusal=Refusal(NetworkDraining, "network blue is going away")))
    assert refusal_of(made, NetworkDraining) == "network blue is going away"


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("10.4.0.2", "is held by pod default/web-1 (container c1, interface eth0)"),
        ("10.4.0.3", "is cooling: released 21 s ago, it may be given again in 9 s"),
        ("10.4.0.4", "is just being given to pod (container c3, interface eth0)"),
        ("10.4.0.0", "is the network address of block 10.4.0.0/28"),
        ("10.4.0.15", "is the broadcast address of block 10.4.0.0/28"),
        ("10.4.0.1", "is the gateway of block 10.4.0.0/28"),
        ("10.4.0.9", "is covered by an IPReservation"),
        ("10.4.0.10", "is excluded by network blue"),
        ("10.4.0.18", "lies in block 10.4.0.16/28, which gives nothing new"),
        ("10.4.1.5", "belongs to network blue, but lies in no block of node-3"),
        ("10.5.0.1", "does not belong to network blue (its subnets: 10.4.0.0/16)"),
        ("fd00::1", "does not belong to network blue"),
    ],
)
def test_an_address_that_cannot_be_had_is_refused_with_the_reason(address, says):
    made = book(
        plan(
            "10.4.0.0/28",
            block("10.4.0.16/28", gives=False),
            subnets=["10.4.0.0/16"],
            reserved=ranges("10.4.0.9"),
            excluded=ranges("10.4.0.10"),
        )
    )
    give(made, "c1", pod="web-1")
    take_back(made, give(made, "c2"))
    made.propose(ask("c3"), moment(1000), 0.0)
    message = refusal_of(made, AddressUnavailable, address, at=1021)
    assert message.startswith(address)
    assert says in message


def test_the_previous_owner_gets_no_earlier_turn():
    """I3: an address that is asked for while it is cooling is refused, whoever asks."""
    made = book(plan("10.4.0.0/28"))
    take_back(made, give(made, "c-new"))
    assert "is cooling" in refusal_of(made, AddressUnavailable, "10.4.0.2", at=1029)
    assert texts(give(made, "c-new", "10.4.0.2", at=1030)) == ["10.4.0.2"]


def test_one_address_per_family_may_be_asked_for():
    made = book(plan("10.4.0.0/28", "fd00::/64"))
    assert "gets one IPv4 address" in refusal_of(made, ConfigError, "10.4.0.5", "10.4.0.6")
    assert texts(give(made, "c1", "fd00::7")) == ["10.4.0.2", "fd00::7"]
    assert texts(give(made, "c2", "fd00::8", "10.4.0.8")) == ["10.4.0.8", "fd00::8"]


# -- two phases


def test_a_hang_up_leaves_a_never_used_address_never_used():
    made = book(plan("10.4.0.0/28"))
    made.cancel(made.propose(ask("c1"), moment(1000), 0.0))
    assert made.state_of("blue", parse_address("10.4.0.2"), moment(1000)).kind is StateKind.NEVER_USED
    assert not made.giving("blue")
    assert texts(give(made, "c2")) == ["10.4.0.2"]


def test_misuse_is_loud_and_changes_nothing():
    made = book(plan("10.4.0.0/28"))
    proposal = made.propose(ask("c1"), moment(1000), 0.0)
    with pytest.raises(InternalError, match="looked up"):
        made.propose(ask("c1"), moment(1000), 0.0)
    other = book(plan("10.4.0.0/28"))
    with pytest.raises(InternalError, match="not open"):
        other.commit(proposal)
    with pytest.raises(InternalError, match="boot"):
        made.propose(ask("c2"), moment(1000, "boot-2"), 0.0)
    with pytest.raises(InternalError, match="loaded"):
        made.load((), (), sequence=0, now=moment(1000))
    made.commit(proposal)
    removal = made.remove(proposal.leases, moment(1001), 0.0, Cause.DEL, "")
    assert made.remove(proposal.leases, moment(1001), 0.0, Cause.DEL, "").changes == ()
    made.commit(removal)
    with pytest.raises(InternalError, match="not open"):
        made.commit(removal)
    assert list(made.leases()) == []


def test_two_leases_of_one_address_are_not_loaded():
    """I1: a ledger that says so is not believed."""
    made = book(plan("10.4.0.0/28"))
    (lease,) = give(made, "c1")
    (other,) = give(book(plan("10.4.0.0/28")), "c2")
    with pytest.raises(InternalError, match=r"two leases of network blue have the address 10\.4\.0\.2"):
        LeaseBook("node").load([lease, other], (), sequence=2, now=moment(1))


def test_a_stale_release_does_nothing():
    """I7: the ABA guard."""
    made = book(plan("10.4.0.0/30", cooldown=0.0))
    old = give(made, "c1")
    take_back(made, old)
    new = give(made, "c2")
    assert texts(new) == texts(old)
    assert take_back(made, old) == ()
    assert made.find(new[0].owner.key) == new


def test_sequence_numbers_are_never_reused():
    made = book(plan("10.4.0.0/28"))
    made.cancel(made.propose(ask("c1"), moment(1000), 0.0))
    (lease,) = give(made, "c2")
    assert lease.sequence == 2
    again = LeaseBook("node")
    again.load([lease], (), sequence=40, now=moment(1000))
    again.apply([plan("10.4.0.0/28")], moment(1000))
    assert give(again, "c3")[0].sequence == 41


# -- plans


def test_a_lease_is_found_and_ended_without_its_network():
    made = book(plan("10.4.0.0/28"))
    leases = give(made, "c1", pod="web-1")
    made.apply([], moment(1000))
    assert made.find(leases[0].owner.key) == leases
    assert made.of_workload("blue", "default.web-1") == leases
    assert take_back(made, leases) == leases
    assert made.snapshot().rests[0].first == leases[0].address
    assert made.housekeeping(moment(1029)) == ()
    assert made.housekeeping(moment(1030)) == (Forgotten("blue", parse_prefix("10.4.0.0/28")),)
    assert made.snapshot().rests == ()
    assert made.networks() == ()


def test_a_block_that_comes_back_within_the_cooldown_keeps_its_rests():
    """I3: also in another shape."""
    made = book(plan("10.4.0.0/30"))
    leases = give(made, "c1")
    made.apply([plan("10.4.1.0/30")], moment(1000))
    take_back(made, leases, at=1010)
    made.apply([plan("10.4.0.0/29")], moment(1020))
    assert made.state_of("blue", leases[0].address, moment(1020)).remaining == 20
    assert texts(give(made, "c2", at=1020)) == ["10.4.0.3"]


def test_exclusions_come_and_go_without_touching_leases():
    made = book(plan("10.4.0.0/29"))
    leases = give(made, "c1")
    take_back(made, give(made, "c2"))
    made.apply([plan("10.4.0.0/29", excluded=ranges("10.4.0.0/29"))], moment(1000))
    assert made.find(leases[0].owner.key) == leases
    assert "1 of 5 in use, 0 cooling, 5 reserved or excluded, 1 of 1 blocks" in refusal_of(made, Exhausted, at=1100)
    made.apply([plan("10.4.0.0/29", excluded=ranges("10.4.0.4-10.4.0.6"))], moment(1100))
    assert texts(give(made, "c3", at=1100)) == ["10.4.0.3"], "rested long enough meanwhile"
    assert "2 of 5 in use, 0 cooling, 3 reserved or excluded" in refusal_of(made, Exhausted, at=1100)


def test_a_changed_cooldown_counts_at_once():
    made = book(plan("10.4.0.0/30"))
    take_back(made, give(made, "c1"))
    made.apply([plan("10.4.0.0/30", cooldown=100.0)], moment(1000))
    assert "next in 50 s" in refusal_of(made, Exhausted, at=1050)
    made.apply([plan("10.4.0.0/30", cooldown=5.0)], moment(1050))
    assert texts(give(made, "c2", at=1050)) == ["10.4.0.2"]


def test_never_used_addresses_of_every_block_go_before_rested_ones():
    """I3 holds over all blocks; then the longest idle goes, wherever it is."""
    made = book(plan("10.4.0.0/30", "10.4.0.4/30", "10.4.0.8/30"))
    first, second = give(made, "c1"), give(made, "c2")
    take_back(made, second, at=1001)
    take_back(made, first, at=1002)
    assert texts(give(made, "c3", at=2000)) == ["10.4.0.10"]
    assert texts(give(made, "c4", at=2000)) == texts(second)
    assert texts(give(made, "c5", at=2000)) == texts(first)


def test_a_block_inside_another_gives_nothing_twice():
    """I1: overlapping blocks in a plan are one."""
    made = book(plan("10.4.0.0/30", "10.4.0.0/29", "10.4.0.6/32"))
    given = [text for number in range(5) for text in texts(give(made, f"c{number}"))]
    assert given == ["10.4.0.2", "10.4.0.3", "10.4.0.4", "10.4.0.5", "10.4.0.6"]
    refusal_of(made, Exhausted)


def test_bridge_keeps_to_one_block():
    made = book(plan("10.4.0.0/30", "10.4.0.4/30"))
    (lease,) = give(made, "c1", one_block=True)
    message = refusal_of(made, Exhausted, one_block=True)
    assert "1 of 1 in use, 0 cooling, 1 of 2 blocks" in message
    assert "keeps to block 10.4.0.0/30" in message
    assert "already uses block 10.4.0.0/30" in refusal_of(made, AddressUnavailable, "10.4.0.6", one_block=True)
    made.apply([plan("10.4.0.4/30")], moment(1000))
    assert "keeps to block 10.4.0.0/30" in refusal_of(made, Exhausted, one_block=True), "its gateway is still there"
    take_back(made, [lease])
    assert texts(give(made, "c2", one_block=True)) == ["10.4.0.6"]


# -- restart


def test_a_rest_of_another_boot_starts_anew_once():
    """I13: from when it is first seen, and not again at the next restart of the agent."""
    made = book(plan("10.4.0.0/30"))
    take_back(made, give(made, "c1"), at=1000)
    state = made.snapshot()
    made = LeaseBook("node-3")
    made.load(state.leases, state.rests, sequence=state.sequence, now=moment(50, "boot-2"))
    made.apply([plan("10.4.0.0/30")], moment(50, "boot-2"))
    (change,) = made.housekeeping(moment(50, "boot-2"))
    assert change == Rested(state.rests, change.after)
    assert change.after.released == moment(50, "boot-2")
    state = made.snapshot()
    made = LeaseBook("node-3")
    made.load(state.leases, state.rests, sequence=state.sequence, now=moment(70, "boot-2"))
    made.apply([plan("10.4.0.0/30")], moment(70, "boot-2"))
    assert made.state_of("blue", parse_address("10.4.0.2"), moment(79, "boot-2")).remaining == 1
    assert made.propose(ask("c2"), moment(80, "boot-2"), 0.0).leases


def test_what_runs_gets_its_address_back_whatever_the_plan_says_of_new_ones():
    made = book(plan("10.4.0.0/29", reserved=ranges("10.4.0.3")))
    take_back(made, give(made, "c1"))
    claims = [
        Claimed(Owner("blue", "r1", "eth0"), parse_address("10.4.0.2")),
        Claimed(Owner("blue", "r2", "eth0"), parse_address("10.4.0.3")),
        Claimed(Owner("blue", "r3", "eth0"), parse_address("10.4.0.3")),
        Claimed(Owner("blue", "r4", "eth0"), parse_address("10.9.0.3")),
        Claimed(Owner("red", "r5", "eth0"), parse_address("10.4.0.4")),
    ]
    proposal = made.restore(claims, moment(1001), 0.0)
    assert texts(proposal.leases) == ["10.4.0.2", "10.4.0.3"]
    with pytest.raises(InternalError, match="restore it later"):
        made.restore(claims, moment(1001), 0.0)
    made.commit(proposal)
    assert texts(made.leases()) == ["10.4.0.2", "10.4.0.3"]
    nothing = made.restore(claims, moment(1002), 0.0)
    made.commit(nothing)
    assert nothing.changes == ()


# -- runs that are joined, and cut again


def joined_run(**rest):
    """A book whose one block has nothing but 10.4.0.2-10.4.0.5 at rest, as one run, and 10.4.0.6 in use."""
    made = book(plan("10.4.0.0/29"), rest_limit=0, **rest)
    leases = [lease for number in range(5) for lease in give(made, f"c{number}")]
    take_back(made, leases[:4], at=1000)
    assert made.housekeeping(moment(1029)) == (), "what is cooling is not joined"
    (change,) = made.housekeeping(moment(1030))
    assert (str(change.after.first), str(change.after.last)) == ("10.4.0.2", "10.4.0.5")
    return made, leases[4]


def runs(made):
    return [(str(rest.first), str(rest.last)) for rest in sorted(made.snapshot().rests, key=lambda rest: rest.first)]


def test_a_run_that_was_cut_in_memory_alone_is_left_alone_until_the_disk_knows():
    """Else a `Rested` would name a run that the ledger doesn't have."""
    made, last = joined_run()
    proposal = made.propose(ask("c5"), moment(1030), 0.0)
    assert texts(proposal.leases) == ["10.4.0.5"]
    take_back(made, [last], at=1030)
    made.cancel(proposal)
    assert runs(made) == [("10.4.0.2", "10.4.0.5"), ("10.4.0.6", "10.4.0.6")], "one run again, as on disk"
    (change,) = made.housekeeping(moment(1060))
    assert [(str(rest.first), str(rest.last)) for rest in change.before] == [
        ("10.4.0.2", "10.4.0.5"),
        ("10.4.0.6", "10.4.0.6"),
    ]
    proposal = made.propose(ask("c6", "10.4.0.4"), moment(1060), 0.0)
    assert made.housekeeping(moment(1100)) == ()
    made.commit(proposal)
    assert runs(made) == [("10.4.0.2", "10.4.0.3"), ("10.4.0.5", "10.4.0.6")]
    take_back(made, proposal.leases, at=1100)
    (change,) = made.housekeeping(moment(1130))
    assert len(change.before) == 3
    assert runs(made) == [("10.4.0.2", "10.4.0.6")]


def test_cuts_that_are_undone_in_any_order_heal():
    made, _ = joined_run()
    asks = [made.propose(ask(f"d{number}"), moment(1030), 0.0) for number in range(4)]
    assert [texts(each.leases) for each in asks] == [["10.4.0.5"], ["10.4.0.4"], ["10.4.0.3"], ["10.4.0.2"]]
    for number in (1, 3, 0, 2):
        made.cancel(asks[number])
    (whole,) = made.snapshot().rests
    assert (str(whole.first), str(whole.last)) == ("10.4.0.2", "10.4.0.5")


def test_a_cut_heals_also_when_its_block_is_gone():
    made, _ = joined_run()
    proposal = made.propose(ask("c5", "10.4.0.3"), moment(1030), 0.0)
    made.apply([plan("10.4.9.0/29")], moment(1030))
    assert made.housekeeping(moment(1030)) == (), "the ledger still needs the block's name for what is being given"
    made.cancel(proposal)
    assert runs(made) == [("10.4.0.2", "10.4.0.5")]
    made.apply([plan("10.4.0.0/28")], moment(1030))
    (change,) = made.housekeeping(moment(1030))
    assert len(change.before) == 1
    assert change.after.block == parse_prefix("10.4.0.0/28"), "on file under its new block's name"
    assert (str(change.after.first), str(change.after.last)) == ("10.4.0.2", "10.4.0.5")


def test_a_block_is_not_forgotten_while_its_name_is_on_file_for_another():
    """I3: forgetting goes by the block's name, so it waits for what would go with it."""
    made, last = joined_run()
    made.apply([plan("10.4.0.0/30")], moment(1030))  # a border in the middle of the run, which the ledger has whole
    take_back(made, [last], at=1030)
    assert made.housekeeping(moment(5000)) == ()
    assert made.state_of("blue", parse_address("10.4.0.2"), moment(5000)).kind is StateKind.IDLE
    assert runs(made) == [("10.4.0.2", "10.4.0.3"), ("10.4.0.4", "10.4.0.5"), ("10.4.0.6", "10.4.0.6")]


def test_a_pods_address_whose_block_went_to_others_is_astray_until_the_block_comes_back():
    """What a node held is taken back with its block; the rest another node may give (I1)."""
    both = plan("10.4.0.0/29", "10.4.0.8/29", shared=True)
    made = book(both)
    leases = [give(made, f"c{number}")[0] for number in range(7)]
    made.apply([plan("10.4.0.8/29", "10.4.0.16/29", shared=True)], moment(1))
    astray = [lease for lease in leases if str(lease.block) == "10.4.0.0/29"]
    assert list(made.strays("blue")) == astray
    assert astray
    assert not made.is_stray(leases[-1])
    made.apply([plan("10.4.0.8/29", shared=True, pending=(astray[0].block,))], moment(2))
    assert not made.strays("blue"), "what is about to be given back is not another's"
    made.apply([both], moment(3))
    assert not made.strays("blue")
    assert give(made, "new")[0].address not in {lease.address for lease in leases}
    made.apply([plan("10.4.0.8/29")], moment(4))
    assert not made.strays("blue"), "nobody says that others have the rest"


# -- addresses that somebody else picks


def claimed(*blocks, **rest):
    return book(plan(*(blocks or ("192.0.2.0/24",)), claimed=True, **rest))


def accepted(made, container, *addresses, at=1000, **rest):
    proposal = made.accept(ask(container, **rest), [parse_address(each) for each in addresses], moment(at), 0.0)
    made.commit(proposal)
    return proposal.leases


def test_of_a_claimed_network_only_what_was_picked_is_given():
    made = claimed("192.0.2.0/24", "fd00::/64")
    assert [family for family, _ in made.to_claim(ask("c1"), moment(1000))] == [4, 6]
    with pytest.raises(InternalError, match="by Claim alone"):
        made.propose(ask("c1"), moment(1000), 0.0)
    assert texts(accepted(made, "c1", "fd00::7", "192.0.2.7")) == ["192.0.2.7", "fd00::7"]
    with pytest.raises(InternalError, match="by this node"):
        book(plan("10.4.0.0/29")).accept(ask("c1"), [], moment(1000), 0.0)


def test_an_address_that_was_picked_twice_or_lies_nowhere_is_not_taken():
    """I1."""
    made = claimed()
    accepted(made, "c1", "192.0.2.7")
    for address, why in (("192.0.2.7", "held by"), ("198.51.100.1", "does not belong")):
        with pytest.raises(AddressUnavailable, match=why):
            accepted(made, "c2", "192.0.2.9", address)
    assert texts(accepted(made, "c3", "192.0.2.9")) == ["192.0.2.9"], "the other one was put back"


def test_how_long_a_picked_address_rests_is_for_who_picks():
    made = claimed(cooldown=600.0)
    take_back(made, accepted(made, "c1", "192.0.2.7"), at=1000)
    assert made.state_of("blue", parse_address("192.0.2.7"), moment(1001)).kind is StateKind.COOLING
    assert made.to_claim(ask("c2", "192.0.2.7"), moment(1001))
    assert texts(accepted(made, "c2", "192.0.2.7", at=1001)) == ["192.0.2.7"]


def test_what_a_node_can_see_for_itself_need_not_be_claimed():
    made = claimed(excluded=ranges("192.0.2.9"), reserved=ranges("192.0.2.10"))
    for address in ("192.0.2.1", "192.0.2.0", "192.0.2.9", "192.0.2.10", "198.51.100.1"):
        with pytest.raises(AddressUnavailable):
            made.to_claim(ask("c1", address), moment(1000))
    free = made.state_of("blue", parse_address("192.0.2.20"), moment(1000))
    assert free.kind is StateKind.CLAIMED
    assert "another node" in str(free)


def test_under_bridge_a_claimed_address_of_a_second_subnet_is_refused():
    made = claimed("192.0.2.0/25", "192.0.2.128/25")
    accepted(made, "c1", "192.0.2.7", one_block=True)
    with pytest.raises(AddressUnavailable, match="one gateway"):
        accepted(made, "c2", "192.0.2.200", one_block=True)
