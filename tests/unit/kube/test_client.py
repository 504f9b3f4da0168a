"""What answers mean, and that a write reaches only what it was meant for."""

from __future__ import annotations

import contextlib

import pytest
from msgspec.structs import replace

from allotment.addressing.errors import AllotmentError, ConfigError, InternalError, TryAgain
from allotment.kube.client import Client
from allotment.kube.failures import (
    ApiFailure,
    Ask,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    Terminating,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    Unreadable,
    Unserved,
    failure_of,
)
from allotment.kube.resources import ALLOCATIONS, NETWORKS, PODS
from kube.following import CLOCK

GUARD, NODE = "allotment.dev/guard", "allotment.dev/node"


@pytest.fixture
async def client(server):
    async with Client(server.access, CLOCK, timeout=0.5) as client:
        yield client


@pytest.fixture
def item(server):
    return server.put(
        ALLOCATIONS,
        {
            "metadata": {"name": "red.n1", "finalizers": [GUARD]},
            "spec": {"network": "red", "node": "n1", "type": "L3"},
            "status": {"ledgerID": "a", "wantBlocks": {"v4": 1, "v6": 2}},
        },
    )


def test_paths():
    assert ALLOCATIONS.path() == "/apis/allotment.dev/v1alpha1/allocations"
    assert ALLOCATIONS.path(name="red.n1", subresource="status").endswith("/allocations/red.n1/status")
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path(namespace="a", name="web-0") == "/api/v1/namespaces/a/pods/web-0"


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a?b", "a%2fb", "a b", "A", "x\n", "ä"])
def test_a_name_that_would_change_the_path_is_refused(name):
    with pytest.raises(ConfigError, match="no name for an object"):
        ALLOCATIONS.path(name=name)
    with pytest.raises(ConfigError, match="no name for an object"):
        PODS.path(namespace=name)


async def test_nothing_is_ever_asked_of_an_object_without_a_name(server, client, item):
    """DELETE of a path without the name would delete the whole collection."""
    nameless = replace(item, metadata=replace(item.metadata, name=""))
    for call in (
        client.get(ALLOCATIONS, ""),
        client.delete(ALLOCATIONS, nameless),
        client.patch_finalizers(ALLOCATIONS, nameless, []),
        client.patch_status(ALLOCATIONS, nameless, {}),
    ):
        with pytest.raises(ConfigError, match="without a name"):
            await call
    assert server.requests == []


async def test_nothing_is_written_without_knowing_what_was_read(server, client, item):
    for missing in ({"uid": ""}, {"resource_version": ""}):
        bare = replace(item, metadata=replace(item.metadata, **missing))
        for call in (client.delete(ALLOCATIONS, bare), client.patch_finalizers(ALLOCATIONS, bare, [])):
            with pytest.raises(InternalError, match="UID and the resourceVersion"):
                await call
    assert server.requests == []


async def test_a_status_takes_the_place_of_the_one_before(server, client, item):
    found = await client.patch_status(ALLOCATIONS, item, {"wantBlocks": {"v4": 3}})
    assert server.objects.get(ALLOCATIONS, "red.n1")["status"] == {"wantBlocks": {"v4": 3}}
    assert found.status.ledger_id == ""
    again = await client.patch_status(ALLOCATIONS, found, found.status)
    assert again.metadata.resource_version == found.metadata.resource_version


async def test_stale_writes_are_conflicts(server, client, item):
    server.change(ALLOCATIONS, "red.n1", {"spec": {"closed": True}})
    for call in (
        client.patch_finalizers(ALLOCATIONS, item, [GUARD, NODE]),
        client.patch_status(ALLOCATIONS, item, {}),
        client.delete(ALLOCATIONS, item),
    ):
        with pytest.raises(Conflict, match="Allocation red"):
            await call
    assert server.find(ALLOCATIONS, "red.n1").metadata.finalizers == (GUARD,)


async def test_no_finalizer_on_what_is_being_deleted(server, client, item):
    server.delete(ALLOCATIONS, "red.n1")
    item = await client.get(ALLOCATIONS, "red.n1")
    with pytest.raises(Terminating, match="being deleted"):
        await client.patch_finalizers(ALLOCATIONS, item, [GUARD, NODE])
    await client.patch_finalizers(ALLOCATIONS, item, [])
    assert server.find(ALLOCATIONS, "red.n1") is None


@pytest.mark.parametrize("fault", ["lost", pytest.param("stall", marks=pytest.mark.slow), "cut", "500"])
async def test_after_no_answer_the_object_tells_whether_it_was_done(server, client, item, fault):
    done = fault == "lost"
    server.fail(fault, verb="patch")
    if done:
        held = await client.patch_finalizers(ALLOCATIONS, item, [GUARD, NODE])
        assert held.metadata.finalizers == (GUARD, NODE)
    else:
        with pytest.raises(Unreachable):
            await client.patch_finalizers(ALLOCATIONS, item, [GUARD, NODE])
        held = item
    assert server.find(ALLOCATIONS, "red.n1") == held
    server.fail(fault, verb="patch")
    server.fail("500", verb="get")  # nor can it be looked at
    with pytest.raises(Unreachable):
        await client.patch_status(ALLOCATIONS, held, {"ledgerID": "b"})


