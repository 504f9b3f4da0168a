"""What a look proves, and what it doesn't; any order of looks is in tests/property/test_orphans.py."""

import pytest

from allotment.addressing.address import parse_address, parse_prefix
from allotment.addressing.lease import Lease, LeaseKind, Moment, Owner
from allotment.node.orphans.verdicts import Look, Pods, Sandboxes, Unreadable, judge

BLOCK = parse_prefix("10.4.1.0/24")
NOBODY = Sandboxes(frozenset())


def lease(name="c1", *, given=0.0, netns=None, boot="b", **owner):
    fields = {"pod_namespace": "shop", "pod_name": name, "pod_uid": f"uid-{name}", **owner}
    number = int(name[1:])
    return Lease(
        parse_address(f"10.4.1.{number}"),
        BLOCK,
        Owner("blue", name, "eth0", **fields),
        number,
        Moment(boot, given),
        0.0,
        f"/run/netns/{name}" if netns is None else netns,
    )


def look(at, sandboxes=NOBODY, pods=None, gone=None, boot="b"):
    return Look(Moment(boot, at), sandboxes, pods, {} if gone is None else gone)


def judged(leases, *looks):
    """The last of some verdicts in a row."""
    suspects, verdict = {}, None
    for each in looks:
        verdict = judge(leases, each, suspects)
        suspects = verdict.suspects
    return verdict


def freed(leases, *looks):
    return [orphan.lease.owner.container_id for orphan in judged(leases, *looks).orphans]


GONE = {"/run/netns/c1": True}
THERE = {"/run/netns/c1": False}


def test_two_looks_thirty_seconds_apart_free_it():
    assert freed([lease()], look(120, gone=GONE)) == []
    assert freed([lease()], look(120, gone=GONE), look(149, gone=GONE)) == []
    verdict = judged([lease()], look(120, gone=GONE), look(149, gone=GONE), look(151, gone=GONE))
    (orphan,) = verdict.orphans
    assert orphan.evidence == (
        "the runtime doesn't know its sandbox, and its network namespace /run/netns/c1 is gone, in looks 31 s apart"
    )


def test_a_young_lease_is_not_judged():
    assert freed([lease(given=100)], look(180, gone=GONE), look(219, gone=GONE)) == []
    assert freed([lease(given=100)], look(220, gone=GONE), look(250, gone=GONE)) == ["c1"]


def test_one_that_was_given_after_the_look_began_is_not_judged():
    """C8: leases are read before any source."""
    assert freed([lease(given=500)], look(400, gone=GONE), look(450, gone=GONE)) == []


def test_a_sandbox_that_is_known_is_there_even_if_nothing_else_is():
    """The Pod object may be gone, and the namespace with it, while the runtime still takes its sandbox down."""
    known = Sandboxes(frozenset({"c1"}))
    looks = [look(at, known, Pods(frozenset({"other"})), GONE) for at in (200, 300, 400)]
    assert freed([lease()], *looks) == []


@pytest.mark.parametrize("between", [Unreadable("hangs"), Sandboxes(frozenset({"c1"}))])
def test_what_was_suspected_is_forgotten_when_a_look_fails_or_shows_it(between):
    looks = [look(200, gone=GONE), look(231, between, gone=GONE), look(262, gone=GONE)]
    assert freed([lease()], *looks) == []
    assert freed([lease()], *looks, look(292, gone=GONE)) == ["c1"]


def test_a_runtime_that_cannot_be_asked_is_said_and_nothing_else_is_believed():
    gone = [look(at, Unreadable("the socket is away"), Pods(frozenset({"x"})), GONE) for at in (200, 300)]
    verdict = judged([lease()], *gone)
    assert (verdict.orphans, verdict.suspects, verdict.blind) == ((), {}, "the socket is away")


def test_a_namespace_that_is_there_holds_the_address_and_is_told():
    """The sandbox is being made, or the runtime has lost it; in both its address is configured there."""
    leases, other = [lease(), lease("c2")], Sandboxes(frozenset({"c2"}))
    assert judged(leases, look(300, other, gone=THERE), look(400, other, gone=THERE)).held == ()
    verdict = judged(leases, look(5000, other, gone=THERE), look(9000, other, gone=THERE))
    assert (verdict.orphans, verdict.suspects) == ((), {})
    assert [each.lease.owner.container_id for each in verdict.held] == ["c1"]


