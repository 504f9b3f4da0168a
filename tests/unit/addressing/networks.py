"""Plans, asks and a book in a few words, for the tests beside this file."""

from allotment.addressing.address import parse_address, parse_prefix
from allotment.addressing.book import Ask, LeaseBook
from allotment.addressing.edges import block_gateway
from allotment.addressing.intervals import IntervalSet, parse_range
from allotment.addressing.lease import Cause, Moment, Owner
from allotment.addressing.plan import BlockPlan, Layer, NetworkPlan

BOOT = "boot-1"


def moment(seconds, boot=BOOT):
    return Moment(boot, float(seconds))


def ranges(*texts):
    return IntervalSet.of(*(parse_range(text) for text in texts))


def block(text, **rest):
    prefix = parse_prefix(text)
    return BlockPlan(prefix, prefix.length, block_gateway(prefix), **rest)


def plan(*blocks, subnets=(), **rest):
    blocks = tuple(block(each) if isinstance(each, str) else each for each in blocks)
    subnets = tuple(map(parse_prefix, subnets)) or tuple(each.prefix for each in blocks)
    return NetworkPlan(rest.pop("name", "blue"), Layer.L3, subnets, blocks, rest.pop("cooldown", 30.0), **rest)


def book(*plans, at=1000, **rest):
    made = LeaseBook("node-3", **rest)
    made.load((), (), sequence=0, now=moment(at))
    made.apply(plans, moment(at))
    return made


def ask(container, *addresses, network="blue", pod="", **rest):
    owner = Owner(network, container, "eth0", "default" if pod else "", pod)
    return Ask(owner, "/run/netns/" + container, tuple(map(parse_address, addresses)), **rest)


def give(made, container, *addresses, at=1000, **rest):
    """Propose and commit; the leases."""
    proposal = made.propose(ask(container, *addresses, **rest), moment(at), 1.7e9 + at)
    made.commit(proposal)
    return proposal.leases


def take_back(made, leases, at=1000):
    """Remove and commit; what was removed."""
    removal = made.remove(leases, moment(at), 1.7e9 + at, Cause.DEL, "test")
    made.commit(removal)
    return removal.leases


def texts(leases):
    return [str(lease.address) for lease in leases]
