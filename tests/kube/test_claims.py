"""L2 networks in a cluster: real agents ask a real API server for their pods' addresses (ADR 0011).

The controller's part is played by `claim_controller`; the agents have real tokens and are under the policy.
"""

import json

import pytest

from agents import told
from kube.claiming import (
    API,
    agent,
    ask,
    claims,
    controller,
    end,
    flat,
    given,
    held,
    name,
    pod,
    refused,
    released,
    shim,
)
from kube.cluster_agent import ACCOUNT, GUARD, NAMESPACE, ClusterAgent, delete, get, object_, patch
from nodes import until

__all__ = ["agent", "controller", "name"]


def test_a_pod_gets_what_the_controller_picks_and_gives_it_back(server, name, agent):
    """I1, I2: one Claim, owned by the pod, held by the node's finalizer from birth; gone after DEL."""
    agent.start()
    net, space = flat(server, name), f"n{name}"
    uid = pod(server, space, "web", name)
    reply = ask(agent, "ADD", "c1", net, space, pod="web", uid=uid)
    assert not reply.exit_code, reply.body
    [entry] = json.loads(reply.body)["ips"]
    assert entry["address"] == "192.0.2.2/24"
    assert entry["gateway"] == "192.0.2.1"
    [claim] = claims(server, space)
    assert claim["metadata"]["finalizers"] == ["allotment.dev/node"]
    assert [(owner["kind"], owner["uid"]) for owner in claim["metadata"]["ownerReferences"]] == [("Pod", uid)]
    assert claim["spec"]["node"] == name
    assert claim["spec"]["pod"] == {"name": "web", "uid": uid, "containerID": "c1", "interface": "eth0"}
    assert held(server, net) == {"192.0.2.2": claim["metadata"]["name"]}
    assert told(ask(agent, "ADD", "c1", net, space, pod="web", uid=uid).body) == ("192.0.2.2",)
    released(agent, "c1", net, space)
    assert agent.held() == {}
    until(lambda: claims(server, space) == [], "the Claim stays")
    until(lambda: held(server, net) == {}, "the address is not freed")


def test_a_dual_stack_network_takes_a_claim_for_each_family(server, name, agent):
    agent.start()
    space = f"n{name}"
    net = flat(server, name, subnets=[{"cidr": "192.0.2.0/24"}, {"cidr": "fd00:2::/64", "gateway": "fd00:2::1"}])
    assert given(agent, "c1", net, space) == ("192.0.2.1", "fd00:2::2")
    assert {claim["spec"]["poolRef"]["name"] for claim in claims(server, space)} == {f"net.{net}.v4", f"net.{net}.v6"}
    released(agent, "c1", net, space)
    until(lambda: claims(server, space) == [], "the Claims stay")


def test_an_agent_killed_before_the_lease_finds_its_claim_again(server, name, agent, controller):
    """I1, I2: the same Claim, the same address, one only."""
    agent.start()
    net, space = flat(server, name), f"n{name}"
    controller.set(idle=True)
    waiting = shim(agent, "ADD", "c1", net, space, timeout_ms=1000)
    [claim] = until(lambda: claims(server, space), "no Claim is made")
    agent.kill()
    controller.set(idle=False)
    address = until(lambda: claims(server, space)[0].get("status", {}).get("value"), "it is not bound")
    waiting.communicate()
    agent.start()
    assert given(agent, "c1", net, space) == (address,)
    [again] = claims(server, space)
    assert again["metadata"]["uid"] == claim["metadata"]["uid"]
    assert list(held(server, net)) == [address]


@pytest.mark.slow
def test_what_no_retry_comes_for_is_withdrawn_by_del_at_once(server, name, agent, controller):
    """A controller that is slow costs code 11; runtimes then call DEL."""
    agent.start()
    net, space = flat(server, name), f"n{name}"
    controller.set(idle=True)
    error = refused(agent, "c1", net, space)
    assert error["code"] == 11
    assert "controller" in error["msg"]
    [claim] = claims(server, space)
    controller.set(idle=False)
    until(lambda: claims(server, space)[0].get("status", {}).get("value"), "it is not bound")
    assert claims(server, space)[0]["metadata"]["uid"] == claim["metadata"]["uid"], "the Claim is not left for a retry"
    assert given(agent, "c1", net, space) == ("192.0.2.2",)
    released(agent, "c1", net, space)
    until(lambda: claims(server, space) == [], "the Claim stays")
    controller.set(idle=True)
    refused(agent, "c2", net, space)
    released(agent, "c2", net, space)
    until(lambda: claims(server, space) == [], "the Claim stays")


