"""Who is to get a lease, and where two use one address; the search with a runtime is in test_orphan_search.py."""

from allotment.addressing.address import parse_address, parse_prefix
from allotment.addressing.edges import block_gateway
from allotment.addressing.lease import Lease, LeaseKind, Moment, Owner
from allotment.addressing.plan import BlockPlan, Layer, NetworkPlan
from allotment.cri.messages import Sandbox
from allotment.node.orphans.adoption import Seen, reconcile

BLOCK = parse_prefix("10.4.1.0/24")
PLAN = NetworkPlan(
    name="blue",
    layer=Layer.L3,
    subnets=(BLOCK,),
    blocks=(BlockPlan(BLOCK, BLOCK.length, block_gateway(BLOCK)),),
    cooldown=0.0,
)


def runs(name, *addresses, **more):
    ips = tuple(map(parse_address, addresses))
    fields = {"name": f"pod-{name}", "namespace": "shop", "uid": f"uid-{name}", "ready": True, **more}
    return Sandbox(name, ips=ips, netns=f"/run/netns/{name}", **fields)


def lease(container, address, *, network="blue", kind=LeaseKind.POD):
    owner = Owner(network, container, "eth0", "shop", f"pod-{container}", f"uid-{container}", kind=kind)
    return Lease(parse_address(address), BLOCK, owner, 1, Moment("b", 0.0), 0.0)


def seen(*looks):
    """The last of some looks: each is (seconds, running, leases before, leases after), of boot `b` unless said."""
    found = Seen()
    for at, running, before, after, *boot in looks:
        moment = Moment(boot[0] if boot else "b", at)
        found = reconcile([PLAN], running, before, after, at=moment, earlier=found)
    return found


def adopted(*looks):
    return [(claim.owner.container_id, str(claim.address)) for claim in seen(*looks).adopt]


C1 = [runs("c1", "10.4.1.5")]


def test_two_looks_thirty_seconds_apart_adopt_it():
    assert adopted((10, C1, [], [])) == []
    assert adopted((10, C1, [], []), (39, C1, [], [])) == []
    (claim,) = seen((10, C1, [], []), (39, C1, [], []), (40, C1, [], [])).adopt
    assert claim.owner == Owner("blue", "c1", "eth0", "shop", "pod-c1", "uid-c1")
    assert (str(claim.address), claim.netns) == ("10.4.1.5", "/run/netns/c1")


def test_a_look_that_does_not_show_it_begins_it_anew():
    assert adopted((10, C1, [], []), (40, [], [], []), (70, C1, [], [])) == []


def test_a_lease_at_either_end_of_a_look_is_a_lease():
    """A DEL, or an ADD, came between the runtime's answer and ours."""
    own = [lease("c1", "10.4.1.5")]
    assert adopted((10, C1, [], []), (40, C1, own, [])) == []
    assert adopted((10, C1, [], []), (40, C1, [], own)) == []
    assert seen((10, C1, own, []), (40, C1, [], own)).conflicts == ()


def test_another_boot_has_seen_nothing():
    """I13."""
    assert adopted((10, C1, [], []), (5000, C1, [], [], "c")) == []
    assert adopted((5000, C1, [], []), (10, C1, [], [], "c"), (40, C1, [], [], "c")) == [("c1", "10.4.1.5")]


def test_the_tunnels_address_is_not_a_pods():
    looks = [(at, C1, [lease("node", "10.4.1.5", kind=LeaseKind.TUNNEL)], []) for at in (10, 40)]
    found = seen(*looks)
    assert found.adopt == ()
    assert [user.name for user in found.conflicts[0].users] == ["shop/pod-c1", "shop/pod-node"]


def test_a_conflict_is_one_whoever_of_the_two_has_the_lease():
    both = [runs("c1", "10.4.1.5"), runs("c2", "10.4.1.5")]
    without = seen((10, both, [], []), (20, both, [], []))
    with_lease = seen(*((at, both, [lease("c2", "10.4.1.5")], []) for at in (10, 20)))
    assert without.conflicts == with_lease.conflicts
    assert tuple(user[:2] for user in without.conflicts[0].users) == (("shop/pod-c1", "c1"), ("shop/pod-c2", "c2"))
    assert without.adopt == with_lease.adopt == ()


def test_one_look_alone_is_no_conflict():
    both = [runs("c1", "10.4.1.5"), runs("c2", "10.4.1.5")]
    assert seen((10, both, [], [])).conflicts == ()
    assert seen((10, both, [], []), (20, both[:1], [], []), (30, both, [], [])).conflicts == ()
