"""Who is admitted in standalone mode: the rules alone, without files."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allotment.addressing.plan import Layer
from allotment.api.allocation import AllocationStatus, BlockUse
from allotment.api.decoding import decode
from allotment.api.meta import NODE_FINALIZER
from allotment.node.manifests.document import read_documents
from allotment.node.manifests.standalone import (
    AllocationRecord,
    Told,
    changed,
    own_blocks,
    settle,
    subnets_in_use,
    why_not,
)
from unit.node.manifest_texts import allocation, network

WHEN = "2026-01-01T00:00:00Z"


def net(*subnets, layer="L3", deleting=False):
    text = network("blue", *subnets, layer=layer, meta=f"deletionTimestamp: {WHEN}" if deleting else "")
    return decode(read_documents(text.encode())[0].data).resource


def file(node="n1", *blocks, deleting=False):
    return decode(
        json.loads(allocation("blue", node, *blocks, meta={"deletionTimestamp": WHEN} if deleting else {}))
    ).resource


_uids = itertools.count(1)


def told(network=None, file=None, elsewhere=None, *, sure=True, obstacle="", uid=None):
    return Told(
        name="blue",
        node="n1",
        network=network,
        file=file,
        elsewhere=elsewhere,
        sure=sure,
        obstacle=obstacle or ("" if sure else "a file can't be read"),
        now="2026-02-02T00:00:00Z",
        uid=uid or f"uid-{next(_uids)}",
    )


def run(*steps, record=None):
    """Settle step by step; each step is told twice, and the second time must change nothing."""
    for step in steps:
        record = settle(step, record)
        assert settle(step, record) == record
    return record


def without_finalizers(record):
    return changed(record, (), None)


def blocks_of(record):
    return [(block.cidr, block.state) for block in record.allocation.spec.blocks]


def test_a_network_without_files_is_admitted_whole():
    record = run(told(net("10.4.0.0/24", "fd00::/56", "10.5.0.0/24 closed: true")))
    assert record.live
    assert record.own
    assert record.allocation.metadata.finalizers == (NODE_FINALIZER,)
    assert record.allocation.name == "blue.n1"
    assert blocks_of(record) == [("10.4.0.0/24", "Confirmed"), ("fd00::/56", "Confirmed")]


def test_on_l2_the_allocation_is_a_marker():
    record = run(told(net("10.4.0.0/24", layer="L2")))
    assert record.live
    assert record.allocation.spec.type is Layer.L2
    assert blocks_of(record) == []


def test_further_subnets_are_appended_and_closed_ones_keep_their_block():
    record = run(told(net("10.4.0.0/24")), told(net("10.3.0.0/24", "10.4.0.0/24 closed: true")))
    assert blocks_of(record) == [("10.4.0.0/24", "Confirmed"), ("10.3.0.0/24", "Confirmed")]
    assert record.allocation.metadata.generation == 2
    record = run(told(net("10.3.0.0/24")), record=record)
    assert blocks_of(record) == [("10.3.0.0/24", "Confirmed")]
    assert not record.allocation.metadata.deleting
    assert own_blocks(net("10.3.0.0/24")) == record.allocation.spec.blocks


def test_nobody_is_newly_admitted_while_a_file_can_not_be_read():
    step = told(net(), sure=False)
    assert run(step) is None
    assert why_not(step, None) == "a file can't be read"
    step = told(net(), file(), sure=False)
    record = run(step)
    assert not record.live
    assert why_not(step, record) == "a file can't be read"


def test_what_is_admitted_stays_admitted_while_a_file_can_not_be_read():
    record = run(told(net()))
    assert run(told(None, sure=False), record=record) == record
    from_file = run(told(net(), file()))
    assert run(told(None, sure=False), record=from_file) == from_file


def test_an_allocation_file_admits_with_its_blocks_and_waits_for_the_agents_finalizer():
    """I4: the agent itself puts the finalizer."""
    record = run(told(net(), file("n1", "10.4.0.16/28")))
    assert record.live
    assert not record.own
    assert record.allocation.metadata.finalizers == ()
    assert blocks_of(record) == [("10.4.0.16/28", "Confirmed")]


def test_a_file_takes_over_from_our_own_allocation():
    own = run(told(net()))
    record = run(told(net(), file("n1", "10.4.0.16/28")), record=own)
    assert record.allocation.metadata.uid == own.allocation.metadata.uid
    assert record.allocation.metadata.finalizers == (NODE_FINALIZER,)
    assert blocks_of(record) == [("10.4.0.16/28", "Confirmed")]
    record = run(told(net()), record=record)
    assert record.allocation.metadata.deleting


def test_a_removed_file_drains_and_nothing_re_admits():
    record = run(told(net(), file()))
    record = changed(record, (NODE_FINALIZER,), None)
    record = run(told(net()), record=record)
    assert record.allocation.metadata.deletion_timestamp == "2026-02-02T00:00:00Z"
    back = run(told(net(), file()), record=record)
    assert back.allocation.metadata.deleting, "a drain can't be undone"
    record = run(told(net()), record=without_finalizers(record))
    assert record.released
    assert record.file_seen
    assert "was removed" in why_not(told(net()), record)
    record = run(told(net(), file()), record=record)
    assert record.live
    assert not record.allocation.metadata.deleting


def test_the_network_gone_and_back_is_admitted_anew():
    record = run(told(net(), file()), told(net()))
    assert record.released
    record = run(told(None), record=record)
    assert record is None
    assert run(told(net()), record=record).own


def test_a_removed_network_drains_and_comes_back_anew_only_after_that():
    record = run(told(net("10.4.0.0/24")))
    first = record.allocation.metadata.uid
    record = run(told(None), record=record)
    assert record.allocation.metadata.deleting
    assert record.network_gone
    record = run(told(net("10.9.0.0/24")), record=record)
    assert record.allocation.metadata.uid == first
    assert blocks_of(record) == [("10.4.0.0/24", "Confirmed")]
    assert record.network.spec.subnets[0].cidr == "10.4.0.0/24"
    record = run(told(net("10.9.0.0/24")), record=without_finalizers(record))
    assert record.live
    assert record.allocation.metadata.uid != first
    assert blocks_of(record) == [("10.9.0.0/24", "Confirmed")]


def test_a_deletion_timestamp_on_the_network_drains_for_good():
    record = run(told(net()), told(net(deleting=True)))
    assert record.allocation.metadata.deleting
    assert run(told(net()), record=record).allocation.metadata.deleting
    step = told(net(deleting=True))
    assert run(step, record=without_finalizers(record)) is None
    assert "is being deleted" in why_not(step, None)


def test_a_deletion_timestamp_on_the_allocation_file_drains():
    record = changed(run(told(net(), file())), (NODE_FINALIZER,), None)
    record = run(told(net(), file(deleting=True)), record=record)
    assert record.allocation.metadata.deleting
    step = told(net(), file(deleting=True))
    record = run(step, record=without_finalizers(record))
    assert record.released
    assert "is being deleted" in why_not(step, record)


def test_files_for_other_nodes_alone_keep_us_out():
    """I1: the network is shared out by files, so its whole is not ours to take."""
    step = told(net(), elsewhere=file("n2"))
    record = run(step)
    assert record.released
    assert record.file_seen
    assert "n2" in why_not(step, record)
    assert run(told(net()), record=record).released, "once a file was seen"


def test_our_own_allocation_closes_when_files_for_other_nodes_appear():
    record = run(told(net()), told(net(), elsewhere=file("n2")))
    assert record.live
    assert record.allocation.spec.closed
    assert not record.allocation.metadata.deleting


def test_an_allocation_file_without_its_network_admits_nothing():
    assert run(told(None, file())).released
    assert run(told(None, file()), told(net(), file())).live


def test_finalizers_and_status_as_an_api_server_takes_them():
    record = run(told(net()))
    status = AllocationStatus(ledger_id="L")
    record = changed(record, None, status)
    assert record.allocation.status == status
    assert record.allocation.metadata.finalizers == (NODE_FINALIZER,)
    record = run(told(None), record=record)
    assert changed(record, (NODE_FINALIZER, "other/one"), None) is None, "no new finalizer on what is being deleted"
    assert changed(record, (NODE_FINALIZER,), status) is not None
    gone = run(told(None, file()), record=without_finalizers(record))
    assert gone.released
    assert changed(gone, (NODE_FINALIZER,), None) is None


def test_which_subnets_are_in_use():
    subnets = net("10.4.0.0/24", "10.5.0.0/24", "10.6.0.0/24", "10.7.0.0/24")
    record = run(told(subnets))
    assert subnets_in_use(subnets, record) == {subnet.cidr for subnet in subnets.spec.subnets}, "nothing is known yet"
    uses = (
        BlockUse("10.4.0.0/24", in_use="3"),
        BlockUse("10.5.0.0/24", cooling="1"),
        BlockUse("10.6.0.0/24", reserved="2", available="9"),
    )
    record = changed(record, None, AllocationStatus(blocks=uses))
    assert subnets_in_use(subnets, record) == {"10.4.0.0/24", "10.5.0.0/24", "10.7.0.0/24"}
    assert subnets_in_use(subnets, None) == frozenset()


def test_a_record_survives_being_written_as_yaml():
    record = run(told(net("10.4.0.0/24", "fd00::/56")))
    text = msgspec.yaml.encode(record)
    assert msgspec.convert(read_documents(text)[0].data, AllocationRecord) == record


NETWORKS = st.sampled_from([None, net(), net("10.4.0.0/24", "10.5.0.0/24"), net(deleting=True)])
FILES = st.sampled_from([None, file(), file("n1", "10.4.0.16/28"), file(deleting=True)])
STEP = st.tuples(NETWORKS, FILES, st.sampled_from([None, file("n2")]), st.booleans(), st.booleans())


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=12))
def test_the_rules_hold_in_any_order(steps):
    """I4, I8, I9 for what standalone mode admits."""
    record = None
    seen = False
    for whole, ours, elsewhere, sure, drop in steps:
        step = told(whole, ours, elsewhere, sure=sure)
        before = record
        record = settle(step, record)
        assert settle(step, record) == record
        was = before.allocation.metadata if before is not None and before.live else None
        now = record.allocation.metadata if record is not None and record.live else None
        if was is not None and was.finalizers:
            assert now is not None, "a finalizer holds"
            assert (now.uid, now.finalizers) == (was.uid, was.finalizers)
        if was is not None and now is not None and now.uid == was.uid and was.deletion_timestamp:
            assert now.deletion_timestamp == was.deletion_timestamp, "a drain can't be undone"
        if now is not None and (was is None or now.uid != was.uid):
            assert sure, "nobody is admitted in doubt"
            assert whole is not None
            assert not whole.metadata.deleting
            assert ours is not None or not seen, "once a file was seen, files decide"
        if was is not None and not was.deleting and now is not None and now.uid == was.uid and now.deleting:
            asked = (whole is not None and whole.metadata.deleting) or (ours is not None and ours.metadata.deleting)
            assert asked or sure, "nothing is gone in doubt"
        leaving = whole.metadata.deleting if whole is not None else sure
        seen = (seen and not leaving) or ours is not None or elsewhere is not None
        if record is not None and drop:
            record = changed(record, (), None) or record


@pytest.mark.parametrize("sure", [True, False])
def test_why_not_always_says_something(sure):
    for whole, ours, elsewhere in itertools.product(
        [net(), net(deleting=True)], [None, file(deleting=True)], [None, file("n2")]
    ):
        step = told(whole, ours, elsewhere, sure=sure)
        record = settle(step, None)
        if record is None or record.released:
            assert why_not(step, record)
