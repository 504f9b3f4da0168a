"""A ledger that is lost under running pods: a real runtime, real plugins, a real API server (I15).

The pods run all the time; the tests take the ledger away in one way after the other, and look for what a user would
notice: a pod that has lost its lease, an address that is given twice, a DEL that ends nothing.
"""

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import containerd
from agents import shim_binary
from crio import rig as crio
from kube.cluster_agent import ClusterAgent, add_node, allocation, create, delete, network, patch
from nodes import until
from reference.fixtures import reference_plugins  # noqa: F401  # a fixture

pytestmark = [pytest.mark.root, pytest.mark.slow]

PODS = {"containerd": 50, "crio": 12}
AT_ONCE = 5
NODE = "under-pods"
NET = "underpods"
ENTERING = Path(__file__).resolve().parents[1] / "netns" / "entering.py"
CONF = {
    "cniVersion": "1.0.0",
    "name": NET,
    "plugins": [{"type": "ptp", "ipam": {"type": "allotment"}}],
}


class PodNode:
    """A node with a runtime, its pods and our agent, which looks at the machine as the runtime does."""

    def __init__(self, agent, runtime, server):
        self.agent, self.runtime, self.server = agent, runtime, server
        self.sandboxes = {}
        """The pods that run, by name."""

    def start(self):
        self.agent.start()
        until(lambda: not self.agent.ask("STATUS", network=NET).exit_code, "it does not serve")

    def lose(self, how):
        """The ledger is gone, whole; an agent that runs may write it anew from memory before it is killed."""
        if how == "stopped":
            self.agent.stop()
        for file in self.agent.state.iterdir():
            if file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink()
        if how == "running":
            self.agent.kill()

    def run(self, *names):
        """Make pods as the kubelet does."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def make(name):
            async with limit:
                self.sandboxes[name] = await self.runtime.run(name)

        asyncio.run(together(make, names))

    def end(self, *names):
        limit = asyncio.Semaphore(AT_ONCE)

        async def end(name):
            async with limit:
                sandbox = self.sandboxes.pop(name)
                await self.runtime.stop(sandbox)
                await self.runtime.remove(sandbox)

        asyncio.run(together(end, names))

    def told(self):
        """What the runtime says of the pods: name to addresses."""
        found = asyncio.run(self.runtime.runtime.statuses(self.sandboxes.values()))
        return {each.name: tuple(sorted(map(str, each.ips))) for each in found.values() if each.ready}

    def leases(self):
        """Of each lease: pod, UID, container, interface, network, namespace and address."""
        return sorted(
            (each.pod, each.pod_uid, each.container, each.interface, each.network, each.netns, each.address)
            for each in self.agent.leases()
        )

    def held(self):
        found = {}
        for pod, *_, address in self.leases():
            found.setdefault(pod, []).append(address)
        return {pod: tuple(sorted(addresses)) for pod, addresses in found.items()}

    def within(self, sandbox, *command):
        """Run a command in a sandbox's network namespace; what it printed."""
        [status] = asyncio.run(self.runtime.runtime.statuses([sandbox])).values()
        enter = ["nsenter", f"--mount=/proc/{self.runtime.pid}/ns/mnt", "nsenter", f"--net={status.netns}"]
        return subprocess.run([*enter, *command], check=True, capture_output=True, text=True).stdout

    def conflict(self):
        """The line of the log, which is written a little later than things happen; empty without one."""
        lines = self.agent.log(1 << 20).splitlines()
        return next((line for line in lines if '"two use one address"' in line), "")

    def doctor(self):
        """Its findings but for notes."""
        words = [
            *("doctor", "-o", "json", "--socket", self.agent.socket, "--state-dir", self.agent.state),
            *("--node", NODE, "--cni-cache-dir", "/var/lib/cni"),
        ]
        log = self.agent.folder / "doctor.log"
        log.write_bytes(b"")
        runner = [str(ENTERING), str(self.runtime.pid), "allotment.cli"]
        process = self.agent._launcher.start(words, log=log, runner=runner)
        process.wait()
        process.close()
        report = json.loads(log.read_text())
        assert not report.get("skipped"), report
        return [found for found in report["findings"] if found["severity"] != "note"]


async def together(work, names):
    await asyncio.gather(*map(work, names))


@pytest.fixture(scope="module")
def server(server):
    add_node(server, NODE)
    subnets = [{"cidr": "10.74.0.0/16", "hostPrefixLength": 24}, {"cidr": "fd74::/48", "hostPrefixLength": 64}]
    made = create(server, network(NET, subnets=subnets))
    create(server, allocation(made, NODE, "10.74.3.0/24", "fd74:0:0:3::/64"))
    yield server
    for plural, name in (("allocations", f"{NET}.{NODE}"), ("networks", NET)):
        patch(server, plural, name, {"metadata": {"finalizers": []}})
        delete(server, plural, name)
    server.kubectl("delete", "node", NODE)


