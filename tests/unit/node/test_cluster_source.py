"""What an agent is told by an API server, and what it says to it."""

import asyncio
import contextlib
from contextlib import asynccontextmanager

import pytest
import structlog

from allotment.addressing.errors import NotAdmitted, TryAgain
from allotment.api.allocation import AllocationStatus
from allotment.api.meta import GUARD_FINALIZER, NODE_FINALIZER
from allotment.kube.client import Client
from allotment.kube.resources import ALLOCATIONS, CONFIGS, NETWORKS, NODES, PODS, RESERVATIONS
from allotment.node.cluster import ClusterSource
from allotment.node.orphans.verdicts import Pods, Unreadable
from allotment.node.plans import draining, network_plans
from allotment.testing.api_server import ApiServer
from allotment.testing.clock import ManualClock
from looking import allocation, network, reservation

NODE = "node-1"
PATIENCE = 20.0


class Told:
    """A source at work against a fake API server, and all Views that it published."""

    def __init__(self, server, source, clock, known):
        self.server = server
        self.source = source
        self.clock = clock
        self.views = []
        self.task = asyncio.create_task(source.run(self.views.append, known=known))

    @property
    def view(self):
        return self.views[-1]

    async def record(self, name, **what):
        """What the agent says; time goes on meanwhile."""
        seen = next(item for item in self.view.allocations.values() if item.name == name)
        task = asyncio.create_task(self.source.record(seen, **what))
        await self.until(task.done)
        return task.result()

    async def until(self, probe, otherwise="it has not come true"):
        """Let the clock and the loop go on until this is true."""
        async with asyncio.timeout(PATIENCE):
            while not probe():
                assert not self.task.done(), self.task.result()
                self.clock.advance(0.05)
                await asyncio.to_thread(lambda: None)


@asynccontextmanager
async def told(*objects, known=False):
    clock = ManualClock()
    async with ApiServer() as server, Client(server.access, clock) as client:
        for kind, item in objects:
            server.put(kind, item)
        source = ClusterSource(client, server.url, NODE, clock, structlog.get_logger())
        stage = Told(server, source, clock, known)
        try:
            yield stage
        finally:
            stage.task.cancel()
            await asyncio.gather(stage.task, return_exceptions=True)


def of(name, node=NODE, *, finalizers=(GUARD_FINALIZER,)):
    """The controller's Allocation of a network for a node."""
    made = allocation(network(name), name=f"{name}.{node}", finalizers=list(finalizers))
    made["spec"]["node"] = node
    return made


BLUE = (NETWORKS, network("blue"))
OURS = (ALLOCATIONS, of("blue"))


async def test_a_view_has_the_nodes_own_allocations_and_everybodys_networks():
    theirs = (ALLOCATIONS, of("blue", "node-2"))
    kept = (RESERVATIONS, reservation("printers", "10.4.1.8/29"))
    default = {"apiVersion": "allotment.dev/v1alpha1", "kind": "IPAMConfig", "metadata": {"name": "default"}}
    config = (CONFIGS, {**default, "spec": {"cooldownSeconds": 7}})
    green = (NETWORKS, network("green"))
    async with told(BLUE, green, OURS, theirs, kept, config) as stage:
        await stage.until(lambda: stage.views)
        view = stage.view
        assert view.synced
        assert set(view.networks) == {"blue", "green"}
        assert {name: item.name for name, item in view.allocations.items()} == {"blue": f"blue.{NODE}"}
        assert set(view.reservations) == {"printers"}
        assert view.config.spec.cooldown_seconds == 7
        assert "controller" in view.unadmitted["green"]
        assert "blue" not in view.unadmitted
        assert not view.local_l2
        assert all(each.synced for each in stage.views), "published before all of it was read"


async def test_changes_are_told_as_they_come():
    async with told(BLUE) as stage:
        await stage.until(lambda: stage.views)
        stage.server.put(*OURS)
        await stage.until(lambda: "blue" in stage.view.allocations)
        stage.server.delete(NETWORKS, "blue")
        await stage.until(lambda: "blue" not in stage.view.networks or stage.view.doubted)