def test_a_del_does_not_wait_for_the_add_that_waits(server, name, agent, controller):
    agent.start()
    net, space = flat(server, name), f"n{name}"
    controller.set(idle=True)
    waiting = shim(agent, "ADD", "c1", net, space)
    until(lambda: claims(server, space), "no Claim is made")
    released(agent, "c1", net, space)
    output, _ = waiting.communicate()
    assert json.loads(output)["code"] == 11
    assert "DEL" in json.loads(output)["msg"]
    until(lambda: claims(server, space) == [], "the Claim stays")


@pytest.mark.slow
def test_without_the_api_server_a_del_is_done_and_the_claim_goes_later(server, name, agent):
    """I5, I11, I12: also when the agent is started anew in between."""
    agent.start()
    net, space = flat(server, name), f"n{name}"
    given(agent, "c1", net, space)
    given(agent, "c2", net, space)
    with server.away():
        released(agent, "c1", net, space)
        assert {container for _, container in agent.held()} == {"c2"}
        assert refused(agent, "c3", net, space)["code"] == 11
        assert given(agent, "c2", net, space), "what is leased needs nobody"
        agent.kill()
        agent.start()
        released(agent, "c2", net, space)
    until(lambda: claims(server, space) == [], "the Claims stay")
    until(lambda: held(server, net) == {}, "the addresses are not freed")


@pytest.mark.slow
def test_two_nodes_never_give_one_address(server, name, agent, launcher):
    """I1."""
    space, other = f"n{name}", f"{name}-b"
    net = flat(server, name, name, other)
    with ClusterAgent(launcher, server, other) as second:
        agent.start()
        second.start()
        waiting = [
            shim(each, "ADD", f"{letter}{number}", net, space)
            for number in range(8)
            for letter, each in (("a", agent), ("b", second))
        ]
        answers = [json.loads(process.communicate()[0]) for process in waiting]
        addresses = [entry["address"] for answer in answers for entry in answer["ips"]]
        assert len(set(addresses)) == 16
        for number in range(8):
            released(second, f"b{number}", net, space)
        until(lambda: len(claims(server, space)) == 8, "the Claims of the second stay")
        assert len(agent.held()) == 8


def test_in_a_namespace_that_ends_an_add_is_refused_at_once(server, name, agent):
    agent.start()
    net, space = flat(server, name), f"n{name}"
    given(agent, "c1", net, space)
    server.request("DELETE", f"/api/v1/namespaces/{space}")
    error = refused(agent, "c2", net, space)
    assert error["code"] == 7
    assert "namespace is being deleted" in error["msg"]
    released(agent, "c1", net, space)
    until(lambda: claims(server, space) == [], "the Claim holds the namespace up")


def test_a_claim_that_is_being_deleted_keeps_its_address_until_del(server, name, agent):
    """I6: the garbage collector marks it as soon as a pod is deleted in the foreground, while the pod still runs."""
    agent.start()
    net, space = flat(server, name), f"n{name}"
    given(agent, "c1", net, space)
    [claim] = claims(server, space)
    server.request("DELETE", f"{API}/namespaces/{space}/claims/{claim['metadata']['name']}")
    assert given(agent, "c2", net, space) == ("192.0.2.3",)
    assert claims(server, space)[0]["metadata"]["deletionTimestamp"]
    assert set(held(server, net)) == {"192.0.2.2", "192.0.2.3"}
    assert given(agent, "c1", net, space) == ("192.0.2.2",)
    released(agent, "c1", net, space)
    until(lambda: list(held(server, net)) == ["192.0.2.3"], "the address is not freed")


def test_a_claim_deleted_before_it_has_an_address_gets_none(server, name, agent, controller):
    agent.start()
    net, space = flat(server, name), f"n{name}"
    controller.set(idle=True)
    waiting = shim(agent, "ADD", "c1", net, space)
    [claim] = until(lambda: claims(server, space), "no Claim is made")
    server.request("DELETE", f"{API}/namespaces/{space}/claims/{claim['metadata']['name']}")
    assert json.loads(waiting.communicate()[0])["code"] == 7
    until(lambda: claims(server, space) == [], "the Claim stays")


def test_exhaustion_is_told_in_the_pools_words(server, name, agent):
    agent.start()
    space = f"n{name}"
    net = flat(server, name, subnets=[{"cidr": "192.0.2.0/30", "gateway": "192.0.2.1"}])
    assert given(agent, "c1", net, space) == ("192.0.2.2",)
    error = refused(agent, "c2", net, space)
    assert error["code"] == 101
    assert error["msg"] == (f"no IP addresses available in network {net} on {name}: pool net.{net}.v4 is exhausted")
    released(agent, "c1", net, space)
    served = lambda: [claim.get("status", {}).get("value") for claim in claims(server, space)] == ["192.0.2.2"]  # noqa: E731
    until(lambda: served() and "c2" in str(held(server, net)), "who waits is not served when one frees")
    assert given(agent, "c2", net, space) == ("192.0.2.2",)


