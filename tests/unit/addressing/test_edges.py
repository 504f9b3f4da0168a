"""C34: what a prefix can't hand out, in one table; the counts are what is really handed out, no more and no less."""

import pytest

from allotment.addressing.address import parse_address, parse_prefix
from allotment.addressing.block import BlockSpace
from allotment.addressing.book import Ask, LeaseBook
from allotment.addressing.edges import LINK_LOCAL_GATEWAY, block_gateway, edge_name, unusable
from allotment.addressing.errors import AddressUnavailable, Exhausted
from allotment.addressing.lease import Moment, Owner
from allotment.addressing.plan import BlockPlan, Layer, NetworkPlan
from allotment.addressing.utilization import of_block, of_network

TABLE = [
    # prefix, gateway, what can be given to pods
    ("10.0.0.8/29", "10.0.0.9", ["10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.14"]),
    ("10.0.0.4/30", "10.0.0.5", ["10.0.0.6"]),
    ("10.0.0.4/31", None, ["10.0.0.4", "10.0.0.5"]),
    ("10.0.0.4/32", None, ["10.0.0.4"]),
    ("255.255.255.252/30", "255.255.255.253", ["255.255.255.254"]),
    ("255.255.255.254/31", None, ["255.255.255.254", "255.255.255.255"]),
    ("255.255.255.255/32", None, ["255.255.255.255"]),
    ("0.0.0.0/31", None, ["0.0.0.0", "0.0.0.1"]),
    ("fd00::8/125", "fd00::9", ["fd00::a", "fd00::b", "fd00::c", "fd00::d", "fd00::e", "fd00::f"]),
    ("fd00::4/126", "fd00::5", ["fd00::6", "fd00::7"]),
    ("fd00::4/127", None, ["fd00::4", "fd00::5"]),
    ("fd00::4/128", None, ["fd00::4"]),
    (
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128",
        None,
        ["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
    ),
]


@pytest.mark.parametrize(("text", "gateway", "given"), TABLE)
def test_what_is_counted_is_what_is_handed_out(text, gateway, given):
    prefix = parse_prefix(text)
    expected_gateway = None if gateway is None else parse_address(gateway)
    assert block_gateway(prefix) == expected_gateway
    plan = NetworkPlan(
        "blue", Layer.L3, (prefix,), (BlockPlan(prefix, prefix.length, block_gateway(prefix)),), cooldown=30.0
    )
    now = Moment("boot", 1.0)
    book = LeaseBook("node")
    book.load((), (), sequence=0, now=now)
    book.apply([plan], now)
    counts = of_block(book.use("blue", now), prefix)
    assert counts == of_network(book.use("blue", now))
    assert counts.available == len(given)
    assert counts.capacity == len(given) + (gateway is not None)
    assert counts.reserved == (gateway is not None)
    handed_out = []
    for number in range(len(given)):
        proposal = book.propose(Ask(Owner("blue", f"c{number}", "eth0")), now, 0.0)
        book.commit(proposal)
        handed_out += [str(lease.address) for lease in proposal.leases]
    assert handed_out == given
    full = of_block(book.use("blue", now), prefix)
    assert (full.in_use, full.available) == (len(given), 0)
    with pytest.raises(Exhausted, match=f"{len(given)} of {len(given)} in use, 0 cooling, 1 of 1 blocks"):
        book.propose(Ask(Owner("blue", "one-more", "eth0")), now, 0.0)


@pytest.mark.parametrize(("text", "gateway", "given"), TABLE)
def test_an_edge_that_is_asked_for_is_refused_by_name(text, gateway, given):
    prefix = parse_prefix(text)
    now = Moment("boot", 1.0)
    book = LeaseBook("node")
    book.load((), (), sequence=0, now=now)
    plan = NetworkPlan(
        "blue", Layer.L3, (prefix,), (BlockPlan(prefix, prefix.length, block_gateway(prefix)),), cooldown=30.0
    )
    book.apply([plan], now)
    for first, last in unusable(prefix):
        assert first == last
        name = edge_name(prefix, first)
        assert name is not None
        with pytest.raises(AddressUnavailable, match=name):
            book.propose(Ask(Owner("blue", "c", "eth0"), requested=(first,)), now, 0.0)
    if gateway is not None:
        with pytest.raises(AddressUnavailable, match="is the gateway of block"):
            book.propose(Ask(Owner("blue", "c", "eth0"), requested=(parse_address(gateway),)), now, 0.0)
    for address in given:
        proposal = book.propose(Ask(Owner("blue", "c", "eth0"), requested=(parse_address(address),)), now, 0.0)
        assert [str(lease.address) for lease in proposal.leases] == [address]
        book.cancel(proposal)


def test_edges_of_a_whole_family():
    """A /0 works like any other prefix, in one step."""
    space = BlockSpace("blue", parse_prefix("::/0"), "boot")
    space.block(unusable(space.prefix))
    assert space.take(0.0) == (1, None)
    assert block_gateway(parse_prefix("0.0.0.0/0")) == parse_address("0.0.0.1")


def test_the_link_local_gateways():
    assert [str(LINK_LOCAL_GATEWAY[family]) for family in sorted(LINK_LOCAL_GATEWAY)] == ["169.254.1.1", "fe80::1"]