async def test_a_network_that_is_seen_after_its_allocation_was_never_gone():
    """Two watches have no order. I11: the ADD that waits for it is not told that the network drains."""
    async with told() as stage:
        await stage.until(lambda: stage.views)
        stage.server.fail("503", verb="list", kind=NETWORKS.full_name, times=3)
        stage.server.put(*OURS)
        await stage.until(lambda: "blue" in stage.view.allocations)
        stage.server.put(*BLUE)
        await stage.until(lambda: "blue" in stage.view.networks)
        seen = [view for view in stage.views if "blue" in view.allocations]
        assert not any(draining(view.allocations["blue"], view) for view in seen)
        refusals = [plan.refusal for view in seen[:-1] for plan in network_plans(view, NODE)]
        assert refusals
        assert all(refusal.error is NotAdmitted and "not been seen yet" in refusal.message for refusal in refusals)


async def test_a_network_that_a_newer_list_does_not_hold_is_gone():
    """I9: nothing is admitted behind it."""
    async with told(OURS) as stage:
        await stage.until(lambda: stage.views)
        await stage.until(lambda: draining(stage.view.allocations["blue"], stage.view), "it is waited for for ever")
        assert "gone" in draining(stage.view.allocations["blue"], stage.view)


async def test_a_network_that_was_seen_and_is_deleted_is_gone_at_once():
    """I9."""
    green = (NETWORKS, network("green"))
    async with told(BLUE, green, OURS) as stage:
        await stage.until(lambda: stage.views)
        stage.server.fail("503", verb="list", kind=NETWORKS.full_name, times=1000)
        stage.server.delete(NETWORKS, "blue")
        await stage.until(lambda: "blue" not in stage.view.networks)
        assert "gone" in draining(stage.view.allocations["blue"], stage.view)


async def test_another_network_under_the_same_name_is_not_the_allocations():
    """I9: what the Allocation admits to is known by its UID."""
    _, mine = OURS
    async with told(BLUE) as stage:
        await stage.until(lambda: stage.views)
        uid = stage.view.networks["blue"].metadata.uid
        stage.server.put(ALLOCATIONS, {**mine, "spec": {**mine["spec"], "networkUID": uid}})
        await stage.until(lambda: "blue" in stage.view.allocations)
        assert not draining(stage.view.allocations["blue"], stage.view)
        stage.server.change(NETWORKS, "blue", {"metadata": {"finalizers": []}})
        stage.server.delete(NETWORKS, "blue")
        stage.server.put(*BLUE)
        await stage.until(lambda: draining(stage.view.allocations["blue"], stage.view), "it goes on being served")


async def test_a_network_that_never_made_sense_is_not_taken_for_gone():
    odd = network("blue")
    odd["spec"]["subnets"] = [{"cidr": "10.4.1.1/24", "hostPrefixLength": 26}]
    async with told((NETWORKS, odd), OURS) as stage:
        await stage.until(lambda: stage.views)
        await stage.until(lambda: stage.view.problems)
        assert not draining(stage.view.allocations["blue"], stage.view)
        [plan] = network_plans(stage.view, NODE)
        assert plan.refusal.error is NotAdmitted
        assert "makes no sense" in plan.refusal.message


async def test_the_finalizer_is_put_on_beside_the_guard_and_taken_off_alone():
    """I4, I5, I9."""
    async with told(BLUE, OURS) as stage:
        await stage.until(lambda: stage.views)
        name = f"blue.{NODE}"
        assert await stage.record(name, finalizers=(GUARD_FINALIZER, NODE_FINALIZER))
        assert NODE_FINALIZER in stage.view.allocations["blue"].metadata.finalizers, "returned before it was published"
        stage.server.delete(ALLOCATIONS, name)
        await stage.until(lambda: stage.view.allocations["blue"].metadata.deleting)
        assert await stage.record(name, finalizers=(GUARD_FINALIZER,))
        assert stage.server.find(ALLOCATIONS, name).metadata.finalizers == (GUARD_FINALIZER,)
        await stage.source.forget(stage.view.allocations["blue"])
        assert stage.server.find(ALLOCATIONS, name) is not None, "the guard is the controller's"


async def test_no_finalizer_is_put_on_what_is_being_deleted_or_gone():
    async with told(BLUE, OURS) as stage:
        await stage.until(lambda: stage.views)
        name = f"blue.{NODE}"
        stage.server.delete(ALLOCATIONS, name)
        await stage.until(lambda: stage.view.allocations["blue"].metadata.deleting)
        assert not await stage.record(name, finalizers=(GUARD_FINALIZER, NODE_FINALIZER))


