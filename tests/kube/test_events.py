"""What a person finds with kubectl after something went wrong: the agent's Events on a real API server, with the roles
that are installed with it."""

import contextlib
import json

import pytest

from agents import PATIENCE, told
from allotment.addressing.address import parse_address
from allotment.cri.messages import Sandbox
from allotment.testing.cri import FakeRuntime
from kube.agent_fixtures import agent, name
from kube.cluster_agent import ClusterAgent, allocation, create, delete, get, network, patch
from nodes import until

__all__ = ["agent", "name"]


@pytest.fixture(scope="module", autouse=True)
def namespace(server):
    """Where the pods of `agents.environment` are."""
    if server.request("GET", "/api/v1/namespaces/test")[0] != 200:
        server.kubectl("create", "namespace", "test")


def events(server, kind, name, namespace=""):
    """Reason to Event (to one, where there are several), of those that `kubectl describe` shows for an object."""
    return {item["reason"]: item for item in all_events(server, kind, name, namespace)}


def all_events(server, kind, name, namespace=""):
    wanted = f"regarding.kind={kind},regarding.name={name}"
    where = f"/apis/events.k8s.io/v1/namespaces/{namespace or 'default'}/events?fieldSelector={wanted}"
    status, answer = server.request("GET", where)
    assert status == 200, answer
    return answer["items"]


def of_pod(server, pod, reason):
    """The Event of that reason on a pod, once it is there."""
    return until(lambda: events(server, "Pod", pod, "test").get(reason), f"there is no Event {reason} on {pod}")


def given(agent, container, net, **more):
    reply = agent.ask("ADD", container, network=net, **more)
    assert not reply.exit_code, reply.body
    return told(reply.body)


def refused(agent, container, net, **more):
    reply = agent.ask("ADD", container, network=net, **more)
    assert reply.exit_code, reply.body
    return json.loads(reply.body)


def admitted(server, name, *blocks, state="Confirmed", **spec):
    net = f"n{name}"
    made = create(server, network(net, **spec))
    item = allocation(made, name, *blocks)
    for block in item["spec"]["blocks"]:
        block["state"] = state
    create(server, item)
    return net


def test_a_full_network_is_told_on_the_pod_and_on_the_network(server, name, agent):
    agent.start()
    net = admitted(server, name, "10.71.0.0/31")
    for container in (f"{name}-a", f"{name}-b"):
        assert not agent.ask("ADD", container, network=net).exit_code
    error = refused(agent, f"{name}-c", net)
    event = of_pod(server, f"{name}-c", "AddressesExhausted")
    assert event["note"] == error["msg"]
    assert event["type"] == "Warning"
    assert event["regarding"]["uid"] == f"uid-{name}-c"
    assert event["reportingController"] == "allotment.dev/agent"
    assert event["reportingInstance"] == name
    of_network = until(lambda: events(server, "Network", net).get("AddressesExhausted"), "the Network has none")
    assert f"on {name}" in of_network["note"]
    assert "2 of 2 in use" in server.kubectl("describe", "networks.allotment.dev", net)


def test_what_fails_again_and_again_stays_one_event(server, name, agent):
    agent.start()
    net = admitted(server, name, "10.71.0.0/32", autoAllocateBlocks=False)  # or each would wait for a block
    assert not agent.ask("ADD", f"{name}-a", network=net).exit_code
    for number in range(200):
        refused(agent, f"{name}-{number % 100}", net)
    of_pod(server, f"{name}-0", "AddressesExhausted")
    items = server.request("GET", "/apis/events.k8s.io/v1/namespaces/test/events")[1]["items"]
    mine = [item for item in items if item["regarding"]["name"].startswith(f"{name}-")]
    assert len(mine) <= 51
    assert len(events(server, "Network", net)) == 1


def pending(server, name):
    return admitted(server, name, "10.71.0.0/31", state="Pending")


def closed(server, name):
    net = admitted(server, name, "10.71.0.0/31")
    patch(server, "allocations", f"{net}.{name}", {"spec": {"closed": True}})
    return net


def draining(server, name):
    net = admitted(server, name, "10.71.0.0/31")
    delete(server, "networks", net)
    return net


def without_allocation(server, name):
    create(server, network(f"n{name}"))
    return f"n{name}"


