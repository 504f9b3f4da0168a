"""What is said to whom of what happened, and that every reason is in the table that the documentation comes from."""

from __future__ import annotations

import pytest

from agents import conf, environment
from allotment.addressing import errors
from allotment.addressing.errors import AllotmentError, Exhausted, UnknownNetwork
from allotment.addressing.reasons import Reason
from allotment.cni.request import parse_request
from allotment.node.notices.board import Notices, OfLease
from allotment.node.notices.notice import Notice, Subject
from allotment.node.notices.refusals import refusal_of
from allotment.node.notices.table import NOTICES, About, Happened
from allotment.observe.metrics import Metrics

POD = Subject(About.POD, "c1", "test", "uid-c1")


def add(**more):
    return parse_request(environment("ADD", "c1", **more), conf())


def test_every_reason_that_there_is_has_its_row():
    assert set(Reason) <= set(NOTICES)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AllotmentError)]
    assert {kind.reason for kind in kinds} <= set(NOTICES)


def test_reasons_are_camel_case_words_as_the_api_server_takes_them():
    for reason in NOTICES:
        assert reason.isalnum()
        assert reason[0].isupper()
        assert len(reason) <= 128


def test_a_refused_add_concerns_its_pod():
    assert refusal_of(add(), UnknownNetwork("no such network")) == (Reason.UNKNOWN, "no such network", (POD, None))


def test_when_addresses_ran_out_it_concerns_the_network_too():
    reason, _, subjects = refusal_of(add(), Exhausted("none left"))
    assert reason is Reason.EXHAUSTED
    assert subjects == (POD, Subject(About.NETWORK, "blue"))


def test_a_closer_reason_wins_over_the_errors_own():
    reason, _, subjects = refusal_of(add(), Exhausted("no block", reason=Reason.NO_BLOCK))
    assert (reason, subjects) == (Reason.NO_BLOCK, (POD, None))


def test_a_fault_of_ours_is_told_without_its_inside():
    reason, message, _ = refusal_of(add(), ZeroDivisionError("at 0x1234"))
    assert reason is Reason.INTERNAL
    assert "0x1234" not in message


def test_a_container_that_is_no_pod_has_nobody_to_tell():
    _, _, subjects = refusal_of(add(CNI_ARGS=None), UnknownNetwork("no"))
    assert subjects == (None, None)


@pytest.mark.parametrize("cluster", [True, False])
def test_a_notice_counts_once_however_many_it_concerns_and_also_where_nobody_makes_events(cluster):
    metrics, heard = Metrics("1"), []
    notices = Notices(metrics, heard.append if cluster else None)
    notices.tell(Reason.EXHAUSTED, "none left", POD, None, Subject(About.NETWORK, "blue"))
    assert metrics.registry.get_sample_value("allotment_notices_total", {"reason": "AddressesExhausted"}) == 1
    assert heard == (
        [
            Notice(Reason.EXHAUSTED, POD, "none left"),
            Notice(Reason.EXHAUSTED, Subject(About.NETWORK, "blue"), "none left"),
        ]
        if cluster
        else []
    )


def test_what_happens_to_many_leases_is_one_message_for_their_allocation():
    heard = []
    several = [OfLease("blue", f"10.0.0.{number} was freed", POD) for number in range(40)]
    Notices(Metrics("1"), heard.append).tell_of_leases(Happened.ORPHAN_FREED, several)
    assert [notice.subject for notice in heard] == [POD] * 40 + [Subject(About.ALLOCATION, network="blue")]
    assert heard[-1].message == "10.0.0.0 was freed; 10.0.0.1 was freed; 10.0.0.2 was freed; and 37 more"