async def test_a_write_that_somebody_came_before_is_tried_again_later_and_takes_nothing_back():
    async with told(BLUE, OURS) as stage:
        await stage.until(lambda: stage.views)
        name = f"blue.{NODE}"
        stage.server.mute_watches()
        stage.server.change(ALLOCATIONS, name, {"metadata": {"finalizers": [GUARD_FINALIZER, "example.org/other"]}})
        with pytest.raises(TryAgain):
            await stage.record(name, finalizers=(GUARD_FINALIZER, NODE_FINALIZER))
        assert stage.server.find(ALLOCATIONS, name).metadata.finalizers == (GUARD_FINALIZER, "example.org/other")


async def test_another_allocation_under_the_same_name_is_not_written_to():
    """I9: what was decided about one that is gone says nothing of the next."""
    async with told(BLUE, OURS) as stage:
        await stage.until(lambda: stage.views)
        name, before = f"blue.{NODE}", stage.view.allocations["blue"]
        stage.server.change(ALLOCATIONS, name, {"metadata": {"finalizers": []}})
        stage.server.delete(ALLOCATIONS, name)
        stage.server.put(*OURS)
        await stage.until(lambda: stage.view.allocations["blue"].metadata.uid != before.metadata.uid)
        for what in ({"finalizers": (GUARD_FINALIZER, NODE_FINALIZER)}, {"status": AllocationStatus(ledger_id="L1")}):
            with contextlib.suppress(TryAgain):
                assert not await stage.source.record(before, **what)
        after = stage.server.find(ALLOCATIONS, name)
        assert after.metadata.finalizers == (GUARD_FINALIZER,)
        assert not after.status.ledger_id


async def test_status_is_written_and_what_it_no_longer_says_goes():
    async with told(BLUE, OURS) as stage:
        await stage.until(lambda: stage.views)
        name = f"blue.{NODE}"
        assert await stage.record(name, status=AllocationStatus(ledger_id="L1", relinquished=("10.4.1.0/24",)))
        assert await stage.record(name, status=AllocationStatus(ledger_id="L1"))
        assert stage.server.find(ALLOCATIONS, name).status == AllocationStatus(ledger_id="L1")


async def test_without_contact_what_was_known_stays_and_the_view_says_since_when():
    """I12."""
    async with told(BLUE, OURS) as stage:
        await stage.until(lambda: stage.views)
        await stage.server.stop()
        await stage.until(lambda: stage.view.lost_contact is not None, "the loss isn't told")
        assert set(stage.view.networks) == {"blue"}
        assert set(stage.view.allocations) == {"blue"}
        assert stage.view.warnings
        assert not stage.view.problems
        await stage.server.start()
        await stage.until(lambda: stage.view.lost_contact is None, "contact isn't told")
        assert not stage.view.warnings


async def test_an_object_that_makes_no_sense_is_named_and_its_last_good_state_holds():
    async with told(BLUE, OURS) as stage:
        await stage.until(lambda: stage.views)
        stage.server.change(NETWORKS, "blue", {"spec": {"subnets": [{"cidr": "10.4.1.1/24", "hostPrefixLength": 26}]}})
        await stage.until(lambda: stage.view.problems)
        assert stage.view.problems[0].file == "networks/blue"
        assert "10.4.1.0/24" in stage.view.problems[0].message
        assert [subnet.cidr for subnet in stage.view.networks["blue"].spec.subnets] == ["10.4.1.0/24", "fd00:4::/64"]
        stage.server.put(*BLUE)
        await stage.until(lambda: not stage.view.problems)


async def test_a_node_that_had_objects_is_not_told_at_once_that_there_are_none():
    """I15: an empty answer from a source that should not be empty is doubted."""
    async with told(known=True) as stage:
        await stage.until(lambda: stage.views)
        first = stage.views[0]
        assert first.doubted
        assert not first.synced
        await stage.until(lambda: stage.view.synced and not stage.view.doubted, "a second answer is believed")
        assert not stage.view.networks


