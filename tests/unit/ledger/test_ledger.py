"""What the agent asks of its ledger: leases on disk, all or none of a change, history, objects."""

import asyncio
import contextlib
import sqlite3

import pytest

from allotment.addressing.address import parse_address
from allotment.addressing.book import BookState
from allotment.addressing.errors import InternalError, LedgerUnavailable
from allotment.addressing.lease import Cause, Forgotten, Granted, Rested
from allotment.ledger import Ledger, LedgerState, RowsQuery
from allotment.ledger.changes import SEQUENCE_EVERY
from allotment.ledger.connection import connect
from allotment.ledger.state import read_content
from unit.ledger.examples import (
    BOOT,
    V4,
    V6,
    addresses,
    copy_as_killed,
    granted,
    lease,
    opened,
    released,
    rest_of,
    run_of,
    state_of,
)


async def test_a_new_ledger_is_empty_and_keeps_its_id(tmp_path):
    async with opened(tmp_path) as ledger:
        assert ledger.load() == BookState()
        assert ledger.health().state is LedgerState.OPEN
        assert ledger.fault() == ""
    async with opened(tmp_path) as again:
        assert again.ledger_id == ledger.ledger_id
    assert (tmp_path / "ledger.db").stat().st_mode & 0o777 == 0o600


async def test_what_was_committed_is_there_although_nobody_closed_it(tmp_path):
    """I2."""
    one, two, six = lease(1), lease(2), lease(3, block=V6)
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(one))
        await ledger.commit(granted(two, six))
        await ledger.commit(released(one))
        copy_as_killed(tmp_path, tmp_path / "killed")
    expected = BookState((two, six), (rest_of(one),), 3).canonical()
    async with opened(tmp_path / "killed") as killed:
        assert killed.load().canonical() == expected
    assert state_of(tmp_path) == expected


async def test_it_is_loaded_once(tmp_path):
    async with opened(tmp_path) as ledger:
        ledger.load()
        with pytest.raises(InternalError):
            ledger.load()


async def test_a_second_owner_is_refused_and_its_neighbours_in_the_transaction_are_not(tmp_path):
    """I1: whatever the lease book believes, the disk gives an address once."""
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(1)))
        results = await asyncio.gather(
            ledger.submit(granted(lease(2))),
            ledger.submit([*granted(lease(3)), Granted(lease(1, sequence=9, pod="thief"))]),
            ledger.submit(granted(lease(4))),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [type(None), InternalError, type(None)]
    assert {each.sequence for each in state_of(tmp_path).leases} == {1, 2, 4}


async def test_a_release_names_the_lease_it_means(tmp_path):
    """I7: the sequence number of another lease of the same address and container releases nothing."""
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(1, sequence=5)))
        with pytest.raises(InternalError, match="disagree"):
            await ledger.commit(released(lease(1, sequence=4)))
        with pytest.raises(InternalError):
            await ledger.commit(released(lease(2)))
        assert await ledger.history(RowsQuery()) == []
    assert [each.sequence for each in state_of(tmp_path).leases] == [5]


async def test_an_address_given_again_leaves_its_rest(tmp_path):
    """I3: the rest of a released address is on disk until it is given again."""
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(1)))
        await ledger.commit(released(lease(1)))
        assert state_of(tmp_path).rests == (rest_of(lease(1)),)
        await ledger.commit(granted(lease(1, sequence=2)))
        assert state_of(tmp_path).rests == ()


@pytest.mark.parametrize("number", [10, 13, 19], ids=["first", "middle", "last"])
async def test_an_address_in_a_run_leaves_the_others_at_rest(tmp_path, number):
    """I3."""
    async with opened(tmp_path) as ledger:
        for each in range(10, 20):
            await ledger.commit(granted(lease(each)))
            await ledger.commit(released(lease(each)))
        run = run_of("10.4.1.10", "10.4.1.19")
        await ledger.commit([Rested(tuple(rest_of(lease(each)) for each in range(10, 20)), run)])
        assert state_of(tmp_path).rests == (run,)
        await ledger.commit(granted(lease(number, sequence=100)))
    left = state_of(tmp_path).rests
    assert addresses(left) == addresses([run]) - {lease(number).address}


async def test_a_lease_of_one_family_does_not_disturb_the_rest_of_the_other(tmp_path):
    async with opened(tmp_path) as ledger:
        for each in (lease(1), lease(2, block=V6)):
            await ledger.commit(granted(each))
            await ledger.commit(released(each))
        await ledger.commit(granted(lease(3), lease(4, block=V6)))
    assert len(state_of(tmp_path).rests) == 2


async def test_the_rests_of_a_block_are_forgotten(tmp_path):
    async with opened(tmp_path) as ledger:
        for each in (lease(1), lease(2, block=V6), lease(3, network="red")):
            await ledger.commit(granted(each))
            await ledger.commit(released(each))
        await ledger.commit([Forgotten("blue", V4)])
    assert {(rest.network, rest.block) for rest in state_of(tmp_path).rests} == {("blue", V6), ("red", V4)}


