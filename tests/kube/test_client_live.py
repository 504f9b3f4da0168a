"""Client and reflector against a real API server (DESIGN I9, FACTS of the finalizers; CASES 24, 25)."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json

import pytest
import structlog
from msgspec.structs import replace

from allotment.kube.access import Access, find_access
from allotment.kube.client import Client
from allotment.kube.events import EVENTS, EventRecorder
from allotment.kube.failures import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Terminating,
    Unauthorized,
    Unreachable,
)
from allotment.kube.objects import ObjectReference
from allotment.kube.resources import ALLOCATIONS, NETWORKS, NODES, PODS
from kube.following import CLOCK, following, until
from kube.line import Line
from kube.proxy import Proxy

GUARD = "allotment.dev/guard"
NODE = "allotment.dev/some-node"
"""Not the agents' own, which the policies of an installation guard; other tests install them on this server."""
_numbers = itertools.count()


def allocation(network, node="n1", **spec):
    return {
        "apiVersion": "allotment.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": f"{network}.{node}", "finalizers": [GUARD]},
        "spec": {"network": network, "node": node, "type": "L3", "networkUID": "u-1", **spec},
    }


@pytest.fixture
def name():
    """A name that no other test uses."""
    return f"live-{next(_numbers)}"


@pytest.fixture
def access(crds):
    return Access(crds.url, ca=crds.ca_file, token=crds.admin_token)


@pytest.fixture
async def client(access):
    async with Client(access, CLOCK) as client:
        yield client


@pytest.fixture
async def item(client, name):
    """An Allocation with its guard; removed at the end, whatever holds it."""
    yield await client.create(ALLOCATIONS, allocation(name))
    try:
        found = await client.get(ALLOCATIONS, f"{name}.n1")
        if found.metadata.finalizers:
            found = await client.patch_finalizers(ALLOCATIONS, found, [])
        await client.delete(ALLOCATIONS, found)
    except NotFound:
        pass


def through(access, url):
    return Access(url, ca=access.ca, token=access.token)


async def test_write_read_and_delete(client, item):
    assert (await client.get(ALLOCATIONS, item.name)) == item
    assert item in (await client.list(ALLOCATIONS, field_selector=f"spec.network={item.spec.network}")).items
    with pytest.raises(AlreadyExists, match=item.name):
        await client.create(ALLOCATIONS, allocation(item.spec.network))
    held = await client.patch_finalizers(ALLOCATIONS, item, [GUARD, NODE])
    assert held.metadata.finalizers == (GUARD, NODE)
    with pytest.raises(Conflict):
        await client.patch_finalizers(ALLOCATIONS, item, [GUARD])
    await client.delete(ALLOCATIONS, held)
    going = await client.get(ALLOCATIONS, item.name)
    assert going.metadata.deleting
    with pytest.raises(Terminating):
        await client.patch_finalizers(ALLOCATIONS, going, [GUARD, NODE, "allotment.dev/more"])
    kept = await client.patch_finalizers(ALLOCATIONS, going, [NODE])
    last = await client.patch_finalizers(ALLOCATIONS, kept, [])
    assert last.name == item.name
    for call in (
        client.get(ALLOCATIONS, item.name),
        client.patch_finalizers(ALLOCATIONS, kept, []),
        client.patch_status(ALLOCATIONS, kept, {}),
        client.delete(ALLOCATIONS, kept),
    ):
        with pytest.raises(NotFound):
            await call


async def test_a_status_says_what_it_was_given_and_nothing_of_before(client, item):
    first = {
        "ledgerID": "a",
        "wantBlocks": {"v4": 2, "v6": 1},
        "tunnel": {"mac": "02:00:00:00:00:01", "underlay": ["192.0.2.1"]},
        "relinquished": ["10.0.0.0/26"],
    }
    found = await client.patch_status(ALLOCATIONS, item, first)
    assert found.status.want_blocks.v6 == 1
    found = await client.patch_status(ALLOCATIONS, found, {"ledgerID": "b", "wantBlocks": {"v4": 3}})
    assert found.status.ledger_id == "b"
    assert found.status.want_blocks.v4 == 3
    assert found.status.want_blocks.v6 == 0
    assert found.status.tunnel is None
    assert found.status.relinquished == ()
    assert found.spec == item.spec
    same = await client.patch_status(ALLOCATIONS, found, found.status)
    assert same == found


