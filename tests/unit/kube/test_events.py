"""Events: aggregated, bounded, never in anybody's way."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from allotment.kube.backoff import Backoff
from allotment.kube.client import Client
from allotment.kube.events import EVENTS, EventRecorder
from allotment.kube.objects import ObjectReference
from allotment.testing.api_server import ApiServer
from allotment.testing.clock import ManualClock, let_run
from kube.following import CLOCK, Hurried, until

KIND = EVENTS.full_name


def pod(number=0):
    return ObjectReference("v1", "Pod", f"web-{number}", namespace="default", uid=f"u{number}")


@contextlib.asynccontextmanager
async def recording(server, clock):
    async with Client(server.access, CLOCK, timeout=0.5) as client:
        quick = Backoff(Hurried("boot-1"))
        recorder = EventRecorder(client, clock, instance="n1", log=structlog.get_logger(), backoff=quick)
        task = asyncio.create_task(recorder.run())
        try:
            yield recorder
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def told(server):
    """Reason, note and count of each Event on the server."""
    return sorted(
        (item["reason"], item["note"], item.get("series", {}).get("count", 1)) for item in server.objects.list(EVENTS)
    )


def answered(recorder):
    """Whether the recorder has the server's answer to all it has sent: from then on its times count."""
    return all(entry.told for entry in recorder._entries.values())


async def test_what_repeats_becomes_a_count_that_is_told_once_a_minute():
    clock = ManualClock()
    async with ApiServer() as server, recording(server, clock) as recorder:
        recorder.note(pod(), "Refused", "no address")
        await until(lambda: told(server) and answered(recorder), "it is not told")
        for _ in range(20):
            recorder.note(pod(), "Refused", "no address")
        await let_run()
        assert told(server) == [("Refused", "no address", 1)]
        clock.advance(60)
        await until(lambda: told(server) == [("Refused", "no address", 21)], "the count is not told")
        assert len([request for request in server.requests if request.kind == KIND]) == 2
        clock.advance(601)
        recorder.note(pod(), "Refused", "no address")  # after ten quiet minutes it is news
        await until(lambda: len(told(server)) == 2, "it is not told anew")
        assert recorder.dropped == 0


async def test_one_object_gets_only_so_many():
    clock = ManualClock()
    async with ApiServer() as server, recording(server, clock) as recorder:
        for number in range(30):
            recorder.note(pod(), "Refused", f"no address {number}")
        recorder.note(pod(1), "Refused", "no address")
        await until(lambda: len(told(server)) == 11, "ten and one are not told")
        assert recorder.dropped == 20
        clock.advance(60)
        recorder.note(pod(), "Refused", "once more")
        await until(lambda: ("Refused", "once more", 1) in told(server), "it is not told")


async def test_all_objects_together_get_only_so_many():
    clock = ManualClock()
    async with ApiServer() as server, recording(server, clock) as recorder:
        for number in range(10_000):
            recorder.note(pod(number), "Refused", "no address")
        await until(lambda: len(told(server)) == 50, "fifty are not told")
        assert recorder.dropped == 9950
        assert len(recorder._buckets) <= 512
        clock.advance(5)
        recorder.note(pod(0), "Refused", "no address")  # a count is no new Event
        recorder.note(pod(77), "Refused", "no address")
        await until(lambda: len(told(server)) == 51, "one more is not told")
        assert recorder.dropped == 9950


async def test_what_is_of_one_topic_is_one_event_whatever_its_figures():
    clock = ManualClock()
    async with ApiServer() as server, recording(server, clock) as recorder:
        for number in range(30):
            recorder.note(pod(), "Exhausted", f"{number} cooling", topic="")
        recorder.note(pod(), "Draining", "3 left")
        recorder.note(pod(), "Draining", "1 left")
        await until(lambda: len(told(server)) == 3, "three are not told")
        assert told(server) == [
            ("Draining", "1 left", 1),
            ("Draining", "3 left", 1),
            ("Exhausted", "0 cooling", 30),
        ]
        assert recorder.dropped == 0


async def test_while_the_server_is_away_the_oldest_are_dropped_and_counted():
    clock = ManualClock()
    async with ApiServer() as server, recording(server, clock) as recorder:
        await server.stop()
        for number in range(1000):
            recorder.note(pod(number), "Refused", "no address")
            clock.advance(5)  # no faster than all objects together may have new ones
        assert len(recorder._queue) == 256
        assert len(recorder._entries) <= 512
        assert recorder.dropped == 744
        await server.start()
        await until(lambda: len(told(server)) == 256, "the rest is not told")
        assert {item["regarding"]["name"] for item in server.objects.list(EVENTS)} == {
            f"web-{number}" for number in range(744, 1000)
        }


async def test_an_event_that_expired_is_made_anew():
    clock = ManualClock()
    async with ApiServer() as server, recording(server, clock) as recorder:
        recorder.note(pod(), "Refused", "no address")
        await until(lambda: told(server) and answered(recorder), "it is not told")
        name = server.objects.list(EVENTS)[0]["metadata"]["name"]
        server.delete(EVENTS, name, namespace="default")
        recorder.note(pod(), "Refused", "no address")
        clock.advance(60)
        await until(lambda: told(server) == [("Refused", "no address", 2)], "it is not told anew")


async def test_what_belongs_to_no_namespace_is_told_in_default():
    async with ApiServer() as server, recording(server, ManualClock()) as recorder:
        recorder.note(ObjectReference("allotment.dev/v1alpha1", "Network", "n" * 253), "Full", "x" * 5000, "Warning")
        await until(lambda: told(server), "it is not told")
        found = server.objects.list(EVENTS, namespace="default")[0]
        assert len(found["metadata"]["name"]) <= 253
        assert len(found["note"]) <= 1000
        assert found["type"] == "Warning"
        assert found["reportingInstance"] == "n1"