@pytest.mark.parametrize(
    ("make", "reason", "says"),
    [
        pytest.param(lambda *_: "nowhere", "NetworkUnknown", "nowhere is not known", id="unknown"),
        pytest.param(without_allocation, "NoAllocation", "controller", id="no Allocation"),
        pytest.param(admitted, "NoBlock", "0 of 0 blocks", id="no block"),
        pytest.param(pending, "BlockNotConfirmed", "10.71.0.0/31", id="pending"),
        pytest.param(closed, "NetworkClosed", "closed", id="closed"),
        pytest.param(draining, "NetworkDraining", "being deleted", id="draining"),
    ],
)
def test_why_a_pod_gets_no_address_is_told_on_the_pod(server, name, agent, make, reason, says):
    net = make(server, name)
    agent.start()
    pod = f"{name}-c"
    until(lambda: refused(agent, pod, net) and events(server, "Pod", pod, "test").get(reason), f"no Event {reason}")
    assert says in of_pod(server, pod, reason)["note"]


def test_an_address_that_is_asked_for_and_taken_is_told_with_its_holder(server, name, agent):
    agent.start()
    net = admitted(server, name, "10.71.0.0/31")
    assert not agent.ask("ADD", f"{name}-a", network=net).exit_code
    arguments = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=test;K8S_POD_NAME={name}-b;K8S_POD_UID=u;IP=10.71.0.0"
    assert refused(agent, f"{name}-b", net, CNI_ARGS=arguments)["code"] == 102
    assert f"{name}-a" in of_pod(server, f"{name}-b", "AddressUnavailable")["note"]


def condition(server, net, name, kind):
    """The Allocation's condition of that type, None if it has none."""
    item = get(server, "allocations", f"{net}.{name}") or {}
    return next((each for each in item.get("status", {}).get("conditions", []) if each["type"] == kind), None)


def until_condition(server, net, name, kind, status, reason, *, limit=PATIENCE):
    def so():
        found = condition(server, net, name, kind)
        return found and (found["status"], found["reason"]) == (status, reason) and found

    return until(so, f"{kind} is not {status} with reason {reason}", limit=limit)


def test_a_drain_is_told_from_its_beginning_to_its_end(server, name, agent):
    agent.start()
    net = admitted(server, name, "10.71.0.0/26")
    pods = [f"{name}-{number}" for number in range(4)]
    for pod in pods:
        assert not agent.ask("ADD", pod, network=net).exit_code
    delete(server, "allocations", f"{net}.{name}")
    found = until_condition(server, net, name, "Draining", "True", "LeasesLeft")
    assert all(f"test/{pod}" in found["message"] for pod in pods)
    ready = until_condition(server, net, name, "Ready", "False", "NetworkDraining")
    assert ready["observedGeneration"] == get(server, "allocations", f"{net}.{name}")["metadata"]["generation"]
    of_it = lambda: events(server, "Allocation", f"{net}.{name}")  # noqa: E731
    started = until(lambda: of_it().get("DrainStarted"), "its start is not told")
    assert "4 leases left" in started["note"]
    for pod in pods[:3]:
        assert not agent.ask("DEL", pod, network=net).exit_code
    until(
        lambda: any(
            "1 lease left" in item["note"]
            for item in all_events(server, "Allocation", f"{net}.{name}")
            if item["reason"] == "DrainProgressing"
        ),
        "its progress is not told",
    )
    before = condition(server, net, name, "Draining")
    assert before["lastTransitionTime"] == found["lastTransitionTime"]
    assert not agent.ask("DEL", pods[3], network=net).exit_code
    until(lambda: of_it().get("Drained"), "its end is not told")
    assert of_it()["Drained"]["type"] == "Normal"
    described = server.kubectl("describe", "allocations.allotment.dev", f"{net}.{name}")
    assert "Drained" in described


def test_whether_addresses_are_given_is_told_with_the_reason(server, name, agent):
    agent.start()
    net = admitted(server, name, "10.71.0.0/31", state="Pending")
    first = until_condition(server, net, name, "Ready", "False", "BlockNotConfirmed")
    item = f"{net}.{name}"
    patch(server, "allocations", item, {"spec": {"blocks": [{"cidr": "10.71.0.0/31", "state": "Confirmed"}]}})
    until_condition(server, net, name, "Ready", "True", "Serving")
    for pod in (f"{name}-a", f"{name}-b"):
        assert not agent.ask("ADD", pod, network=net).exit_code
    full = until_condition(server, net, name, "Ready", "False", "AddressesExhausted")
    assert full["lastTransitionTime"] >= first["lastTransitionTime"]
    patch(server, "allocations", item, {"spec": {"closed": True}})
    shut = until_condition(server, net, name, "Ready", "False", "NetworkClosed")
    assert shut["lastTransitionTime"] == full["lastTransitionTime"], "only the reason has changed"
    assert shut["observedGeneration"] == get(server, "allocations", item)["metadata"]["generation"]
    assert not agent.ask("DEL", f"{name}-a", network=net).exit_code
    patch(server, "allocations", item, {"spec": {"closed": False}})
    until_condition(server, net, name, "Ready", "True", "Serving")