async def test_another_object_under_the_same_name_is_not_written_to(client, item):
    old = await client.patch_status(ALLOCATIONS, item, {"ledgerID": "old"})
    await client.delete(ALLOCATIONS, old)
    await client.patch_finalizers(ALLOCATIONS, await client.get(ALLOCATIONS, item.name), [])
    new = await client.create(ALLOCATIONS, allocation(item.spec.network))
    for call in (
        client.patch_finalizers(ALLOCATIONS, old, [GUARD, NODE]),
        client.patch_status(ALLOCATIONS, old, {"ledgerID": "mine"}),
        client.delete(ALLOCATIONS, old),
    ):
        with pytest.raises((Conflict, NotFound)):
            await call
    assert await client.get(ALLOCATIONS, item.name) == new
    # Not even with the version of the new one, as after a mix-up.
    mixed = replace(old, metadata=replace(old.metadata, resource_version=new.metadata.resource_version))
    for call in (client.patch_finalizers(ALLOCATIONS, mixed, [GUARD, NODE]), client.delete(ALLOCATIONS, mixed)):
        with pytest.raises(NotFound):
            await call
    assert await client.get(ALLOCATIONS, item.name) == new


async def test_what_makes_no_sense_is_refused_with_the_reason(client, name):
    with pytest.raises(Invalid, match=r"spec\.type"):
        await client.create(ALLOCATIONS, allocation(name, type="L9"))
    with pytest.raises(Invalid, match="field label not supported"):
        await client.list(ALLOCATIONS, field_selector="spec.type=L3")


async def test_many_writers_of_one_list_of_finalizers_lose_nothing(access, item):
    async def writer(number):
        mine = f"allotment.dev/writer-{number}"
        async with Client(access, CLOCK) as client:
            for _ in range(8):
                for wanted in (True, False):
                    while True:
                        now = await client.get(ALLOCATIONS, item.name)
                        others = [text for text in now.metadata.finalizers if text != mine]
                        assert (mine in now.metadata.finalizers) != wanted  # mine is as I left it
                        try:
                            await client.patch_finalizers(ALLOCATIONS, now, others + [mine] * wanted)
                        except Conflict:
                            continue
                        break

    await asyncio.gather(*(writer(number) for number in range(4)))
    async with Client(access, CLOCK) as client:
        assert (await client.get(ALLOCATIONS, item.name)).metadata.finalizers == (GUARD,)


async def test_a_write_whose_answer_is_lost_is_recognised(crds, access, item, name):
    with Proxy(crds) as proxy:
        async with Client(through(access, proxy.url), CLOCK) as client:
            proxy.lose_answers(method="PATCH")
            held = await client.patch_finalizers(ALLOCATIONS, item, [GUARD, NODE])
            assert held.metadata.finalizers == (GUARD, NODE)
            proxy.lose_answers(method="PATCH")
            told = await client.patch_status(ALLOCATIONS, held, {"ledgerID": "x"})
            assert told.status.ledger_id == "x"
            proxy.lose_requests(method="PATCH")
            with pytest.raises(Unreachable):
                await client.patch_status(ALLOCATIONS, told, {"ledgerID": "y"})
            assert await client.get(ALLOCATIONS, item.name) == told
            proxy.lose_answers(method="DELETE")
            await client.delete(ALLOCATIONS, told)
            going = await client.get(ALLOCATIONS, item.name)
            assert going.metadata.deleting
            proxy.lose_answers(method="PATCH")
            with pytest.raises(NotFound):
                await client.patch_finalizers(ALLOCATIONS, going, [])
            proxy.lose_answers(method="POST")
            made = await client.create(ALLOCATIONS, allocation(name))
            assert made.name == f"{name}.n1"
            assert made.metadata.uid != item.metadata.uid


async def test_list_and_watch_with_a_selector(client, item):
    network = item.spec.network
    async with following(client, ALLOCATIONS, field_selector=f"spec.network={network}") as shown:
        await shown.names(item.name)
        other = await client.create(ALLOCATIONS, allocation(network, "n2"))
        elsewhere = await client.create(ALLOCATIONS, allocation(f"{network}-b"))
        await shown.names(item.name, other.name)
        written = await client.patch_status(ALLOCATIONS, item, {"ledgerID": "z"})
        await shown.reflector.seen(item.name, written.metadata.resource_version)
        assert shown.last.items[item.name] == written
        for gone in (other, elsewhere):
            await client.delete(ALLOCATIONS, await client.patch_finalizers(ALLOCATIONS, gone, []))
        await shown.names(item.name)
    assert shown.last.lists == 1


