"""The agent against a real API server, with a real token and under the policy that is installed with it."""

import itertools
import json

import pytest

from agents import told
from kube.agent_fixtures import agent, name
from kube.cluster_agent import ACCOUNT, GUARD, NAMESPACE, OURS, allocation, create, delete, get, network, patch
from nodes import until

__all__ = ["agent", "name"]


def finalizers(server, allocation_name):
    found = get(server, "allocations", allocation_name)
    return None if found is None else found["metadata"].get("finalizers", [])


def admitted(server, name, *blocks, net=None):
    """A network of that name with an Allocation for the node, made as the controller makes it."""
    net = net or f"n{name}"
    made = create(server, network(net))
    create(server, allocation(made, name, *(blocks or ("10.71.0.0/26",))))
    return net


def refused(agent, container, net):
    """The error that an ADD gets."""
    reply = agent.ask("ADD", container, network=net)
    assert reply.exit_code, reply.body
    return json.loads(reply.body)


def until_refused(agent, net):
    """Wait until a new pod gets nothing any more, and return the error; what is given until then is given back."""
    numbers = itertools.count()

    def asked():
        container = f"probe-{next(numbers)}"
        reply = agent.ask("ADD", container, network=net)
        if reply.exit_code:
            return json.loads(reply.body)
        agent.ask("DEL", container, network=net)
        return None

    return until(asked, "it goes on giving")


def given(agent, container, net):
    reply = agent.ask("ADD", container, network=net)
    assert not reply.exit_code, reply.body
    return told(reply.body)


def test_a_node_is_admitted_and_gives_addresses_of_its_block_after_its_finalizer_is_on(server, name, agent):
    """I4."""
    agent.start()
    net = admitted(server, name)
    [address] = given(agent, "c1", net)  # it waits for what is about to come
    assert address.startswith("10.71.0.")
    assert set(finalizers(server, f"{net}.{name}")) == {GUARD, OURS}
    status = until(lambda: get(server, "allocations", f"{net}.{name}").get("status"), "no status is told")
    assert status["ledgerID"]
    assert [block["cidr"] for block in status["blocks"]] == ["10.71.0.0/26"]


def test_a_network_without_an_allocation_gives_nothing_and_says_who_has_to_act(server, name, agent):
    agent.start()
    create(server, network(f"n{name}"))
    error = refused(agent, "c1", f"n{name}")
    assert error["code"] == 11
    assert "controller" in error["msg"]


def test_another_nodes_allocation_is_not_ours(server, name, agent):
    """I1, I4."""
    agent.start()
    net = f"n{name}"
    made = create(server, network(net))
    create(server, allocation(made, "elsewhere", "10.71.0.0/26"))
    assert refused(agent, "c1", net)["code"] == 11
    assert finalizers(server, f"{net}.elsewhere") == [GUARD]


def test_a_drain_refuses_at_once_and_the_finalizer_goes_with_the_last_pod(server, name, agent):
    """I5, I9: the guard stays, it is the controller's."""
    agent.start()
    net = admitted(server, name)
    given(agent, "c1", net)
    given(agent, "c2", net)
    delete(server, "allocations", f"{net}.{name}")
    error = until_refused(agent, net)
    assert error["code"] == 7
    assert "deleted" in error["msg"]
    assert not agent.ask("DEL", "c1", network=net).exit_code
    condition = until(
        lambda: next(
            (
                each["message"]
                for each in get(server, "allocations", f"{net}.{name}").get("status", {}).get("conditions", [])
                if each["type"] == "Draining" and "c2" in each["message"] and "c1" not in each["message"]
            ),
            None,
        ),
        "the condition does not say what is waited for",
    )
    assert "1 lease" in condition
    assert OURS in finalizers(server, f"{net}.{name}")
    assert not agent.ask("DEL", "c2", network=net).exit_code
    until(lambda: finalizers(server, f"{net}.{name}") == [GUARD], "the finalizer does not go")
    patch(server, "allocations", f"{net}.{name}", {"metadata": {"finalizers": []}})
    until(lambda: finalizers(server, f"{net}.{name}") is None)


def test_deleting_the_network_closes_the_door_too(server, name, agent):
    """I9."""
    agent.start()
    net = admitted(server, name)
    given(agent, "c1", net)
    delete(server, "networks", net)
    assert until_refused(agent, net)["code"] == 7
    assert not agent.ask("DEL", "c1", network=net).exit_code
    until(lambda: finalizers(server, f"{net}.{name}") == [GUARD], "the finalizer does not go")


def test_a_further_block_and_a_closed_allocation_are_taken_up_live(server, name, agent):
    agent.start()
    net = admitted(server, name, "10.71.0.0/31")
    assert set(given(agent, "c1", net) + given(agent, "c2", net)) == {"10.71.0.0", "10.71.0.1"}
    assert "2 of 2 in use" in refused(agent, "c3", net)["msg"]
    blocks = [{"cidr": cidr, "state": "Confirmed"} for cidr in ("10.71.0.0/31", "10.71.0.64/31")]
    patch(server, "allocations", f"{net}.{name}", {"spec": {"blocks": blocks}})
    until(lambda: agent.ask("ADD", "c3", network=net).exit_code == 0, "the block is not used")
    patch(server, "allocations", f"{net}.{name}", {"spec": {"closed": True}})
    until(lambda: "closed" in until_refused(agent, net)["msg"], "it is not closed")


