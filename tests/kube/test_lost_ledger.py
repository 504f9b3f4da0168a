"""A ledger that is lost in a cluster: made again from what the runtime tells, with and without an API server (I15)."""

import itertools
import json
import shutil

import pytest

from agents import told
from allotment.addressing.address import parse_address
from allotment.cni.exchange import SPOOL
from allotment.cri.messages import Sandbox
from allotment.testing.cri import FakeRuntime, Fault
from kube.cluster_agent import ClusterAgent, add_node, allocation, create, delete, get, network, patch
from nodes import until

_NUMBERS = itertools.count(1)
BLOCK = "10.73.0.0/26"


@pytest.fixture
def net(server):
    """A network with an Allocation for the node `of`, as the controller makes both; they go with the test."""
    number = next(_NUMBERS)
    node, net = f"lost{number}", f"l{number}"
    add_node(server, node)
    made = create(server, network(net, "10.73.0.0/16"))
    create(server, allocation(made, node, BLOCK))
    yield net
    for plural, name in (("allocations", f"{net}.{node}"), ("networks", net)):
        until(lambda plural=plural: server.request("GET", f"/apis/allotment.dev/v1alpha1/{plural}")[0] == 200)
        patch(server, plural, name, {"metadata": {"finalizers": []}})
        delete(server, plural, name)
    server.kubectl("delete", "node", node)


@pytest.fixture
def runtime(tmp_path):
    with FakeRuntime(tmp_path / "cri.sock") as runtime:
        yield runtime


@pytest.fixture
def agent(launcher, server, net, runtime):
    node = f"lost{net[1:]}"
    with ClusterAgent(launcher, server, node, flags=["--runtime-socket", runtime.path, "--add-wait", "0"]) as agent:
        yield agent


def run_pods(agent, runtime, net, *pods):
    """ADD, and a sandbox of each; their addresses."""
    given = {}
    for pod in pods:
        reply = agent.ask("ADD", pod, network=net)
        assert not reply.exit_code, reply.body
        [given[pod]] = told(reply.body)
        address = parse_address(given[pod])
        runtime.start(Sandbox(pod, name=pod, namespace="test", uid=f"uid-{pod}", ready=True, ips=(address,)))
    return given


def lose(agent):
    """SIGKILL, and the whole ledger is gone."""
    agent.kill()
    shutil.rmtree(agent.state)
    agent.state.mkdir()


def until_serving(agent, net):
    until(lambda: not agent.ask("STATUS", network=net).exit_code, "it does not serve")


def held(agent, net):
    return {container: addresses for (network, container), [*addresses] in agent.held().items() if network == net}


def test_every_sandbox_of_the_runtime_has_its_lease_back_and_nobody_gets_its_address(agent, runtime, net):
    agent.start()
    until_serving(agent, net)
    given = run_pods(agent, runtime, net, *(f"c{number}" for number in range(10)))
    before = {lease.container: (lease.pod_namespace, lease.pod, lease.pod_uid) for lease in agent.leases()}
    lose(agent)
    agent.start()
    until_serving(agent, net)
    assert held(agent, net) == {pod: [address] for pod, address in given.items()}
    assert {lease.container: (lease.pod_namespace, lease.pod, lease.pod_uid) for lease in agent.leases()} == before
    new = run_pods(agent, runtime, net, "n1", "n2")
    assert not set(new.values()) & set(given.values())
    for pod in given:
        assert not agent.ask("DEL", pod, network=net).exit_code
    assert set(held(agent, net)) == {"n1", "n2"}