async def test_a_pod_that_no_longer_matches_is_gone_from_a_filtered_watch(crds, client, name):
    def pod(number):
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-{number}", "namespace": "default", "annotations": {"a": "b"}},
            "spec": {"nodeName": name, "hostNetwork": True, "containers": [{"name": "c", "image": "x"}]},
        }

    first = await client.create(PODS, pod(1))
    selector = f"spec.nodeName={name},status.phase=Pending"
    async with following(client, PODS, field_selector=selector) as shown:
        found = (await shown.names(f"default/{name}-1")).items[f"default/{name}-1"]
        assert found == first
        assert found.spec.host_network
        assert found.spec.node_name == name
        assert found.metadata.annotations == {"a": "b"}
        ips = {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}
        changed = await client.patch(PODS, found, {"status": ips}, subresource="status")
        assert [entry.ip for entry in changed.status.pod_ips] == ["10.0.0.1", "fd00::1"]
        await shown.names()
    crds.kubectl("delete", "pod", first.metadata.name, "--force", "--grace-period=0")


async def test_a_compaction_and_the_server_away_and_back(crds, client, item):
    network = item.spec.network
    async with following(client, ALLOCATIONS, field_selector=f"spec.network={network}") as shown:
        await shown.names(item.name)
        crds.stop()
        try:
            lost = await shown.until(lambda it: it.lost_contact is not None)
            assert set(lost.items) == {item.name}
        finally:
            crds.start()
        await shown.until(lambda it: it.lost_contact is None)
        assert shown.last.lists == 1
        # Enough history for the watch's version to be forgotten, and nothing of ours among it.
        for number in range(3):
            crds.kubectl("create", "configmap", f"{network}-{number}")
        crds.compact()  # not in another thread: what that one starts ends with it
        await shown.until(lambda it: it.lost_contact is None and it.lists == 2)
        other = await client.create(ALLOCATIONS, allocation(network, "n2"))
        await shown.names(item.name, other.name)
        await client.delete(ALLOCATIONS, await client.patch_finalizers(ALLOCATIONS, other, []))
        await shown.names(item.name)


async def test_a_410_within_a_watch_and_swapped_events(crds, access, item):
    network = item.spec.network
    with Proxy(crds) as proxy:
        async with (
            Client(through(access, proxy.url), CLOCK) as client,
            following(client, ALLOCATIONS, field_selector=f"spec.network={network}") as shown,
        ):
            await shown.names(item.name)
            await until(lambda: proxy.watches, "nobody watches")
            assert proxy.inject_gone() == 1
            await shown.until(lambda it: it.lists == 2)
            await until(lambda: proxy.watches, "nobody watches")
            proxy.swap_events()
            now = await client.patch_status(ALLOCATIONS, item, {"ledgerID": "1"})
            now = await client.patch_status(ALLOCATIONS, now, {"ledgerID": "2"})
            await shown.until(lambda it: it.items[item.name].status.ledger_id == "2")
            await shown.until(lambda it: it.lists == 3)
            proxy.end_watches()
            now = await client.patch_status(ALLOCATIONS, now, {"ledgerID": "3"})
            await shown.until(lambda it: it.items[item.name].status.ledger_id == "3")


async def test_a_token_file_that_is_replaced_is_used_at_once(crds, access, tmp_path):
    crds.kubectl("create", "serviceaccount", "rotating", "--dry-run=client", "--output=name")
    file = tmp_path / "token"
    file.write_text("not-a-token\n")
    async with Client(Access(crds.url, ca=crds.ca_file, token_file=file), CLOCK) as client:
        with pytest.raises(Unauthorized, match="renew them"):
            await client.list(NODES)
        file.write_text("node-n1-token\n")  # with the newline that editors leave
        with pytest.raises(Forbidden, match=r"list on networks\.allotment\.dev"):
            await client.list(NETWORKS)
        fresh = tmp_path / "fresh"
        fresh.write_text(f"{crds.admin_token}\n")
        fresh.rename(file)
        assert (await client.list(NETWORKS)).resource_version


