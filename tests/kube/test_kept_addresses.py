"""L3 networks keep the address of a virtual machine that is stopped: a real API server and agent (ADR 0013)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kube.claiming import agent, ask, controller, given, name, pod, refused, released
from kube.cluster_agent import GUARD, OURS, allocation, create, delete, get, network, object_
from nodes import until

__all__ = ["agent", "controller", "name"]

CRDS = Path(__file__).with_name("vm_crds.yaml")
VMS = "/apis/kubevirt.io/v1/namespaces/{}/virtualmachines"
INSTANCES = "/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances"


@pytest.fixture(scope="module")
def vms(server):
    """The API server, with KubeVirt's kinds."""
    server.apply_crds([CRDS])
    return server


@pytest.fixture
def place(vms, name, agent):
    """An L3 network with a block here, and a node that KubeVirt runs machines on, with its agent."""
    vms.kubectl("label", "node", name, "kubevirt.io/schedulable=true")
    agent.start()
    subnets = [{"cidr": "10.72.0.0/16", "hostPrefixLength": 28}, {"cidr": "fd00:72::/64", "hostPrefixLength": 124}]
    made = create(vms, network(f"k{name}", subnets=subnets))
    create(vms, allocation(made, name, "10.72.0.0/28", "fd00:72::/124"))
    yield Place(vms, name, agent)
    vms.request("DELETE", "/apis/allotment.dev/v1alpha1/ipamconfigs/default")


class Place:
    def __init__(self, server, node, agent):
        self.server, self.node, self.agent = server, node, agent
        self.net, self.space = f"k{node}", f"n{node}"

    def vm(self, vm="db"):
        self.server.request("POST", VMS.format(self.space), object_("kubevirt.io/v1", "VirtualMachine", vm))

    def start(self, container, vm="db"):
        """A pod of the machine gets its addresses."""
        owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": vm, "uid": f"vmi-{vm}"}
        uid = pod(self.server, self.space, container, self.node, ownerReferences=[{**owner, "controller": True}])
        return given(self.agent, container, self.net, self.space, pod=container, uid=uid)

    def stop(self, container):
        released(self.agent, container, self.net, self.space)

    def other(self, container):
        return given(self.agent, container, self.net, self.space)

    def kept(self):
        """The addresses that are kept, by the machine."""
        found = {}
        for lease in self.agent.leases():
            if lease.kind == "vm":
                found.setdefault(f"{lease.pod_namespace}/{lease.vm}", []).append(lease.address)
        return {vm: sorted(addresses) for vm, addresses in found.items()}

    def cli(self, *words):
        return self._run(words, check=True).stdout

    def exit_of(self, *words):
        return self._run(words, check=False).returncode

    def _run(self, words, *, check):
        command = [sys.executable, "-m", "allotment.cli", *words, "--socket", str(self.agent.socket)]
        return subprocess.run(command, capture_output=True, text=True, check=check)


def test_a_vm_that_starts_again_on_its_node_gets_its_address(place):
    """I6: it is never free in between, whoever asks, and whatever becomes of the agent."""
    place.vm()
    before = place.start("c1")
    place.stop("c1")
    assert place.kept() == {f"{place.space}/db": sorted(before)}
    assert not {*place.other("x1")} & {*before}
    place.agent.kill()
    place.agent.start()
    assert not {*place.other("x2")} & {*before}
    assert place.start("c2") == before
    assert place.kept() == {}
    past = json.loads(place.cli("history", "--address", before[0], "-o", "json"))
    assert [(entry["kind"], entry["vm"], entry["cause"]) for entry in past] == [
        ("pod", f"{place.space}/db", None),
        ("vm", f"{place.space}/db", "resumed"),
        ("pod", f"{place.space}/db", "del"),
    ]


def test_a_machine_that_is_started_before_its_old_pod_ended_waits_for_that(place):
    """I1."""
    place.vm()
    before = place.start("c1")
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "db", "uid": "vmi-db"}
    uid = pod(place.server, place.space, "c2", place.node, ownerReferences=[{**owner, "controller": True}])
    error = refused(place.agent, "c2", place.net, place.space, pod="c2", uid=uid)
    assert error["code"] == 11
    assert f"by its pod {place.space}/c1" in error["msg"]
    place.stop("c1")
    assert given(place.agent, "c2", place.net, place.space, pod="c2", uid=uid) == before


def test_what_is_kept_is_said_and_freed_on_a_persons_word(place):
    place.vm()
    before = place.start("c1")
    place.stop("c1")
    text = " ".join(place.cli("explain", before[0]).split())
    assert f"{before[0]} is kept for virtual machine {place.space}/db in network {place.net}" in text
    assert "allotment gc --address" in text
    assert f"{place.space}/db" in place.cli("leases")
    assert json.loads(place.cli("leases", "-o", "json"))[0]["container"] == ""
    assert place.exit_of("leases", "--container", place.space) == 4, "a machine is no container"
    place.cli("gc", "--address", before[0], "--yes")
    assert place.kept() == {}


def test_without_persistence_the_address_is_anybodys(place):
    """Also what was kept until then, at once."""
    place.vm()
    before = place.start("c1")
    place.stop("c1")
    config = object_("allotment.dev/v1alpha1", "IPAMConfig", "default", spec={"vmAddressPersistence": "Disabled"})
    assert place.server.request("POST", "/apis/allotment.dev/v1alpha1/ipamconfigs", config)[0] == 201
    until(lambda: place.kept() == {}, "it is kept")
    given_now = {address for number in range(13) for address in place.other(f"x{number}")}
    assert before[0] in given_now
    assert ask(place.agent, "DEL", "x0", place.net, place.space).exit_code == 0
    place.start("c2")
    place.stop("c2")
    assert place.kept() == {}


def test_a_machine_that_is_stopped_holds_up_no_drain(place):
    """I5."""
    place.vm()
    place.start("c1")
    place.stop("c1")
    assert place.kept()
    delete(place.server, "allocations", f"{place.net}.{place.node}")
    left = lambda: get(place.server, "allocations", f"{place.net}.{place.node}")["metadata"]["finalizers"]  # noqa: E731
    until(lambda: left() == [GUARD], "the finalizer stays")
    until(lambda: place.kept() == {}, "it is kept")
    assert OURS not in left()


def test_a_restart_of_the_machine_below_keeps_it_too(place):
    place.vm()
    before = place.start("c1")
    place.agent.stop()
    boot = place.agent.folder / "boot"
    boot.write_text("33333333-3333-4333-8333-333333333333\n")
    place.agent.start(flags=("--boot-id-file", boot))
    until(lambda: place.kept() == {f"{place.space}/db": sorted(before)}, "it is not kept")
    assert place.start("c2") == before


@pytest.mark.slow
def test_a_machine_that_is_gone_or_runs_elsewhere_is_kept_nothing(place):
    """I8: what is only stopped keeps its address."""
    for vm in ("gone", "moved", "stopped"):
        place.vm(vm)
        place.start(f"c-{vm}", vm)
    for vm in ("gone", "moved", "stopped"):
        place.stop(f"c-{vm}")
    assert len(place.kept()) == 3
    place.server.request("DELETE", VMS.format(place.space) + "/gone")
    instance = object_("kubevirt.io/v1", "VirtualMachineInstance", "moved")
    instance["status"] = {"phase": "Running", "nodeName": "elsewhere"}
    assert place.server.request("POST", INSTANCES.format(place.space), instance)[0] == 201
    until(lambda: set(place.kept()) == {f"{place.space}/stopped"}, "they are kept", limit=120)
