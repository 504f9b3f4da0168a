"""Blocks that come and go, by what the agent says in its Allocation's status; the test plays the controller."""

import itertools
import json
import threading

import pytest

from agents import told
from kube.cluster_agent import ClusterAgent, add_node, allocation, create, delete, get, install, network, patch
from nodes import until

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def server(crds):
    install(crds)
    return crds


@pytest.fixture
def name(server):
    name = f"cb{next(_NUMBERS)}"
    add_node(server, name)
    yield name
    for plural in ("allocations", "networks"):
        for item in server.request("GET", f"/apis/allotment.dev/v1alpha1/{plural}")[1]["items"]:
            if name in item["metadata"]["name"]:
                patch(server, plural, item["metadata"]["name"], {"metadata": {"finalizers": []}})
                delete(server, plural, item["metadata"]["name"])
    server.kubectl("delete", "node", name)


@pytest.fixture
def agent(launcher, server, name):
    with ClusterAgent(launcher, server, name) as agent:
        agent.start()
        yield agent


class Controller:
    """The controller's part in one Allocation: gives and takes blocks, by the resourceVersion it read."""

    def __init__(self, server, node, cidr, length, *blocks, **spec):
        self.server = server
        self.net = f"n{node}"
        self.name = f"{self.net}.{node}"
        made = create(server, network(self.net, cidr, length, **spec))
        create(server, allocation(made, node, *blocks))

    @property
    def status(self):
        return get(self.server, "allocations", self.name).get("status", {})

    @property
    def blocks(self):
        return [block["cidr"] for block in get(self.server, "allocations", self.name)["spec"].get("blocks", [])]

    def set(self, *blocks):
        now = get(self.server, "allocations", self.name)
        change = {"spec": {"blocks": [{"cidr": cidr, "state": "Confirmed"} for cidr in blocks]}}
        change["metadata"] = {"resourceVersion": now["metadata"]["resourceVersion"]}
        code, answer = patch(self.server, "allocations", self.name, change)
        assert code == 200, answer

    def wants(self, count):
        until(lambda: self.status.get("wantBlocks", {}).get("v4", 0) == count, f"it does not want {count} blocks")


def given(agent, container, net):
    reply = agent.ask("ADD", container, network=net)
    assert not reply.exit_code, reply.body
    return told(reply.body)


def refusal(agent, container, net):
    reply = agent.ask("ADD", container, network=net)
    assert reply.exit_code, reply.body
    return json.loads(reply.body)


def test_a_node_asks_for_a_block_before_the_last_address_is_given_and_goes_on_in_it(server, name, agent):
    controller = Controller(server, name, "10.72.0.0/24", 29, "10.72.0.0/29")
    net = controller.net
    for number in range(4):  # of five
        given(agent, f"c{number}", net)
    controller.wants(2)
    assert given(agent, "c4", net) == ("10.72.0.6",)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(agent.ask("ADD", "c5", network=net)))
    waiting.start()
    try:
        controller.set("10.72.0.0/29", "10.72.0.64/29")
    finally:
        waiting.join()
    assert answers[0].exit_code == 0, answers[0].body
    assert told(answers[0].body) == ("10.72.0.66",)
    until(lambda: "wantBlocks" not in controller.status, "it goes on wanting")


def test_who_waits_in_vain_for_a_block_is_told_to_try_again(server, name, agent):
    controller = Controller(server, name, "10.73.0.0/24", 30, "10.73.0.0/31")
    given(agent, "c1", controller.net)
    given(agent, "c2", controller.net)
    error = refusal(agent, "c3", controller.net)
    assert error["code"] == 11
    assert "2 of 2 in use" in error["msg"]
    assert "try again" in error["msg"]
    controller.wants(2)
    assert not agent.ask("DEL", "c2", network=controller.net).exit_code
    assert given(agent, "c3", controller.net)


@pytest.mark.parametrize(
    ("spec", "words"),
    [({"maxBlocksPerNode": 1}, "maxBlocksPerNode"), ({"autoAllocateBlocks": False}, "autoAllocateBlocks is false")],
)
def test_where_no_block_can_be_had_nobody_waits_and_nothing_is_asked_for(server, name, agent, spec, words):
    controller = Controller(server, name, "10.74.0.0/24", 30, "10.74.0.0/31", **spec)
    given(agent, "c1", controller.net)
    given(agent, "c2", controller.net)
    error = refusal(agent, "c3", controller.net)
    assert error["code"] == 101
    assert words in error["msg"]
    until(lambda: controller.status.get("blocks", [{}])[0].get("inUse") == "2", "the status does not follow")
    assert "wantBlocks" not in controller.status