async def test_a_client_certificate_and_a_kubeconfig_with_everything_in_it(crds, name):
    pair = crds.authority.issue(f"client-{name}", f"/O=system:masters/CN=client-{name}")
    async with Client(Access(crds.url, ca=crds.ca_file, certificate=pair.cert, key=pair.key), CLOCK) as client:
        assert (await client.list(NETWORKS)).resource_version
    content = json.loads(crds.kubeconfig.read_text())

    def inline(path):
        return base64.b64encode(path.read_bytes()).decode()

    content["clusters"][0]["cluster"] = {"server": crds.url, "certificate-authority-data": inline(crds.ca_file)}
    content["users"][0]["user"] = {
        "client-certificate-data": inline(pair.cert),
        "client-key-data": inline(pair.key),
    }
    path = crds.folder / f"{name}.kubeconfig"
    path.write_text(json.dumps(content))
    for _ in range(2):  # the library remembers the files that it made
        async with Client(await find_access(path), CLOCK) as client:
            assert (await client.list(NETWORKS)).resource_version
    async with Client(await find_access(crds.kubeconfig), CLOCK) as client:
        assert (await client.list(NETWORKS)).resource_version


async def test_events_are_made_and_counted(crds, client, name):
    recorder = EventRecorder(client, CLOCK, instance="n1", log=structlog.get_logger())
    task = asyncio.create_task(recorder.run())
    network = ObjectReference("allotment.dev/v1alpha1", "Network", name, uid=f"uid-{name}")
    pod = ObjectReference("v1", "Pod", name, namespace="default", uid=f"pod-{name}")
    for _ in range(5):
        recorder.note(network, "AddressesExhausted", "no addresses left", "Warning")
    recorder.note(pod, "AddressAssigned", "10.0.0.1")

    async def events():
        return [item for item in (await client.list(EVENTS)).items if item.regarding and item.regarding.name == name]

    async def both():
        return len(await events()) == 2

    await until(both, "there are not two events")
    found = await events()
    by_reason = {item.reason: item for item in found}
    assert by_reason["AddressesExhausted"].series.count == 5
    assert by_reason["AddressesExhausted"].type == "Warning"
    assert by_reason["AddressAssigned"].series is None
    described = crds.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}")
    assert "no addresses left" in described
    recorder._entries[(network, "Warning", "AddressesExhausted", "no addresses left")].told_at -= 3600
    recorder.note(network, "AddressesExhausted", "no addresses left", "Warning")

    async def counted():
        return {item.series.count for item in await events() if item.series} == {6}

    await until(counted, "the sixth is not counted")
    assert recorder.dropped == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_event_in_a_namespace_that_goes_is_dropped(crds, client, name):
    crds.kubectl("create", "namespace", name)
    crds.kubectl("delete", "namespace", name, "--wait=false")
    recorder = EventRecorder(client, CLOCK, instance="n1", log=structlog.get_logger())
    task = asyncio.create_task(recorder.run())
    recorder.note(ObjectReference("v1", "Pod", "web-0", namespace=name, uid="u"), "AddressAssigned", "10.0.0.1")
    recorder.note(ObjectReference("v1", "Pod", "web-0", namespace=f"{name}-none", uid="u"), "AddressAssigned", "x")
    await until(lambda: recorder.dropped == 2, "the events are not given up")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.slow
async def test_a_line_that_swallows_everything_is_given_up_in_time(crds, access, item):
    """The kernel at the other end still acknowledges, so that only our own limits can notice."""
    with Line(crds.address, crds.port) as line:
        async with (
            Client(through(access, line.url), CLOCK) as client,
            following(client, ALLOCATIONS, field_selector=f"spec.network={item.spec.network}") as shown,
        ):
            await shown.names(item.name)
            line.blackhole()
            began = CLOCK.seconds()
            with pytest.raises(Unreachable, match="tried again"):
                await client.patch_status(ALLOCATIONS, item, {"ledgerID": "q"})
            assert CLOCK.seconds() - began < 30
            line.flow()
            await client.patch_status(ALLOCATIONS, item, {"ledgerID": "q"})
            await shown.until(lambda it: it.items[item.name].status.ledger_id == "q", limit=90)