def test_without_the_api_server_everything_goes_on_also_after_a_restart(server, name, agent):
    """I12."""
    agent.start()
    net = admitted(server, name)
    before = given(agent, "c1", net)
    with server.away():
        assert given(agent, "c1", net) == before
        assert given(agent, "c2", net)
        assert not agent.ask("DEL", "c2", network=net).exit_code
        agent.kill()
        agent.start()
        assert given(agent, "c1", net) == before
        assert given(agent, "c3", net)
    blocks = [{"cidr": cidr, "state": "Confirmed"} for cidr in ("10.71.0.0/26", "10.71.9.0/26")]
    patch(server, "allocations", f"{net}.{name}", {"spec": {"blocks": blocks}})
    status = lambda: get(server, "allocations", f"{net}.{name}").get("status", {})  # noqa: E731
    until(lambda: len(status().get("blocks", [])) == 2, "it is not in step again")


def test_history_that_is_compacted_away_is_read_anew(server, name, agent):
    agent.start()
    net = admitted(server, name)
    given(agent, "c1", net)
    with server.away():
        pass
    server.compact()
    delete(server, "allocations", f"{net}.{name}")
    assert until_refused(agent, net)["code"] == 7


# -- the policy


@pytest.fixture
def token(server, name):
    """An agent's of the node, once the policy is in force."""
    token = server.bound_token(NAMESPACE, ACCOUNT, node=name)
    made = create(server, network(f"x{name}"))
    create(server, allocation(made, "probe", "10.71.0.0/26") | {})
    until(
        lambda: (
            patch(server, "allocations", f"x{name}.probe", {"metadata": {"labels": {"a": "b"}}}, token=token)[0] == 403
        ),
        "the policy is not in force",
    )
    patch(server, "allocations", f"x{name}.probe", {"metadata": {"finalizers": []}})
    delete(server, "allocations", f"x{name}.probe")
    return token


def _both(server, name):
    made = create(server, network(f"p{name}"))
    create(server, allocation(made, name, "10.71.0.0/26", finalizers=(GUARD, "example.org/x")))
    create(server, allocation(made, f"{name}-other", "10.71.0.64/26"))
    return f"p{name}.{name}", f"p{name}.{name}-other"


def test_an_agent_may_write_finalizer_and_status_of_its_own_allocation(server, name, token):
    own, _ = _both(server, name)
    others = [GUARD, "example.org/x"]
    assert patch(server, "allocations", own, {"metadata": {"finalizers": [*others, OURS]}}, token=token)[0] == 200
    told_ = {"status": {"ledgerID": "L"}}
    assert patch(server, "allocations", own, told_, token=token, subresource="/status")[0] == 200
    assert patch(server, "allocations", own, {"metadata": {"finalizers": others}}, token=token)[0] == 200
    assert get(server, "allocations", own)["status"]["ledgerID"] == "L"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"blocks": [{"cidr": "10.71.128.0/26", "state": "Confirmed"}]}}, id="a block"),
        pytest.param({"spec": {"closed": True}}, id="closed"),
        pytest.param({"metadata": {"finalizers": [GUARD]}}, id="somebody's finalizer off"),
        pytest.param(
            {"metadata": {"finalizers": [GUARD, "example.org/x", "example.org/y"]}}, id="another finalizer on"
        ),
        pytest.param({"metadata": {"labels": {"a": "b"}}}, id="a label"),
        pytest.param({"metadata": {"annotations": {"a": "b"}}}, id="an annotation"),
    ],
)
def test_an_agent_may_write_nothing_else_of_it(server, name, token, change):
    own, _ = _both(server, name)
    code, answer = patch(server, "allocations", own, change, token=token)
    assert code == 403, answer


def test_an_agent_may_write_nothing_of_another_nodes_allocation(server, name, token):
    _, other = _both(server, name)
    change = {"metadata": {"finalizers": [GUARD, OURS]}}
    code, answer = patch(server, "allocations", other, change, token=token)
    assert code == 403
    assert name in answer["message"]
    assert (
        patch(server, "allocations", other, {"status": {"ledgerID": "L"}}, token=token, subresource="/status")[0] == 403
    )


def test_an_agent_without_a_node_in_its_token_may_write_nothing(server, name, token):
    own, _ = _both(server, name)
    unbound = server.bound_token(NAMESPACE, ACCOUNT)
    assert patch(server, "allocations", own, {"metadata": {"finalizers": [GUARD, OURS]}}, token=unbound)[0] == 403


def test_nobody_but_agent_and_controller_takes_the_nodes_finalizer_off(server, name, token):
    own, _ = _both(server, name)
    others = [GUARD, "example.org/x"]
    assert patch(server, "allocations", own, {"metadata": {"finalizers": [*others, OURS]}}, token=token)[0] == 200
    code, answer = patch(server, "allocations", own, {"metadata": {"finalizers": others}})
    assert code == 403
    assert "ValidatingAdmissionPolicyBinding" in answer["message"]
    assert patch(server, "allocations", own, {"metadata": {"finalizers": others}}, token=token)[0] == 200
