"""Which object an Event regards, and what is the same Event again."""

import pytest

from allotment.addressing.plan import Layer
from allotment.addressing.reasons import Reason
from allotment.api.allocation import Allocation, AllocationSpec
from allotment.api.meta import API_VERSION, ObjectMeta
from allotment.api.network import Network, NetworkSpec, Subnet
from allotment.kube.objects import Node, ObjectReference
from allotment.node.cluster_events import event_of
from allotment.node.notices.notice import NODE, Notice, Subject, allocation_of, network, this
from allotment.node.notices.table import NOTICES, About, Happened
from allotment.node.view import View

BLUE = Network(
    metadata=ObjectMeta(name="blue", uid="u-blue"),
    spec=NetworkSpec(type=Layer.L3, subnets=(Subnet("10.4.0.0/16", 26),)),
)
OURS = Allocation(
    metadata=ObjectMeta(name="blue.n1", uid="u-alloc"), spec=AllocationSpec(network="blue", node="n1", type=Layer.L3)
)
VIEW = View(networks={"blue": BLUE}, allocations={"blue": OURS})
N1 = Node(metadata=ObjectMeta(name="n1", uid="u-n1"))
POD = Subject(About.POD, "web-0", "shop", "u-pod")


@pytest.mark.parametrize(
    ("subject", "regarding"),
    [
        (POD, ObjectReference("v1", "Pod", "web-0", "shop", "u-pod")),
        (network("blue"), ObjectReference(API_VERSION, "Network", "blue", uid="u-blue")),
        (allocation_of("blue"), ObjectReference(API_VERSION, "Allocation", "blue.n1", uid="u-alloc")),
        (this(OURS), ObjectReference(API_VERSION, "Allocation", "blue.n1", uid="u-alloc")),
        (NODE, ObjectReference("v1", "Node", "n1", uid="u-n1")),
    ],
)
def test_an_event_regards_the_very_object(subject, regarding):
    assert event_of(Notice(Happened.CONFLICT, subject, "x"), VIEW, N1).regarding == regarding


@pytest.mark.parametrize("subject", [network("green"), allocation_of("green"), NODE])
def test_what_is_not_known_to_be_there_has_no_event(subject):
    assert event_of(Notice(Happened.CONFLICT, subject, "x"), VIEW, None) is None


def test_an_allocation_that_is_gone_is_still_told_of_by_its_uid():
    assert event_of(Notice(Happened.DRAINED, this(OURS), "x"), View(), None).regarding.uid == "u-alloc"


def test_refusals_that_differ_in_their_figures_are_one_event_and_drains_are_not():
    told = [
        event_of(Notice(reason, POD, message), VIEW, N1)
        for reason in (Reason.EXHAUSTED, Happened.DRAIN_GOES_ON)
        for message in ("3 cooling", "2 cooling")
    ]
    assert told[0].topic == told[1].topic is not None
    assert told[2].topic is told[3].topic is None
    assert [each.type for each in told] == ["Warning", "Warning", "Normal", "Normal"]


def test_every_row_can_be_told():
    for reason in NOTICES:
        assert event_of(Notice(reason, POD, "x"), VIEW, N1).reason == reason