def test_addresses_that_are_asked_for_are_given_or_refused(server, name, agent):
    agent.start()
    net, space = flat(server, name), f"n{name}"
    assert given(agent, "c1", net, space, asked="192.0.2.77") == ("192.0.2.77",)
    for container, address, word in (
        ("c2", "192.0.2.1", "gateway"),
        ("c3", "198.51.100.1", "does not belong"),
        ("c4", "192.0.2.77", "held by"),
    ):
        error = refused(agent, container, net, space, asked=address)
        assert error["code"] == 102
        assert word in error["msg"]
    assert len(claims(server, space)) == 1, "what can't be had is not asked for"


def test_an_address_that_another_node_has_is_refused_in_the_pools_words(server, name, agent, launcher):
    space, other = f"n{name}", f"{name}-b"
    net = flat(server, name, name, other)
    with ClusterAgent(launcher, server, other) as second:
        agent.start()
        second.start()
        given(second, "b1", net, space, asked="192.0.2.9")
        error = refused(agent, "a1", net, space, asked="192.0.2.9")
        assert error["code"] == 102
        assert "another Claim" in error["msg"]
        until(lambda: len(claims(server, space)) == 1, "the Claim in vain stays")


@pytest.mark.slow
def test_a_controller_that_dies_half_way_gives_the_same_address_when_it_is_back(server, name, agent, controller):
    agent.start()
    net, space = flat(server, name), f"n{name}"
    controller.set(dies_half_way=True)
    refused(agent, "c1", net, space)
    [address] = held(server, net)
    controller.set(dies_half_way=False)
    assert given(agent, "c1", net, space) == (address,)


@pytest.mark.slow
def test_a_claim_that_was_forced_away_is_made_again_with_its_address(server, name, agent, controller):
    """I15."""
    agent.start()
    net, space = flat(server, name), f"n{name}"
    assert given(agent, "c1", net, space) == ("192.0.2.2",)
    controller.set(idle=True)
    end(server, claims(server, space)[0])
    again = until(lambda: claims(server, space), "it is not made again")
    assert again[0]["spec"]["value"] == "192.0.2.2"
    controller.set(idle=False)
    until(lambda: claims(server, space)[0].get("status", {}).get("value") == "192.0.2.2", "it is not bound")
    released(agent, "c1", net, space)
    until(lambda: claims(server, space) == [], "the Claim stays")


def test_a_lost_ledger_is_made_again_from_the_claims(server, name, agent):
    """I1, I6: pods that run keep their addresses."""
    agent.start()
    net, space = flat(server, name), f"n{name}"
    before = given(agent, "c1", net, space)
    agent.stop()
    for file in agent.state.iterdir():
        file.unlink()
    agent.start(flags=("--runtime-socket", "off"))  # there is none here to ask what runs
    until(lambda: agent.held().get((net, "c1")) == before, "the lease is not made again")
    assert given(agent, "c1", net, space) == before
    assert len(claims(server, space)) == 1
    released(agent, "c1", net, space)
    until(lambda: claims(server, space) == [], "the Claim stays")


def test_the_owner_is_the_mirror_of_a_static_pod_and_nobody_where_the_uid_is_anothers(server, name, agent):
    agent.start()
    net, space = flat(server, name), f"n{name}"
    mirror = pod(server, space, "etcd", name, annotations={"kubernetes.io/config.hash": "f00d"})
    pod(server, space, "web-0", name)
    given(agent, "c1", net, space, pod="etcd", uid="f00d")
    given(agent, "c2", net, space, pod="web-0", uid="of-its-predecessor")
    given(agent, "c3", net, space, pod="unheard-of")
    owners = {
        claim["spec"]["pod"]["name"]: [owner["uid"] for owner in claim["metadata"].get("ownerReferences", [])]
        for claim in claims(server, space)
    }
    assert owners == {"etcd": [mirror], "web-0": [], "unheard-of": []}


def test_a_drain_takes_the_marker_at_once_and_del_works_without_it(server, name, agent):
    """I5, I9."""
    agent.start()
    net, space = flat(server, name), f"n{name}"
    given(agent, "c1", net, space)
    delete(server, "networks", net)
    until(lambda: refused(agent, "c2", net, space)["code"] == 7, "the door stays open")
    marker = lambda: get(server, "allocations", f"{net}.{name}")["metadata"]["finalizers"]  # noqa: E731
    until(lambda: marker() == [GUARD], "the marker is held")
    patch(server, "allocations", f"{net}.{name}", {"metadata": {"finalizers": []}})
    delete(server, "allocations", f"{net}.{name}")
    assert given(agent, "c1", net, space) == ("192.0.2.2",)
    patch(server, "networks", net, {"metadata": {"finalizers": []}})
    until(lambda: get(server, "networks", net) is None)
    assert len(claims(server, space)) == 1
    released(agent, "c1", net, space)
    until(lambda: claims(server, space) == [], "the Claim stays")


