"""The reflector against every way in which a server and a line misbehave (CASES 24, 25; I12, I15)."""

from __future__ import annotations

import asyncio
import json

import pytest

from allotment.kube.backoff import Backoff
from allotment.kube.client import Client
from allotment.kube.resources import ALLOCATIONS, NETWORKS, PODS
from allotment.testing.api_server import ApiServer
from allotment.testing.clock import ManualClock, let_run
from kube.following import CLOCK, following, until

KIND = ALLOCATIONS.full_name


def allocation(network, node="n1", **meta):
    return {
        "metadata": {"name": f"{network}.{node}", "finalizers": ["allotment.dev/guard"], **meta},
        "spec": {"network": network, "node": node, "type": "L3"},
    }


@pytest.fixture
async def client(server):
    async with Client(server.access, CLOCK, timeout=0.5, idle=0.4) as client:
        yield client


async def watched(server, count=1):
    await until(lambda: len(server.watches) >= count, "nobody watches")


async def test_what_there_is_and_what_happens_is_shown(server, client):
    for network in ("red", "green", "blue"):
        server.put(ALLOCATIONS, allocation(network))
    async with following(client, ALLOCATIONS) as shown:
        first = await shown.names("red.n1", "green.n1", "blue.n1")
        assert first.lists == 1
        server.put(ALLOCATIONS, allocation("pink"))
        server.change(ALLOCATIONS, "red.n1", {"spec": {"closed": True}})
        server.change(ALLOCATIONS, "blue.n1", {"metadata": {"finalizers": None}})
        server.delete(ALLOCATIONS, "blue.n1")
        last = await shown.names("red.n1", "green.n1", "pink.n1")
        assert last.items["red.n1"].spec.closed
        assert not first.items["red.n1"].spec.closed  # a snapshot is what it was
        assert last.items["green.n1"] is first.items["green.n1"]


async def test_a_list_is_read_in_pages(server, client):
    for number in range(7):
        server.put(NETWORKS, {"metadata": {"name": f"net-{number}"}, "spec": {"type": "L2", "subnets": []}})
    listing = await client.list(NETWORKS, page=3)
    assert [item.name for item in listing.items] == [f"net-{number}" for number in range(7)]
    assert [request.verb for request in server.requests] == ["list"] * 3


async def test_a_list_whose_moment_is_forgotten_between_pages_is_read_in_one_piece(server, client):
    for number in range(5):
        server.put(NETWORKS, {"metadata": {"name": f"net-{number}"}, "spec": {"type": "L2", "subnets": []}})
    answer = server._listed

    def listed(request, resource, *, empty):
        found = answer(request, resource, empty=empty)
        server.compact()
        return found

    server._listed = listed
    assert len((await client.list(NETWORKS, page=2)).items) == 5