async def test_what_was_there_stays_until_it_is_gone_for_certain():
    """I15."""
    async with told(BLUE, OURS) as stage:
        await stage.until(lambda: stage.views)
        stage.server.change(ALLOCATIONS, f"blue.{NODE}", {"metadata": {"finalizers": []}})
        stage.server.delete(ALLOCATIONS, f"blue.{NODE}")
        await stage.until(lambda: stage.view.doubted)
        assert "blue" in stage.view.allocations
        await stage.until(lambda: not stage.view.doubted)
        assert "blue" not in stage.view.allocations


def pod(name, *, node=NODE, **metadata):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", **metadata},
        "spec": {"nodeName": node},
    }


async def test_the_pods_of_the_node_are_known_by_uid_and_static_ones_by_their_files_too():
    static = pod("etcd-node-1", annotations={"kubernetes.io/config.hash": "abcdef"})
    async with told((PODS, pod("web-0")), (PODS, pod("web-1", node="node-2")), (PODS, static)) as stage:
        assert "not been asked" in stage.source.pods().why
        await stage.until(lambda: isinstance(stage.source.pods(), Pods))
        uids = {stage.server.find(PODS, name, namespace="shop").metadata.uid for name in ("web-0", "etcd-node-1")}
        assert stage.source.pods().uids == uids | {"abcdef"}
        stage.server.delete(PODS, "web-0", namespace="shop")
        await stage.until(lambda: len(stage.source.pods().uids) == 2)


async def test_of_the_pods_those_that_may_have_an_address_of_ours_are_told_with_it():
    """One that has ended keeps its addresses in its status; one in the node's own network has the node's."""

    def with_address(name, phase="Running", *, host_network=False, **metadata):
        made = pod(name, **metadata)
        made["spec"]["hostNetwork"] = host_network
        return made | {"status": {"phase": phase, "podIPs": [{"ip": "10.9.0.7"}, {"ip": "fd09::7"}, {"ip": "?"}]}}

    pods = (
        with_address("web-0"),
        with_address("etcd-node-1", annotations={"kubernetes.io/config.hash": "abcdef"}),
        with_address("job-0", "Succeeded"),
        with_address("job-1", "Failed"),
        with_address("proxy", host_network=True),
    )
    async with told(*((PODS, each) for each in pods)) as stage:
        assert "not been asked" in stage.source.running().why
        await stage.until(lambda: not isinstance(stage.source.running(), Unreadable))
        found = {each.name: each for each in stage.source.running()}
        assert found.keys() == {"web-0", "etcd-node-1"}
        assert [str(address) for address in found["web-0"].addresses] == ["10.9.0.7", "fd09::7"]
        assert "abcdef" in found["etcd-node-1"].uids
        await stage.server.stop()
        await stage.until(lambda: isinstance(stage.source.running(), Unreadable))
        await stage.server.start()


async def test_pods_that_cannot_be_asked_for_are_not_taken_for_none():
    """I8: a stale source says nothing."""
    async with told((PODS, pod("web-0"))) as stage:
        await stage.until(lambda: isinstance(stage.source.pods(), Pods))
        await stage.server.stop()
        await stage.until(lambda: isinstance(stage.source.pods(), Unreadable))
        await stage.server.start()
        await stage.until(lambda: isinstance(stage.source.pods(), Pods))


async def test_the_nodes_labels_and_how_many_pods_it_takes_are_known():
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"disk": "hdd"}}}
    node["status"] = {"allocatable": {"pods": "110"}}
    green = network("green")
    green["spec"]["nodeSelector"] = {"matchLabels": {"disk": "ssd"}}
    async with told(BLUE, (NETWORKS, green), OURS, (NODES, node)) as stage:
        await stage.until(lambda: stage.views and stage.view.pod_limit)
        assert stage.view.pod_limit == 110
        assert stage.view.unselected == {"green"}
        assert "leaves this node out" in stage.view.unadmitted["green"]


async def test_without_a_node_object_nothing_is_said_of_selectors():
    green = network("green")
    green["spec"]["nodeSelector"] = {"matchLabels": {"disk": "ssd"}}
    async with told((NETWORKS, green)) as stage:
        await stage.until(lambda: stage.views)
        assert (stage.view.pod_limit, stage.view.unselected) == (None, frozenset())
