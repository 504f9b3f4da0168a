"""Virtual machines of KubeVirt that move, stop and start, on a real API server and with real agents (ADR 0013)."""

import json
import subprocess
import sys

import pytest

from kube.claiming import (
    API,
    agent,
    ask,
    claims,
    controller,
    flat,
    given,
    held,
    name,
    pod,
    refused,
    released,
)
from kube.cluster_agent import ClusterAgent, object_
from nodes import until

__all__ = ["agent", "controller", "name"]

DUAL = [{"cidr": "192.0.2.0/24", "gateway": "192.0.2.1"}, {"cidr": "fd00:2::/64", "gateway": "fd00:2::1"}]


@pytest.fixture
def second(launcher, server, name, agent):
    """The agent of another node; both run."""
    with ClusterAgent(launcher, server, f"{name}-b", flags=("--claim-wait", "3")) as second:
        agent.start()
        second.start()
        yield second


def launcher_pod(server, space, pod_name, node, vm="db"):
    """A pod that runs a VM; how a runtime names it."""
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": vm, "uid": f"vmi-{vm}"}
    owners = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    return {"pod": pod_name, "uid": pod(server, space, pod_name, node, ownerReferences=owners)}


def ip_addresses(server, net):
    """The IPAddresses of a network by address."""
    items = server.request("GET", f"{API}/ipaddresses")[1]["items"]
    return {
        item["spec"]["address"]: item for item in items if item["spec"]["poolRef"]["name"].startswith(f"net.{net}.")
    }


def refs(server, net, address):
    """The Claims at an address: the active one's container, and the standby's."""
    spec = ip_addresses(server, net)[address]["spec"]
    names = {
        claim["metadata"]["name"]: claim["spec"]["pod"]["containerID"]
        for claim in server.request("GET", f"{API}/claims")[1]["items"]
    }
    return tuple(names.get(spec.get(field, {}).get("name")) for field in ("claimRef", "standbyRef"))


def role(server, space, container):
    found = [claim for claim in claims(server, space) if claim["spec"]["pod"]["containerID"] == container]
    return {claim.get("status", {}).get("role") for claim in found}


def explained(agent, address):
    command = [sys.executable, "-m", "allotment.cli", "explain", address, "--socket", str(agent.socket)]
    return " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_a_vm_that_moves_keeps_its_address(server, name, agent, second):
    """I1, I6: both nodes hold it while it moves, nobody else ever does, and it is never free in between."""
    net, space = flat(server, name, name, f"{name}-b", subnets=DUAL), f"n{name}"
    source = launcher_pod(server, space, "launcher-1", name)
    both = given(agent, "s", net, space, **source)
    target = launcher_pod(server, space, "launcher-2", f"{name}-b")
    born = {address: item["metadata"]["uid"] for address, item in ip_addresses(server, net).items()}
    assert given(second, "t", net, space, **target) == both
    assert {refs(server, net, address) for address in both} == {("s", "t")}
    assert role(server, space, "t") == {"Standby"}
    assert not {*given(agent, "x", net, space)} & {*both}
    until(lambda: "active attachment" in explained(agent, both[0]), "the source doesn't say so")
    until(lambda: "standby attachment" in explained(second, both[0]), "the target doesn't say so")
    released(agent, "s", net, space)
    until(lambda: {refs(server, net, address) for address in both} == {("t", None)}, "the target is not made active")
    until(lambda: role(server, space, "t") == {"Active"}, "the role does not follow")
    until(lambda: "active attachment" in explained(second, both[0]), "the target doesn't say so")
    now = {address: item["metadata"]["uid"] for address, item in ip_addresses(server, net).items()}
    assert all(now[address] == born[address] for address in both), "the address was let go in between"
    assert {item["spec"]["handle"] for item in ip_addresses(server, net).values()} >= {f"{net}.{space}-db"}
    assert not {*given(second, "y", net, space)} & {*both}
    released(second, "t", net, space)
    until(lambda: not {*held(server, net)} & {*both}, "the address of a VM that isn't there is not freed")


def test_a_migration_that_fails_takes_nothing_from_the_source(server, name, agent, second):
    net, space = flat(server, name, name, f"{name}-b"), f"n{name}"
    (address,) = given(agent, "s", net, space, **launcher_pod(server, space, "launcher-1", name))
    target = launcher_pod(server, space, "launcher-2", f"{name}-b")
    assert given(second, "t", net, space, **target) == (address,)
    released(second, "t", net, space)
    until(lambda: refs(server, net, address) == ("s", None), "the standby stays")
    again = launcher_pod(server, space, "launcher-3", f"{name}-b")
    assert given(second, "t2", net, space, **again) == (address,)
    assert refs(server, net, address) == ("s", "t2")
    assert role(server, space, "s") == {"Active"}


def test_a_third_pod_of_a_vm_waits_for_a_place(server, name, agent, second, launcher):
    net, space = flat(server, name, name, f"{name}-b", subnets=DUAL), f"n{name}"
    given(agent, "s", net, space, **launcher_pod(server, space, "launcher-1", name))
    target = launcher_pod(server, space, "launcher-2", f"{name}-b")
    both = given(second, "t", net, space, **target)
    released(agent, "s", net, space)
    until(lambda: refs(server, net, both[0]) == ("t", None), "the target is not made active")
    given(agent, "s2", net, space, **launcher_pod(server, space, "launcher-3", name))
    third = launcher_pod(server, space, "launcher-4", name)
    error = refused(agent, "x", net, space, **third)
    assert error["code"] == 11
    assert f"virtual machine {space}/db still has {both[0]}" in error["msg"]
    server.kubectl("create", "--filename", "-", input=json.dumps(object_("v1", "Node", f"{name}-c")))
    with ClusterAgent(launcher, server, f"{name}-c", flags=("--claim-wait", "1")) as another:
        another.start()
        flat_marker(server, net, f"{name}-c")
        elsewhere = launcher_pod(server, space, "launcher-5", f"{name}-c")
        error = refused(another, "z", net, space, **elsewhere)
        assert error["code"] == 11
        assert "active and a standby attachment already" in error["msg"]
        released(agent, "s2", net, space)
        until(lambda: ask(another, "ADD", "z", net, space, **elsewhere).exit_code == 0, "no place becomes free")
        assert {refs(server, net, address) for address in both} == {("t", "z")}
        released(another, "z", net, space)
        until(lambda: refs(server, net, both[0]) == ("t", None), "the standby stays")
    server.kubectl("delete", "node", f"{name}-c")