# -- the policy


@pytest.fixture
def token(server, name):
    """An agent's of the node, once the policy is in force."""
    token = server.bound_token(NAMESPACE, ACCOUNT, node=name)
    until(lambda: make(server, claim_of(name, "probe", finalizers=[]), token)[0] == 403, "the policy is not in force")
    return token


def claim_of(name, claim, *, node=None, finalizers=("allotment.dev/node",), metadata=None, **spec):
    return object_(
        "allotment.dev/v1alpha1",
        "Claim",
        claim,
        metadata={"namespace": f"n{name}", "finalizers": list(finalizers), **(metadata or {})},
        spec={
            "poolRef": {"kind": "IPAddressPool", "name": "net.none.v4"},
            "node": node or name,
            "pod": {"name": "p", "uid": "u", "containerID": "c", "interface": "eth0"},
            **spec,
        },
    )


def make(server, claim, token=None):
    path = f"{API}/namespaces/{claim['metadata']['namespace']}/claims"
    return server.request("POST", path, claim, token=token)


def change_claim(server, name, claim, change, token, subresource=""):
    path = f"{API}/namespaces/n{name}/claims/{claim}{subresource}"
    return server.request("PATCH", path, change, token=token, content_type="application/merge-patch+json")[0]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"node": "elsewhere"}, id="another node's"),
        pytest.param({"finalizers": ()}, id="without our finalizer"),
        pytest.param({"finalizers": ("allotment.dev/node", "example.org/x")}, id="with another finalizer"),
        pytest.param({"poolRef": {"kind": "IPAddressPool", "name": "loopbacks"}}, id="of a pool of people's"),
        pytest.param({"poolRef": {"kind": "IndexPool", "name": "net.none.v4"}}, id="of a number"),
        pytest.param({"pod": None}, id="of no pod"),
        pytest.param({"metadata": {"labels": {"a": "b"}}}, id="with a label"),
        pytest.param({"metadata": {"annotations": {"a": "b"}}}, id="with an annotation"),
        pytest.param(
            {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}]}},
            id="owned by something else",
        ),
    ],
)
def test_an_agent_makes_only_its_own_pods_claims(server, name, token, wrong):
    code, answer = make(server, claim_of(name, "right"), token)
    assert code == 201, answer
    code, answer = make(server, claim_of(name, "wrong", **wrong), token)
    assert code == 403, answer


def test_an_agent_changes_of_its_claims_only_its_finalizer_and_its_annotation(server, name, token):
    assert make(server, claim_of(name, "own"), token)[0] == 201
    for change in (
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["allotment.dev/node", "example.org/x"]}},
        {"spec": {"value": "192.0.2.2"}},
    ):
        assert change_claim(server, name, "own", change, token) in {403, 422}
    assert change_claim(server, name, "own", {"status": {"value": "192.0.2.2"}}, token, "/status") == 403
    assert change_claim(server, name, "own", {"metadata": {"annotations": {"allotment.dev/ledger": "L"}}}, token) == 200
    assert change_claim(server, name, "own", {"metadata": {"finalizers": []}}, token) == 200
    assert change_claim(server, name, "own", {"metadata": {"finalizers": ["allotment.dev/node"]}}, token) == 403
    assert server.request("DELETE", f"{API}/namespaces/n{name}/claims/own", token=token)[0] == 200


def test_an_agent_touches_no_claim_of_another_node_or_of_people(server, name, token):
    other = server.bound_token(NAMESPACE, ACCOUNT, node=f"{name}-b")
    assert make(server, claim_of(name, "theirs", node=f"{name}-b"), other)[0] == 201
    people = claim_of(name, "peoples", finalizers=())
    del people["spec"]["node"], people["spec"]["pod"]
    assert make(server, people)[0] == 201
    for claim in ("theirs", "peoples"):
        assert change_claim(server, name, claim, {"metadata": {"finalizers": []}}, token) == 403
        assert server.request("DELETE", f"{API}/namespaces/n{name}/claims/{claim}", token=token)[0] == 403
    assert change_claim(server, name, "theirs", {"metadata": {"finalizers": []}}, None) == 403, "by the admin"
    server.request("DELETE", f"{API}/namespaces/n{name}/claims/peoples")