# -- what concerns the node as a whole


@contextlib.contextmanager
def searched(launcher, server, name, folder):
    """An agent with a runtime to ask, and that runtime."""
    flags = ("--runtime-socket", str(folder / "cri.sock"))
    with FakeRuntime(folder / "cri.sock") as runtime, ClusterAgent(launcher, server, name, flags=flags) as agent:
        yield agent, runtime


def sandbox(container, *addresses):
    """A pod that runs, as the runtime tells of it."""
    ips = tuple(map(parse_address, addresses))
    uid, netns = f"uid-{container}", f"/run/netns/{container}"
    return Sandbox(container, name=container, namespace="test", uid=uid, ready=True, ips=ips, netns=netns)


def test_a_node_that_takes_more_pods_than_it_can_have_addresses_for(server, name, agent):
    path = f"/api/v1/nodes/{name}/status"
    change = {"status": {"allocatable": {"pods": "110"}, "capacity": {"pods": "110"}}}
    assert server.request("PATCH", path, change, content_type="application/merge-patch+json")[0] == 200
    agent.start()
    admitted(server, name, "10.71.0.0/26", maxBlocksPerNode=1)
    event = until(lambda: events(server, "Node", name).get("TooFewAddresses"), "the Node is not told")
    assert "takes 110 pods" in event["note"]
    assert f"n{name} 61" in event["note"]
    assert "TooFewAddresses" in server.kubectl("describe", "node", name)


def test_a_nodeselector_that_leaves_the_node_out_is_told_on_the_pod(server, name, agent):
    server.kubectl("label", "node", name, "disk=hdd")
    create(server, network(f"n{name}", nodeSelector={"matchLabels": {"disk": "ssd"}}))
    agent.start()
    pod = f"{name}-c"
    until(
        lambda: refused(agent, pod, f"n{name}") and events(server, "Pod", pod, "test").get("NodeNotSelected"),
        "it is not told",
    )
    assert "leaves this node out" in of_pod(server, pod, "NodeNotSelected")["note"]


def test_a_rebuilt_ledger_is_told_on_each_allocation(launcher, server, name, tmp_path):
    pod = f"{name}-a"
    with searched(launcher, server, name, tmp_path) as (agent, runtime):
        agent.start()
        net = admitted(server, name, "10.71.0.0/26")
        runtime.start(sandbox(pod, *given(agent, pod, net)))
        until_condition(server, net, name, "Ready", "True", "Serving")
        agent.kill()
        for file in agent.state.glob("ledger.db*"):
            file.write_bytes(b"no ledger" * 1000)
        agent.start()
        event = until(lambda: events(server, "Allocation", f"{net}.{name}").get("LedgerRebuilt"), "it is not told")
        assert "made again from what runs, 1 of them" in event["note"]


# -- what the search for orphans finds


@pytest.mark.slow
def test_what_the_search_finds_is_told_on_pods_and_allocation(launcher, server, name, tmp_path):
    """One pod's DEL was lost, one runs without a lease, and one uses the address of another."""

    living, lost, stranger, thief = (f"{name}-{role}" for role in ("living", "lost", "stranger", "thief"))
    with searched(launcher, server, name, tmp_path) as (agent, runtime):
        agent.start()
        net = admitted(server, name, "10.71.0.0/26")
        [shared] = given(agent, living, net, netns=tmp_path / "living")
        given(agent, lost, net, netns=tmp_path / "lost")
        runtime.start(sandbox(living), sandbox(stranger, "10.71.0.40"), sandbox(thief, shared))
        item = f"{net}.{name}"
        found = until_condition(server, net, name, "Conflict", "True", "AddressUsedTwice", limit=180)
        assert f"{shared} is used by test/{living}" in found["message"]
        assert thief in found["message"]
        for user in (living, thief):
            assert shared in of_pod(server, user, "AddressConflict")["note"]
        until(lambda: events(server, "Network", net).get("AddressConflict"), "the Network is not told")
        assert "10.71.0.40" in of_pod(server, stranger, "LeaseAdopted")["note"]
        runtime.remove(thief)
        until_condition(server, net, name, "Conflict", "False", "NoConflict", limit=180)
        freed = until(lambda: events(server, "Pod", lost, "test").get("OrphanFreed"), "not freed", limit=240)
        assert "doesn't know its sandbox" in freed["note"]
        of_it = until(lambda: len(found := events(server, "Allocation", item)) >= 3 and found, "not all is told")
        assert {"AddressConflict", "LeaseAdopted", "OrphanFreed"} <= set(of_it)