async def test_the_sequence_never_goes_back(tmp_path):
    """I7: not when the newest leases are released, nor when their history is gone."""
    async with opened(tmp_path, history_rows=0) as ledger:
        for number in range(1, 40):
            await ledger.commit(granted(lease(number)))
        for number in range(39, 0, -1):
            await ledger.commit(released(lease(number)))
        assert len(await ledger.history(RowsQuery())) <= 1
    assert state_of(tmp_path).sequence == 39


async def test_the_sequence_is_found_however_long_ago_its_lease_ended(tmp_path):
    """I7: the highest number of all is released first, and the file is read after each of many releases."""
    highest = 2 * SEQUENCE_EVERY + 9
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(*(lease(number) for number in range(1, highest + 1))))
        for number in range(highest, 0, -1):
            await ledger.commit(released(lease(number)))
            connection = connect(tmp_path / "ledger.db")
            assert read_content(connection)[0].book.sequence == highest
            connection.close()


async def test_all_that_waits_shares_one_sync(tmp_path):
    class Seen:
        def __init__(self):
            self.batches = []

        def committed(self, *, seconds, requests):
            self.batches.append((seconds, requests))

        def refused(self, kind): ...
        def changed(self, state, reason): ...

    seen = Seen()
    async with opened(tmp_path, observer=seen) as ledger:
        await asyncio.gather(*(ledger.submit(granted(lease(number))) for number in range(1, 101)))
    assert sum(requests for _, requests in seen.batches) == 100
    assert len(seen.batches) < 20
    assert all(seconds > 0 for seconds, _ in seen.batches)


async def test_memory_follows_the_disk_in_its_order(tmp_path):
    """I2: callbacks of the futures run in the order in which the disk has the changes, waited for or not."""
    order = []
    async with opened(tmp_path) as ledger:
        for number in range(1, 51):
            future = ledger.submit(granted(lease(number)))
            future.add_done_callback(lambda done, number=number: order.append((number, done.exception())))
        await ledger.submit(granted(lease(51)))
    assert order == [(number, None) for number in range(1, 51)]


async def test_the_disk_has_changes_in_the_order_they_were_decided_in(tmp_path):
    """I3: an address that is given out of a run, right after the run was made, leaves it; whoever writes them."""
    leases = [lease(number) for number in range(10, 20)]
    async with opened(tmp_path) as ledger:
        for turn in range(20):
            await ledger.commit(granted(*leases))
            await ledger.commit(released(*leases))
            run = run_of("10.4.1.10", "10.4.1.19")
            crowd = [lease(number, network=f"other-{turn}") for number in range(1, 100)]
            waits = [ledger.submit(granted(each)) for each in crowd[: turn * 5]]  # sends some to the thread
            waits.append(ledger.submit([Rested(tuple(rest_of(each) for each in leases), run)]))
            await asyncio.wait(waits[:1], timeout=0)
            waits.append(ledger.submit(granted(leases[5])))
            await asyncio.gather(*waits)
            resting = [rest for rest in state_of(tmp_path).rests if rest.network == "blue"]
            assert leases[5].address not in addresses(resting)
            await ledger.commit([Forgotten("blue", V4)])
            await ledger.commit(released(leases[5]))
            await ledger.commit([Forgotten("blue", V4)])


@pytest.mark.slow
async def test_another_process_that_holds_the_file_fails_commits_and_stops_the_loop_only_once(tmp_path):
    """The loop writes itself only while that is quick; what was slow once is the thread's."""
    async with opened(tmp_path) as ledger:
        await ledger.commit(granted(lease(1)))
        outsider = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
        outsider.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="locked"):
            await ledger.commit(granted(lease(2)))
        second = ledger.submit(granted(lease(2)))
        turns = 0
        while not second.done():
            await asyncio.to_thread(lambda: None)
            turns += 1
        assert turns > 20, "the loop stood still while the file was held"
        assert isinstance(second.exception(), LedgerUnavailable)
        outsider.execute("ROLLBACK")
        outsider.close()
        assert ledger.health().state is LedgerState.OPEN
        await ledger.commit(granted(lease(2)))


async def test_a_caller_that_leaves_takes_nothing_with_it(tmp_path):
    """I2: a change that was submitted ends in order, and its callback hears how, whoever waits."""
    heard = []
    async with opened(tmp_path) as ledger:

        async def caller():
            future = ledger.submit(granted(lease(1)))
            future.add_done_callback(lambda done: heard.append(done.exception()))
            await asyncio.shield(future)

        task = asyncio.ensure_future(caller())
        await asyncio.get_running_loop().create_task(asyncio.wait([task], timeout=0))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await ledger.commit(granted(lease(2)))
        assert heard == [None]
    assert len(state_of(tmp_path).leases) == 2