def flat_marker(server, net, node):
    item = server.request("GET", f"{API}/networks/{net}")[1]
    body = object_(
        "allotment.dev/v1alpha1",
        "Allocation",
        f"{net}.{node}",
        metadata={"finalizers": ["allotment.dev/guard"]},
        spec={"network": net, "networkUID": item["metadata"]["uid"], "node": node, "type": "L2", "blocks": []},
    )
    assert server.request("POST", f"{API}/allocations", body)[0] == 201


def test_a_vm_that_starts_again_gets_its_address_on_any_node(server, name, agent, second, controller):
    """I6: it is kept for the VM while that exists."""
    net, space = flat(server, name, name, f"{name}-b", subnets=DUAL), f"n{name}"
    controller.set(vms=frozenset({(space, "db")}))
    both = given(agent, "s", net, space, **launcher_pod(server, space, "launcher-1", name))
    released(agent, "s", net, space)
    until(lambda: claims(server, space) == [], "the Claims stay")
    until(lambda: {refs(server, net, address) for address in both} == {(None, None)}, "it is held by nobody's Claim")
    assert not {*given(agent, "x", net, space)} & {*both}
    again = launcher_pod(server, space, "launcher-2", f"{name}-b")
    assert given(second, "t", net, space, **again) == both
    assert role(server, space, "t") == {"Active"}
    released(second, "t", net, space)
    controller.set(vms=frozenset())
    until(lambda: not {*held(server, net)} & {*both}, "the address outlives its VM")


def test_without_persistence_a_vms_address_goes_to_whoever_comes_next(server, name, agent, second, controller):
    net, space = flat(server, name, name, f"{name}-b"), f"n{name}"
    controller.set(vms=frozenset({(space, "db")}), persistence=False)
    before = given(agent, "s", net, space, **launcher_pod(server, space, "launcher-1", name))
    released(agent, "s", net, space)
    until(lambda: ip_addresses(server, net) == {}, "it is kept")
    assert given(second, "x", net, space) == before
    again = launcher_pod(server, space, "launcher-2", f"{name}-b")
    assert given(second, "t", net, space, **again) != before


def test_a_vm_that_starts_on_its_node_before_its_old_pod_ended_waits_for_that(server, name, agent):
    """I1."""
    agent.start()
    net, space = flat(server, name), f"n{name}"
    before = given(agent, "s", net, space, **launcher_pod(server, space, "launcher-1", name))
    again = launcher_pod(server, space, "launcher-2", name)
    error = refused(agent, "t", net, space, **again)
    assert error["code"] == 11
    assert f"by its pod {space}/launcher-1" in error["msg"]
    assert len(claims(server, space)) == 1
    released(agent, "s", net, space)
    assert given(agent, "t", net, space, **again) == before


def test_a_controller_that_dies_half_way_through_a_migration_ends_it_later(server, name, agent, second, controller):
    net, space = flat(server, name, name, f"{name}-b"), f"n{name}"
    (address,) = given(agent, "s", net, space, **launcher_pod(server, space, "launcher-1", name))
    controller.set(dies_half_way=True)
    target = launcher_pod(server, space, "launcher-2", f"{name}-b")
    assert refused(second, "t", net, space, **target)["code"] == 11
    assert refs(server, net, address) == ("s", "t")
    released(agent, "s", net, space)
    controller.set(dies_half_way=False)
    assert given(second, "t", net, space, **target) == (address,)
    until(lambda: refs(server, net, address) == ("t", None), "the target is not made active")


def test_the_lease_and_the_history_name_the_vm(server, name, agent):
    agent.start()
    net, space = flat(server, name), f"n{name}"
    given(agent, "s", net, space, **launcher_pod(server, space, "launcher-1", name))

    def told(command):
        words = [sys.executable, "-m", "allotment.cli", command, "-o", "json", "--socket", str(agent.socket)]
        return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    assert [lease["vm"] for lease in told("leases")] == [f"{space}/db"]
    released(agent, "s", net, space)
    assert [(entry["vm"], entry["cause"]) for entry in told("history")] == [(f"{space}/db", "del")]


def test_only_agents_make_claims_for_vms(server, name):
    """Else anybody who may make Claims could share a machine's address."""
    body = object_(
        "allotment.dev/v1alpha1",
        "Claim",
        "mine",
        metadata={"namespace": f"n{name}"},
        spec={
            "poolRef": {"kind": "IPAddressPool", "name": "net.none.v4"},
            "node": name,
            "pod": {"name": "p", "uid": "u", "containerID": "c", "interface": "eth0"},
            "vm": "db",
        },
    )
    path = f"{API}/namespaces/n{name}/claims?dryRun=All"
    until(lambda: server.request("POST", path, body)[0] == 403, "the policy is not in force")
    body["spec"].pop("vm")
    assert server.request("POST", path, body)[0] == 201
