"""Blocks that come and go, by what the agent says in its Allocation's status; the test plays the controller."""

import json
import threading

import pytest

from agents import told
from kube.agent_fixtures import name
from kube.cluster_agent import (
    ACCOUNT,
    GUARD,
    NAMESPACE,
    ClusterAgent,
    allocation,
    create,
    delete,
    get,
    network,
    patch,
)
from nodes import until

__all__ = ["agent", "name"]

_OFFERED = 300.0
"""Seconds in which an empty block has to be offered: it is looked at once a minute, at worst three times."""


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


@pytest.mark.slow
def test_an_empty_block_is_offered_and_taken_or_taken_back_when_it_is_needed(server, name, agent):
    """I1, I4: an offered block gives nothing, not even after a crash."""
    blocks = ("10.75.0.0/29", "10.75.0.8/29", "10.75.0.16/29")
    controller = Controller(server, name, "10.75.0.0/24", 29, *blocks)
    net = controller.net
    for number in range(3):  # of five in a block
        given(agent, f"c{number}", net)
    offered = until(lambda: controller.status.get("relinquished"), "no block is offered", limit=_OFFERED)
    assert offered == [blocks[2]]  # without the second one there would be too little
    agent.kill()
    agent.start()
    for number in range(3, 9):  # now one is left of the two
        [address] = given(agent, f"c{number}", net)
        assert address not in {f"10.75.0.{last}" for last in range(16, 24)}
    until(lambda: "relinquished" not in controller.status, "the block is not taken back")
    assert "wantBlocks" not in controller.status
    given(agent, "c9", net)
    assert given(agent, "c10", net) == ("10.75.0.18",)
    for number in range(3, 11):
        assert not agent.ask("DEL", f"c{number}", network=net).exit_code
    until(lambda: controller.status.get("relinquished") == [blocks[2]], "no block is offered again", limit=_OFFERED)
    controller.set(*blocks[:2])
    until(lambda: "relinquished" not in controller.status, "a block that was taken is still offered")
    # What comes back is an ordinary block again.
    controller.set(*blocks)
    for number in range(20, 32):
        last = given(agent, f"c{number}", net)
    assert last[0] in {f"10.75.0.{number}" for number in range(18, 23)}


def test_pods_of_a_block_that_went_to_others_while_the_node_was_away_are_named_and_not_served(server, name, agent):
    """I1: the Allocation was released and made anew; what lies in its blocks is taken back, the rest is a conflict."""
    controller = Controller(server, name, "10.77.0.0/24", 29, "10.77.0.0/29", "10.77.0.8/29")
    net = controller.net
    for number in range(6):
        given(agent, f"c{number}", net)
    until(lambda: controller.status.get("ledgerID"), "no ledger is named")
    agent.stop()
    token = server.bound_token(NAMESPACE, ACCOUNT, node=name)
    delete(server, "allocations", controller.name)
    patch(server, "allocations", controller.name, {"metadata": {"finalizers": [GUARD]}}, token=token)
    patch(server, "allocations", controller.name, {"metadata": {"finalizers": []}})
    until(lambda: get(server, "allocations", controller.name) is None)
    create(server, allocation(get(server, "networks", net), name, "10.77.0.8/29"))
    agent.start()
    until(lambda: agent.ask("ADD", "c5", network=net).exit_code == 0, "the lease in its block is not taken back")
    told_ = until(
        lambda: next((each for each in controller.status.get("conditions", []) if each["type"] == "Conflict"), None),
        "nothing is said of the others",
    )
    assert told_["reason"] == "BlockGivenAway"
    assert "10.77.0.2" in told_["message"]
    error = refusal(agent, "c0", net)
    assert error["code"] == 102
    assert "recreate the pod" in error["msg"]
    assert given(agent, "c9", net) == ("10.77.0.11",)
    for number in range(5):
        assert not agent.ask("DEL", f"c{number}", network=net).exit_code
    until(
        lambda: any(each["reason"] == "NoConflict" for each in controller.status["conditions"]),
        "it does not end with the last of them",
    )