@pytest.fixture(scope="module", params=list(PODS))
def node(launcher, server, reference_plugins, tmp_path_factory, request):  # noqa: F811  # a fixture
    module = {"containerd": containerd, "crio": crio}[request.param]
    if not module.is_there():
        pytest.skip(f"not all that {request.param} needs is installed")
    plugins = tmp_path_factory.mktemp("plugins")
    for name in ("ptp", "loopback"):
        (plugins / name).symlink_to(reference_plugins / name)
    (plugins / "allotment").symlink_to(shim_binary())
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(ClusterAgent(launcher, server, NODE))
        environment = {"ALLOTMENT_SOCKET": str(agent.socket), "ALLOTMENT_TIMEOUT_MS": "5000"}
        kind = containerd.Containerd if module is containerd else crio.Crio
        runtime = stack.enter_context(kind(plugins=plugins, conf=CONF, environment=environment))
        agent._runner = [str(ENTERING), str(runtime.pid), "allotment.cli"]
        agent._flags += ["--runtime-socket", runtime.runtime.socket]
        node = PodNode(agent, runtime, server)
        node.start()
        node.run(*(f"web-{number}" for number in range(PODS[request.param])))
        yield node
        if not agent.running:
            agent.start()
        node.end(*node.sandboxes)


@pytest.mark.parametrize("how", ["stopped", "running"])
def test_all_pods_have_their_leases_back_from_the_runtime_and_their_namespaces(node, how):
    """libcni's cache isn't there for the agent to read."""
    before = node.leases()
    assert len(before) == 2 * len(node.sandboxes)
    node.lose(how)
    node.start()
    assert node.leases() == before
    assert node.held() == node.told()
    assert node.doctor() == []
    new = f"new-{how}"
    node.run(new)
    addresses = node.held()[new]
    assert len(addresses) == 2
    assert not {*addresses} & {address for *_, address in before}
    node.end(new)
    assert node.leases() == before


def test_the_conf_name_is_known_again_where_libcni_remembers_it(node):
    """A CNI GC goes by it."""
    before = node.leases()
    flags = node.agent._flags
    node.agent._flags = [*flags, "--cni-cache-dir", "/var/lib/cni", "--netns-dir", "/run/netns"]
    try:
        node.lose("stopped")
        node.start()
    finally:
        node.agent._flags = flags
    assert node.leases() == before
    assert {lease.conf_name for lease in node.agent.leases()} == {NET}


def test_pods_that_are_deleted_meanwhile_are_gone(node):
    ends = list(node.sandboxes)[:5]
    kept = {pod: addresses for pod, addresses in node.held().items() if pod not in ends}
    node.lose("stopped")
    node.end(*ends)
    node.start()
    until(lambda: node.held() == kept, "the kept DELs have no effect")
    until(lambda: not list(node.agent.spool.glob("*.del")), "the kept DELs stay where they are")
    assert node.doctor() == []


def test_without_the_api_server_it_waits_and_then_all_are_back(node):
    before = node.leases()
    node.lose("stopped")
    with node.server.away():
        node.agent.launch()
        assert node.agent.await_notice("STATUS", content="which blocks are this node's isn't known"), node.agent.log()
        assert json.loads(node.agent.ask("STATUS", network=NET).body)["code"] == 50
    assert node.agent.await_notice("READY"), node.agent.log()
    until(lambda: not node.agent.ask("STATUS", network=NET).exit_code, "it does not serve")
    assert node.leases() == before


def test_two_that_have_one_address_are_told_and_touched_by_nobody(node):
    """Somebody gave the second pod the first one's address, beside its own."""
    first, second = list(node.sandboxes)[:2]
    before = node.leases()
    twice = next(address for address in node.held()[first] if ":" not in address)
    node.within(node.sandboxes[second], "ip", "address", "add", f"{twice}/32", "dev", "eth0")
    try:
        node.lose("stopped")
        node.start()
        assert node.leases() == before
        told = until(node.conflict, "it is not told")
        assert twice in told
        assert {f"shop/{first}", f"shop/{second}"} <= {*re.findall(r"shop/[\w-]+", told)}
        for pod in (first, second):
            assert twice in node.within(node.sandboxes[pod], "ip", "-4", "address", "show", "dev", "eth0")
        node.run("third")
        assert twice not in node.held()["third"]
        node.end("third")
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            node.within(node.sandboxes[second], "ip", "address", "del", f"{twice}/32", "dev", "eth0")


def test_dels_of_the_pods_end_their_leases(node):
    node.lose("stopped")
    node.start()
    node.end(*node.sandboxes)
    assert node.leases() == []
    assert node.doctor() == []