def test_a_namespace_that_cannot_be_seen_is_waited_for_as_long_as_a_sandbox_may_be_made():
    leases, other = [lease(), lease("c2")], Sandboxes(frozenset({"c2"}))
    assert freed(leases, look(300, other), look(599, other)) == []
    assert freed(leases, look(600, other), look(630, other)) == ["c1"]


def test_a_runtime_that_knows_none_of_ours_is_doubted_while_one_of_them_shows_life():
    """I15: another runtime's socket, or a list that isn't whole."""
    leases = [lease(), lease("c2")]
    gone = {"/run/netns/c1": True, "/run/netns/c2": False}
    for answer in (NOBODY, Sandboxes(frozenset({"stranger"}))):
        verdict = judged(leases, look(200, answer, gone=gone), look(300, answer, gone=gone))
        assert verdict.orphans == ()
        assert "/run/netns/c2 of one of them is there" in verdict.blind
        assert "--runtime-socket" in verdict.blind


def test_a_runtime_that_knows_none_of_ours_is_doubted_while_nothing_can_be_seen():
    looks = [look(at, Sandboxes(frozenset({"stranger"})), gone={"/run/netns/c1": None}) for at in (5000, 6000)]
    assert "can't be looked at" in judged([lease()], *looks).blind


def test_an_empty_list_is_doubted_while_pods_are_bound_here():
    """I15, C15."""
    looks = [look(at, NOBODY, Pods(frozenset({"agent"})), GONE) for at in (200, 300)]
    verdict = judged([lease()], *looks)
    assert (verdict.orphans, verdict.suspects) == ((), {})
    assert "pods are bound to this node" in verdict.blind


def test_an_empty_list_is_believed_when_nothing_speaks_against_it():
    """The last pods of a node go as well."""
    assert freed([lease()], look(200, gone=GONE), look(230, gone=GONE)) == ["c1"]
    assert freed([lease()], look(200, NOBODY, Unreadable("stale"), GONE), look(230, gone=GONE)) == ["c1"]


@pytest.mark.parametrize("other", [{"pod_uid": ""}, {"kind": LeaseKind.TUNNEL}, {"boot": "another boot"}])
def test_others_are_none_of_its_business(other):
    """Containers of podman are on no list; tunnels belong to the node; leases of an earlier boot end at the start."""
    assert freed([lease(**other)], look(5000, gone=GONE), look(6000, gone=GONE)) == []


# -- without a runtime ----------------------------------------------------------------------------------------------


def test_without_a_runtime_pods_and_namespaces_must_both_say_so():
    here, away = Pods(frozenset({"uid-c1"})), Pods(frozenset({"uid-c2"}))
    for pods, gone, expected in [
        (away, GONE, ["c1"]),
        (here, GONE, []),  # C9: a pod may be pending for long
        (away, THERE, []),  # with a grace period of 0 the object goes first
        (away, {"/run/netns/c1": None}, []),
        (away, {}, []),
    ]:
        assert freed([lease()], *(look(at, None, pods, gone) for at in (200, 230))) == expected


def test_without_a_runtime_stale_pods_say_nothing():
    """C12."""
    looks = [look(at, None, Unreadable("no contact for 90 s"), GONE) for at in (200, 230, 260)]
    verdict = judged([lease()], *looks)
    assert (verdict.suspects, verdict.blind) == ({}, "no contact for 90 s")


def test_no_pods_at_all_are_doubted_while_a_namespace_is_there():
    """I15."""
    gone = {"/run/netns/c1": True, "/run/netns/c2": False}
    looks = [look(at, None, Pods(frozenset()), gone) for at in (200, 230)]
    verdict = judged([lease(), lease("c2")], *looks)
    assert (verdict.orphans, bool(verdict.blind)) == ((), True)


def test_with_nobody_to_ask_nothing_is_judged():
    verdict = judged([lease()], look(200, None, None, GONE), look(300, None, None, GONE))
    assert (verdict.orphans, bool(verdict.blind)) == ((), True)


def test_another_boot_has_seen_nothing():
    """I13: moments of two boots can't be compared."""
    suspects = judge([lease()], look(200, gone=GONE), {}).suspects
    later = judge([lease(boot="c")], look(5000, gone=GONE, boot="c"), suspects)
    assert later.orphans == ()
    assert later.suspects[1].since == Moment("c", 5000)