async def test_only_what_a_selector_matches_is_shown_and_what_no_longer_does_is_gone(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    server.put(ALLOCATIONS, allocation("red", "n2"))
    async with following(client, ALLOCATIONS, field_selector="spec.node=n1") as shown:
        await shown.names("red.n1")
        await watched(server)
        server.change(ALLOCATIONS, "red.n1", {"spec": {"node": "n2"}})
        await shown.names()
        server.change(ALLOCATIONS, "red.n1", {"spec": {"node": "n1"}})
        await shown.names("red.n1")
    assert shown.last.lists == 1


async def test_pods_are_known_by_namespace_and_name(server, client):
    for namespace in ("a", "b"):
        server.put(PODS, {"metadata": {"name": "web-0", "namespace": namespace}, "spec": {"nodeName": "n1"}})
    async with following(client, PODS, field_selector="spec.nodeName=n1") as shown:
        await shown.names("a/web-0", "b/web-0")
    async with following(client, PODS, namespace="a") as shown:
        await shown.names("a/web-0")


async def test_a_burst_is_shown_in_few_snapshots(server, client):
    async with following(client, ALLOCATIONS) as shown:
        await shown.names()
        await watched(server)
        for number in range(500):
            server.put(ALLOCATIONS, allocation(f"net-{number}"))
        await shown.until(lambda it: len(it.items) == 500)
    assert len(shown.snapshots) < 25


@pytest.mark.slow
@pytest.mark.parametrize("form", ["410", "410 event"])
async def test_a_forgotten_version_is_listed_anew(server, client, form):
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await watched(server)
        server.fail(form, verb="watch", times=10)
        server.cut_watches()
        server.put(ALLOCATIONS, allocation("blue"))
        await shown.names("red.n1", "blue.n1")
        await until(lambda: shown.last.lists >= 11, "it was not listed each time")
        await watched(server)
        server.put(ALLOCATIONS, allocation("pink"))
        await shown.names("red.n1", "blue.n1", "pink.n1")


async def test_a_compaction_while_away_is_listed_anew(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await server.stop()
        server.put(ALLOCATIONS, allocation("blue"))
        server.compact()
        await server.start()
        await shown.names("red.n1", "blue.n1")


async def test_a_line_cut_within_an_event_goes_on_from_the_last_whole_one(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await watched(server)
        server.cut_watches(mid_line=True)
        server.put(ALLOCATIONS, allocation("blue"))
        await shown.names("red.n1", "blue.n1")
    assert shown.last.lists == 1


async def test_a_watch_that_ends_orderly_is_no_loss_of_contact(server, client):
    async with following(client, ALLOCATIONS) as shown:
        await shown.names()
        for number in range(3):
            await watched(server)
            server.end_watches()
            server.put(ALLOCATIONS, allocation(f"net-{number}"))
            await shown.until(lambda it, number=number: f"net-{number}.n1" in it.items)
    # The first one may be the loss that there is before anything was read.
    assert all(snapshot.lost_contact is None for snapshot in shown.snapshots[1:])


async def test_bookmarks_alone_move_the_version_on(server, client):
    async with following(client, ALLOCATIONS) as shown:
        await shown.names()
        await watched(server)
        server.objects.version += 50
        server.bookmark()
        server.objects.floor = server.objects.version - 1  # what was before the bookmark is forgotten
        await until(lambda: shown.reflector._version == str(server.objects.version), "the bookmark was not noted")
        server.end_watches()
        server.put(ALLOCATIONS, allocation("red"))
        await shown.names("red.n1")
    assert shown.last.lists == 1


@pytest.mark.slow
async def test_silence_is_taken_for_a_dead_line_since_it_was_last_heard(server, client):
    async with following(client, ALLOCATIONS) as shown:
        await shown.names()
        await watched(server)
        before = CLOCK.seconds()
        server.mute_watches()
        server.fail("stall", times=1)
        lost = await shown.until(lambda it: it.lost_contact is not None)
        assert lost.lost_contact <= before + 0.1
        assert "API server" in lost.problem
        server.put(ALLOCATIONS, allocation("red"))
        await shown.names("red.n1")


@pytest.mark.parametrize(
    "fault", ["429", "500", "503", "404", "401", "cut", pytest.param("stall", marks=pytest.mark.slow), "garbage"]
)
async def test_a_refused_list_is_no_empty_one(server, client, fault):
    server.put(ALLOCATIONS, allocation("red"))
    server.fail(fault, verb="list", times=2)
    async with following(client, ALLOCATIONS) as shown:
        unsynced = await shown.until(lambda it: it.lost_contact is not None)
        assert not unsynced.synced
        assert unsynced.problem
        await shown.names("red.n1")
        await watched(server)
        server.compact()
        server.fail(fault, verb="list", times=2)
        server.fail("410", verb="watch")
        server.cut_watches()
        await shown.until(lambda it: it.lists == 2)
    assert all("red.n1" in snapshot.items for snapshot in shown.snapshots if snapshot.synced)


async def test_an_empty_list_where_there_was_something_is_asked_for_twice(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await watched(server)
        server.fail("empty", verb="list")
        shown.reflector.relist()
        await shown.until(lambda it: it.lists == 2)
        assert set(shown.last.items) == {"red.n1"}
        server.fail("empty", verb="list", times=2)
        shown.reflector.relist()
        await shown.names()


async def test_relisting_finds_what_the_watch_did_not_tell(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await watched(server)
        server.mute_watches()
        server.put(ALLOCATIONS, allocation("blue"))
        shown.reflector.relist()
        await shown.names("red.n1", "blue.n1", limit=0.3)  # long before the silence would be noticed


async def test_a_list_that_is_under_way_is_no_answer_to_who_asks_for_one_now(server, client, monkeypatch):
    """What it says may be older than the question."""
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await watched(server)
        server.mute_watches()
        read, gate, lists = asyncio.Event(), asyncio.Event(), client.list

        async def slow(*what, **how):
            listing = await lists(*what, **how)
            read.set()
            await gate.wait()
            return listing

        monkeypatch.setattr(client, "list", slow)
        shown.reflector.relist()
        await read.wait()
        server.put(ALLOCATIONS, allocation("blue"))
        answered = shown.reflector.relist()
        gate.set()
        answer = await shown.until(lambda it: it.lists >= answered)
        assert set(answer.items) == {"red.n1", "blue.n1"}


async def test_an_event_that_comes_in_the_moment_of_asking_for_a_list_is_in_that_list(server, client, monkeypatch):
    server.put(ALLOCATIONS, allocation("red"))
    watch, come, gate = client.watch_batches, asyncio.Event(), asyncio.Event()

    async def held(*what, **how):
        async for batch in watch(*what, **how):
            if batch:
                come.set()
                await gate.wait()
            yield batch

    monkeypatch.setattr(client, "watch_batches", held)
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await watched(server)
        server.put(ALLOCATIONS, allocation("blue"))
        await come.wait()
        gate.set()  # the event is taken up first, and the watch ended then
        shown.reflector.relist()
        found = await shown.until(lambda it: it.lists == 2)
        assert set(found.items) == {"red.n1", "blue.n1"}
        assert not any(snapshot.problem for snapshot in shown.snapshots)


async def test_a_version_that_is_no_number_is_survived(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await watched(server)
        server.send(KIND, {"type": "MODIFIED", "object": allocation("red", resourceVersion="v2")})
        await shown.until(lambda it: it.lists == 2)
        server.put(ALLOCATIONS, allocation("blue"))
        await shown.names("red.n1", "blue.n1")


async def test_events_in_the_wrong_order_end_in_what_the_server_has(server, client):
    first = server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await watched(server)
        old = {**allocation("red"), "metadata": {**allocation("red")["metadata"], "uid": first.metadata.uid}}
        old["metadata"]["resourceVersion"] = first.metadata.resource_version
        server.change(ALLOCATIONS, "red.n1", {"spec": {"closed": True}})
        server.send(KIND, {"type": "MODIFIED", "object": old})
        await shown.until(lambda it: it.lists == 2)
        assert shown.last.items["red.n1"].spec.closed


async def test_a_server_restored_from_a_backup_is_listed_anew(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await watched(server)
        server.objects.restore(5)
        server.cut_watches()
        # Whatever happens from now on has a lower version than what was seen: the watch is silent for ever.
        server.put(ALLOCATIONS, allocation("blue"))
        await shown.names("red.n1", "blue.n1")
        item = shown.last.items["blue.n1"]
        async with asyncio.timeout(1):
            await shown.reflector.seen("blue.n1", item.metadata.resource_version)


async def test_an_object_that_cannot_be_read_stays_as_it_was_and_is_named(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    server.put(ALLOCATIONS, allocation("blue"))
    async with following(client, ALLOCATIONS) as shown:
        good = await shown.names("red.n1", "blue.n1")
        await watched(server)
        server.change(ALLOCATIONS, "red.n1", {"spec": {"blocks": [{"cidr": 7, "state": "Confirmed"}]}})
        odd = await shown.until(lambda it: it.problem)
        assert odd.items["red.n1"] == good.items["red.n1"]
        assert odd.lost_contact is None
        assert "Allocation red.n1" in odd.problem
        assert "cidr" in odd.problem
        server.put(ALLOCATIONS, allocation("pink"))  # the stream goes on
        await shown.until(lambda it: "pink.n1" in it.items)
        shown.reflector.relist()  # a list says the same
        again = await shown.until(lambda it: it.lists == 2)
        assert set(again.items) == {"red.n1", "blue.n1", "pink.n1"}
        assert "Allocation red.n1" in again.problem
        server.change(ALLOCATIONS, "red.n1", {"spec": {"blocks": []}})
        await shown.until(lambda it: not it.problem)


async def test_an_object_that_was_never_readable_is_missing_and_named(server, client):
    server.put(ALLOCATIONS, allocation("blue"))
    server.objects.create(ALLOCATIONS, {"metadata": {"name": "odd.n1"}, "spec": "?"})
    async with following(client, ALLOCATIONS) as shown:
        found = await shown.names("blue.n1")
        assert "Allocation odd.n1" in found.problem
        await watched(server)
        server.delete(ALLOCATIONS, "odd.n1")
        await shown.until(lambda it: not it.problem)


async def test_lines_that_are_no_json_are_survived(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await watched(server)
        server.send(KIND, b"\xff\xfe\n")
        server.put(ALLOCATIONS, allocation("blue"))
        await shown.names("red.n1", "blue.n1")
        await watched(server)
        server.send(KIND, b"[]\n", json.dumps({"type": "NEWS", "object": {}}).encode() + b"\n")
        server.put(ALLOCATIONS, allocation("pink"))
        await shown.until(lambda it: "pink.n1" in it.items)


async def test_several_events_and_parts_of_them_in_one_piece(server, client):
    async with following(client, ALLOCATIONS) as shown:
        await shown.names()
        await watched(server)
        made = []
        for number in (1, 2, 3):
            found = allocation(f"net-{number}", uid=f"u{number}", resourceVersion=str(server.objects.version + number))
            made.append(json.dumps({"type": "ADDED", "object": found}).encode() + b"\n")
        whole = b"".join(made)
        for start in range(0, len(whole), 50):
            server.send(KIND, whole[start : start + 50])
            await let_run(3)
        await shown.names("net-1.n1", "net-2.n1", "net-3.n1")


async def test_who_wrote_waits_until_it_is_shown(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS, field_selector="spec.node=n1") as shown:
        item = (await shown.names("red.n1")).items["red.n1"]
        for number in range(5):
            item = await client.patch_status(ALLOCATIONS, item, {"ledgerID": f"ledger-{number}"})
            async with asyncio.timeout(5):
                await shown.reflector.seen("red.n1", item.metadata.resource_version)
            assert shown.last.items["red.n1"].status.ledger_id == f"ledger-{number}"


async def test_nobody_waits_for_more_than_was_shown_before(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        later = asyncio.create_task(shown.reflector.seen("red.n1", str(server.objects.version + 1)))
        await asyncio.wait([later], timeout=0.1)
        assert not later.done()
        server.change(ALLOCATIONS, "red.n1", {"spec": {"closed": True}})
        async with asyncio.timeout(5):
            await later
        assert shown.last.items["red.n1"].spec.closed


async def test_the_server_away_for_long_is_told_once_with_since_when(server, client):
    server.put(ALLOCATIONS, allocation("red"))
    async with following(client, ALLOCATIONS) as shown:
        await shown.names("red.n1")
        await watched(server)
        before = CLOCK.seconds()
        await server.stop()
        await shown.until(lambda it: it.lost_contact is not None and "can't be reached" in it.problem)
        tried = shown.reflector._backoff._next
        await until(lambda: shown.reflector._backoff._next > tried, "it does not try again")
        lost = [snapshot.lost_contact for snapshot in shown.snapshots if snapshot.lost_contact and snapshot.synced]
        assert len(set(lost)) == 1
        assert before <= lost[0] <= before + 1
        assert len(lost) <= 3
        assert set(shown.last.items) == {"red.n1"}
        await server.start()
        await shown.names("red.n1")


async def test_nothing_is_asked_between_the_pauses():
    clock = ManualClock()
    async with ApiServer() as server, Client(server.access, clock, timeout=2) as client:
        server.fail("500", times=1000)
        backoff = Backoff(clock, first=1, most=8, jitter=lambda: 0.0)
        async with following(client, ALLOCATIONS, clock=clock, backoff=backoff):
            for count, pause in enumerate((1, 2, 4, 8, 8), start=1):
                await until(lambda: clock._sleepers, "it does not pause")
                assert len(server.requests) == count
                clock.advance(pause - 0.01)
                await let_run()
                assert len(server.requests) == count
                clock.advance(0.01)
                await until(lambda count=count: len(server.requests) > count, "it does not go on")
