"""Nodes with agents, an L2 network and the controller's double on a real API server; what the tests of Claims share.

A module of tests imports the fixtures that it uses.
"""

import itertools
import json

import pytest

from agents import conf, told
from allotment.kube.access import Access
from claim_controller import InThread
from kube.cluster_agent import (
    ACCOUNT,
    NAMESPACE,
    ClusterAgent,
    add_node,
    allocation,
    create,
    network,
    object_,
    remove_left,
)
from kube.following import CLOCK

__all__ = ["agent", "controller", "name"]

_NUMBERS = itertools.count(1)
API = "/apis/allotment.dev/v1alpha1"


@pytest.fixture(scope="module")
def controller(server):
    with InThread(Access(server.url, ca=server.ca_file, token=server.admin_token), CLOCK) as controller:
        yield controller


@pytest.fixture
def name(server, controller):
    """Of a node, a namespace (`n…`) and networks that no other test has; what is left of them goes."""
    controller.set(idle=False, exhausted="", draining="", dies_half_way=False, vms=frozenset(), persistence=True)
    name = f"cl{next(_NUMBERS)}"
    for node in (name, f"{name}-b"):
        add_node(server, node)
    server.request("POST", "/api/v1/namespaces", object_("v1", "Namespace", f"n{name}"))
    yield name
    for claim in claims(server, f"n{name}"):
        end(server, claim)
    remove_left(server, name)
    server.kubectl("delete", "node", name, f"{name}-b")


@pytest.fixture
def agent(launcher, server, name):
    with ClusterAgent(launcher, server, name, flags=("--claim-wait", "5")) as agent:
        yield agent


def end(server, claim):
    """Take a Claim away as its agent does, in case the test has left it."""
    token = server.bound_token(NAMESPACE, ACCOUNT, node=claim["spec"]["node"])
    path = f"{API}/namespaces/{claim['metadata']['namespace']}/claims/{claim['metadata']['name']}"
    server.request("DELETE", path)
    server.request(
        "PATCH",
        path,
        {"metadata": {"finalizers": []}},
        token=token,
        content_type="application/merge-patch+json",
    )


def claims(server, namespace):
    return server.request("GET", f"{API}/namespaces/{namespace}/claims")[1]["items"]


def held(server, net):
    """The addresses that the controller holds for a network, by the Claim's name."""
    items = server.request("GET", f"{API}/ipaddresses")[1]["items"]
    return {
        item["spec"]["address"]: item["spec"]["claimRef"]["name"]
        for item in items
        if item["spec"]["poolRef"]["name"] in {f"net.{net}.v4", f"net.{net}.v6"}
    }


def flat(server, name, *nodes, subnets=None):
    """An L2 network with its markers on the nodes, as the controller makes them."""
    net = f"f{name}"
    subnets = subnets or [{"cidr": "192.0.2.0/24", "gateway": "192.0.2.1"}]
    made = create(server, network(net, type="L2", subnets=subnets))
    for node in nodes or (name,):
        create(server, allocation(made, node))
    return net


def pod(server, namespace, name, node, **metadata):
    """A pod that is bound to the node; its UID."""
    body = object_(
        "v1",
        "Pod",
        name,
        metadata={"namespace": namespace, **metadata},
        spec={"nodeName": node, "containers": [{"name": "c", "image": "none"}], "terminationGracePeriodSeconds": 30},
    )
    status, answer = server.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    assert status == 201, answer
    return answer["metadata"]["uid"]


def arguments(container, namespace, pod="", uid="", asked=""):
    text = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod or container}"
    text += f";K8S_POD_UID={uid or 'uid-' + container}"
    return text + (f";IP={asked}" if asked else "")


def ask(agent, verb, container, net, namespace, **more):
    return agent.ask(verb, container, network=net, CNI_ARGS=arguments(container, namespace, **more))


def shim(agent, verb, container, net, namespace, *, timeout_ms=None, **more):
    """The same by a runtime; `communicate` waits for it."""
    return agent.shim(
        verb,
        container,
        body=conf(net),
        timeout_ms=timeout_ms,
        CNI_ARGS=arguments(container, namespace, **more),
    )


def given(agent, container, net, namespace, **more):
    reply = ask(agent, "ADD", container, net, namespace, **more)
    assert not reply.exit_code, reply.body
    return told(reply.body)


def refused(agent, container, net, namespace, **more):
    reply = ask(agent, "ADD", container, net, namespace, **more)
    assert reply.exit_code, reply.body
    return json.loads(reply.body)


def released(agent, container, net, namespace):
    assert not ask(agent, "DEL", container, net, namespace).exit_code