async def test_a_status_that_only_lost_something_is_not_taken_for_written(server, client, item):
    """What is left out of an entry of a list counts: its default is what is meant."""
    use = {"cidr": "10.0.0.0/26", "inUse": "3"}
    told = await client.patch_status(ALLOCATIONS, item, {"blocks": [use]})
    server.fail("cut", verb="patch")
    with pytest.raises(Unreachable):
        await client.patch_status(ALLOCATIONS, told, {"blocks": [{"cidr": "10.0.0.0/26"}]})
    server.fail("lost", verb="patch")
    told = await client.patch_status(ALLOCATIONS, told, {"blocks": [{"cidr": "10.0.0.0/26"}]})
    assert told.status.blocks[0].in_use == "0"


async def test_after_no_answer_to_a_delete(server, client, item):
    server.fail("lost", verb="delete")
    await client.delete(ALLOCATIONS, item)
    assert server.find(ALLOCATIONS, "red.n1").metadata.deleting
    await client.delete(ALLOCATIONS, item)  # once more does nothing
    other = server.put(NETWORKS, {"metadata": {"name": "blue"}, "spec": {"type": "L2", "subnets": []}})
    server.fail("500", verb="delete")
    with pytest.raises(Unreachable, match="500"):
        await client.delete(NETWORKS, other)
    server.fail("lost", verb="delete")
    with contextlib.suppress(NotFound):  # where aiohttp tried again by itself
        await client.delete(NETWORKS, other)
    assert server.find(NETWORKS, "blue") is None
    with pytest.raises(NotFound):
        await client.delete(NETWORKS, other)


async def test_after_no_answer_to_a_create(server, client):
    body = {"metadata": {"name": "blue"}, "spec": {"type": "L2", "subnets": [{"cidr": "10.0.0.0/24"}]}}
    server.fail("lost", verb="create")
    made = await client.create(NETWORKS, body)
    assert made == server.find(NETWORKS, "blue")
    server.fail("500", verb="create")
    with pytest.raises(Unreachable):  # the one under that name says something else: it is not ours
        await client.create(NETWORKS, {**body, "spec": {"type": "L3", "subnets": []}})


async def test_a_deadline_is_told_to_the_server_too(server, client, item):
    await client.get(ALLOCATIONS, item.name)
    assert server.requests[-1].query["timeout"] == "1s"
    assert server.requests[-1].headers["User-Agent"].startswith("allotment/")


async def test_an_answer_that_fits_no_type(server, client):
    server.objects.create(ALLOCATIONS, {"metadata": {"name": "odd.n1"}, "spec": "?"})
    with pytest.raises(Unreadable, match="newer release"):
        await client.get(ALLOCATIONS, "odd.n1")
    listing = await client.list(ALLOCATIONS)
    assert listing.items == ()
    assert "spec" in listing.unread["odd.n1"]


STATUS = b'{"kind":"Status","message":"%s","reason":"%s","details":{%s}}'
ASK = Ask("patch", "Allocation", "allocations.allotment.dev", "red.n1", "status")


@pytest.mark.parametrize(
    ("code", "body", "headers", "kind", "words"),
    [
        (401, b"", {}, Unauthorized, "credentials"),
        (403, STATUS % (b"no", b"Forbidden", b""), {}, Forbidden, "patch on allocations.allotment.dev/status"),
        (403, STATUS % (b"x", b"", b'"causes":[{"reason":"NamespaceTerminating"}]'), {}, Terminating, "namespace"),
        (404, STATUS % (b"x", b"NotFound", b'"name":"red.n1"'), {}, NotFound, "no such object"),
        (404, b"404 page not found\n", {}, Unserved, "CRD"),
        (404, STATUS % (b"the server could not find the requested resource", b"NotFound", b""), {}, Unserved, "CRD"),
        (409, STATUS % (b"x", b"Conflict", b""), {}, Conflict, "read it again"),
        (409, STATUS % (b"Precondition failed: UID in precondition: a", b"Conflict", b""), {}, NotFound, "another"),
        (410, b"", {}, Expired, "list again"),
        (422, STATUS % (b"bad", b"Invalid", b'"causes":[{"field":"spec.x"}]'), {}, Invalid, "bad"),
        (422, STATUS % (b"x", b"", b'"causes":[{"field":"metadata.finalizers"}]'), {}, Terminating, "finalizer"),
        (422, STATUS % (b"x", b"", b'"causes":[{"field":"metadata.uid"}]'), {}, NotFound, "another"),
        (429, b"slow down", {"Retry-After": "3"}, TooManyRequests, "slow down"),
        (429, STATUS % (b"x", b"", b'"retryAfterSeconds":3'), {}, TooManyRequests, "asked again"),
        (500, b"<html>oops</html>", {}, Unreachable, "500: <html>oops"),
        (503, b"", {}, Unreachable, "503"),
        (503, b"", {"Retry-After": "3"}, TooManyRequests, "not ready"),
        (504, STATUS % (b"x", b"Timeout", b'"causes":[{"reason":"ResourceVersionTooLarge"}]'), {}, Expired, "older"),
        (302, b"", {}, Unreachable, "302"),
        (599, b"\xff" * 5000, {"Retry-After": "soon"}, Unreachable, "599"),
    ],
)
def test_each_answer_has_its_meaning(code, body, headers, kind, words):
    failure = failure_of(ASK, code, body, headers)
    assert type(failure) is kind
    assert words in failure.message
    assert "patch status of Allocation red.n1" in failure.message
    assert len(failure.message) < 1000
    assert failure.status == code
    assert failure.retry_after == (3 if kind is TooManyRequests else 0)


def test_each_failure_stands_in_the_tree_of_errors():
    pending = [ApiFailure]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        assert issubclass(kind, AllotmentError)
        assert kind is ApiFailure or kind.retryable == issubclass(kind, TryAgain)