def test_nothing_is_given_while_the_runtime_cant_be_asked_and_dels_are_kept(agent, runtime, net):
    """I8, I15: a source that can't be read is no empty one."""
    agent.start()
    until_serving(agent, net)
    given = run_pods(agent, runtime, net, "c1", "c2")
    lose(agent)
    runtime.fault = Fault.ERROR
    agent.launch()
    assert agent.await_notice("STATUS", content=runtime.message), agent.log()
    reply = agent.ask("ADD", "new", network=net)
    assert json.loads(reply.body)["code"] == 11
    assert "rebuilt" in json.loads(reply.body)["msg"]
    assert runtime.message in json.loads(reply.body)["msg"]
    assert json.loads(agent.ask("STATUS", network=net).body)["code"] == 50
    assert agent.ask("DEL", "c1", network=net).flags & SPOOL
    shim = agent.shim("DEL", "c1", body=json.dumps(conf_of(net)).encode())
    assert shim.communicate()[0] == b""
    assert shim.returncode == 0
    runtime.fault = Fault.NONE
    until_serving(agent, net)
    until(lambda: held(agent, net) == {"c2": [given["c2"]]}, "the kept DEL has no effect")


def conf_of(net):
    return {"cniVersion": "1.1.0", "name": net, "type": "ptp", "ipam": {"type": "allotment"}}


def test_without_the_api_server_it_waits_for_its_blocks_and_says_so(server, agent, runtime, net):
    agent.start()
    until_serving(agent, net)
    given = run_pods(agent, runtime, net, "c1", "c2")
    lose(agent)
    with server.away():
        agent.launch()
        assert agent.await_notice("STATUS", content="which blocks are this node's isn't known"), agent.log()
        message = json.loads(agent.ask("ADD", "new", network=net).body)["msg"]
        assert "which blocks are this node's isn't known" in message
        assert agent.ask("DEL", "c1", network=net).flags & SPOOL
    assert agent.await_notice("READY"), agent.log()
    until_serving(agent, net)
    assert held(agent, net) == {pod: [address] for pod, address in given.items()}


def test_an_allocation_that_names_another_ledger_says_that_one_was_lost(server, agent, runtime, net):
    """The ledger in place is no trace of the pods' one: it may be a new one, or another node's."""
    agent.start()
    until_serving(agent, net)
    given = run_pods(agent, runtime, net, "c1")
    name = f"{net}.lost{net[1:]}"
    until(lambda: get(server, "allocations", name).get("status", {}).get("ledgerID"), "it is not told")
    agent.ask("DEL", "c1", network=net)  # it knows of no pod, as another node's would
    agent.kill()
    patch(server, "allocations", name, {"status": {"ledgerID": "another"}}, subresource="/status")
    agent.start()  # from what it knew it may serve at once, until the API server tells better
    until(lambda: held(agent, net) == {"c1": [given["c1"]]}, "the pod's lease isn't back")
    until_serving(agent, net)
    until(lambda: "names ledger another" in agent.log(), "it is not told")


def test_two_sandboxes_with_one_address_are_told_and_touched_by_nobody(agent, runtime, net):
    agent.start()
    until_serving(agent, net)
    given = run_pods(agent, runtime, net, "c1", "c2")
    address = parse_address(given["c1"])
    runtime.start(Sandbox("c3", name="c3", namespace="test", uid="uid-c3", ready=True, created_ns=9, ips=(address,)))
    lose(agent)
    agent.start()
    until_serving(agent, net)
    assert held(agent, net) == {pod: [address] for pod, address in given.items()}
    until(lambda: "two use one address" in agent.log(), "it is not told")
    new = run_pods(agent, runtime, net, *(f"n{number}" for number in range(10)))
    assert given["c1"] not in new.values()


def test_an_api_server_that_knows_no_pods_at_all_frees_nothing(agent, runtime, net):
    """C15: there is no Pod object here, and its answer is 200."""
    agent.start()
    until_serving(agent, net)
    given = run_pods(agent, runtime, net, "c1", "c2", "c3")
    for forget in (agent.kill, lambda: lose(agent)):
        forget()
        agent.start()
        until_serving(agent, net)
        new = run_pods(agent, runtime, net, *(f"{forget.__name__.strip('<>')}{number}" for number in range(15)))
        assert not set(new.values()) & set(given.values())
        given |= new