async def test_close_writes_what_was_submitted_and_then_refuses(tmp_path):
    ledger = Ledger.open(tmp_path, boot=BOOT, snapshot=BookState, ballast_bytes=0)
    watch = asyncio.ensure_future(ledger.watch())
    futures = [ledger.submit(granted(lease(number))) for number in range(1, 30)]
    await ledger.close()
    await asyncio.gather(*futures)
    await watch
    await ledger.watch()
    with pytest.raises(LedgerUnavailable, match="stopping"):
        await ledger.commit(granted(lease(50)))
    assert len(state_of(tmp_path).leases) == 29
    assert not (tmp_path / "ledger.db-wal").exists()


async def test_nothing_to_write_is_written_at_once(tmp_path):
    async with opened(tmp_path) as ledger:
        await ledger.commit([])
        assert ledger.health().last_commit_requests == 0


async def test_the_boot_is_noted(tmp_path):
    """I13: the next start can tell that the machine was restarted."""
    async with opened(tmp_path):
        pass
    later = Ledger.open(tmp_path, boot="boot-2", snapshot=BookState, ballast_bytes=0)
    assert later.earlier_boot == BOOT
    await later.close()
    last = Ledger.open(tmp_path, boot="boot-2", snapshot=BookState, ballast_bytes=0)
    assert last.earlier_boot == "boot-2"
    await last.close()


async def test_objects_are_kept(tmp_path):
    async with opened(tmp_path) as ledger:
        await ledger.put_object("Network", "blue", b"one")
        await ledger.put_object("Network", "blue", b"two")
        await ledger.put_object("Allocation", "blue.node-1", bytes(range(256)) * 100)
        await ledger.put_object("Network", "red", b"gone")
        await ledger.delete_object("Network", "red")
        await ledger.delete_object("Network", "never")
        expected = {("Network", "blue"): b"two", ("Allocation", "blue.node-1"): bytes(range(256)) * 100}
        assert ledger.objects() == expected
        copy_as_killed(tmp_path, tmp_path / "killed")
    async with opened(tmp_path / "killed") as again:
        assert again.objects() == expected
        assert again.objects("Network") == {("Network", "blue"): b"two"}


async def history_of(ledger):
    """Three owners of 10.4.1.7 one after another, and one of another address."""
    for sequence, (pod, wall) in enumerate([("a", 1000.0), ("b", 2000.0), ("c", 3000.0)], 1):
        each = lease(7, sequence=sequence, pod=pod)
        each = type(each)(each.address, each.block, each.owner, sequence, each.since, wall - 500, each.netns)
        await ledger.commit([Granted(each)])
        await ledger.commit(released(each, wall=wall, cause=Cause.GC, detail=f"call {sequence}"))
    await ledger.commit(granted(lease(8, sequence=4, network="red")))
    await ledger.commit(released(lease(8, sequence=4, network="red")))


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ({}, [4, 3, 2, 1]),
        ({"limit": 2}, [4, 3]),
        ({"limit": 0}, []),
        ({"address": parse_address("10.4.1.7")}, [3, 2, 1]),
        ({"network": "red"}, [4]),
        ({"workload": "default.b"}, [2]),
        ({"container_id": "c-8"}, [4]),
        ({"pod_uid": "uid-7"}, [3, 2, 1]),
        ({"address": parse_address("10.4.1.7"), "at": 1750.0}, [2]),
        ({"address": parse_address("10.4.1.7"), "at": 1250.0}, []),
        ({"network": "red", "container_id": "c-7"}, []),
        ({"workload": "default.b' OR 1 --"}, []),
    ],
)
async def test_history_answers(tmp_path, question, answer):
    async with opened(tmp_path) as ledger:
        await history_of(ledger)
        assert [row.sequence for row in await ledger.history(RowsQuery(**question))] == answer


async def test_a_history_row_says_all(tmp_path):
    async with opened(tmp_path) as ledger:
        await history_of(ledger)
        [row] = await ledger.history(RowsQuery(workload="default.b"))
    assert (row.owner, row.address) == (lease(7, pod="b").owner, lease(7).address)
    assert (row.began, row.ended, row.cause, row.detail) == (1500.0, 2000.0, Cause.GC, "call 2")


async def test_history_is_bounded_and_trimmed_little_by_little(tmp_path):
    async with opened(tmp_path, history_rows=1000) as ledger:
        for start in range(1, 1002, 100):
            leases = [lease(1, sequence=start + step) for step in range(100)]
            for each in leases:
                ledger.submit(granted(each))
                ledger.submit(released(each))
        await ledger.commit([Forgotten("blue", V4)])
        rows = await ledger.history(RowsQuery(limit=10_000))
    assert 1000 <= len(rows) <= 1200
    assert rows[0].sequence == 1100
    async with opened(tmp_path, history_rows=300) as ledger:
        before = len(rows)
        for number in range(2000, 2005):
            for changes in (granted(lease(1, sequence=number)), released(lease(1, sequence=number))):
                await ledger.commit(changes)
                now = len(await ledger.history(RowsQuery(limit=10_000)))
                assert before - now <= 200
                before = now
        assert 300 <= before <= 500
