"""An agent that dies at any single change of the disk never loses, or gives away, the address of a VM (ADR 0013).

A machine is started, stopped, started and stopped again, beside other pods; in each play the agent is killed at another
write, sync, rename, truncate or removal. Then it is started again, and the machine's next pod has the address that its
first one was told (I1, I2, I6, I7). The quick tier samples the points; `-m slow` takes every one.
"""

import contextlib
import itertools
import shutil
import signal

import pytest

from agents import told
from allotment.addressing.errors import AllotmentError
from allotment.ledger import LedgerReader
from crash.stage import Died, DiskStage
from kube.claiming import arguments, pod
from kube.cluster_agent import ClusterAgent, add_node, allocation, create, delete, install, network, object_, patch

_NUMBERS = itertools.count(1)
OWNER = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "name": "db",
    "uid": "vmi",
    "controller": True,
}


@pytest.fixture(scope="module")
def server(crds):
    install(crds)
    return crds


class Life:
    """One node with a machine's pods and others; what the machine was told, and who else was told what."""

    def __init__(self, server, agent, node):
        self.server, self.agent, self.node = server, agent, node
        self.net, self.space = f"v{node}", f"n{node}"
        self.machine = None
        self.others = {}
        self.uids = {}

    def live(self):
        """What is to be interrupted."""
        self.agent.launch()
        if not self.agent.await_notice("READY"):
            self.died()
        self.start("m1")
        self.other("x1")
        self.ask("DEL", "m1")
        self.other("x2")
        self.start("m2")
        del self.others["x1"]
        self.ask("DEL", "x1")
        self.ask("DEL", "m2")
        self.other("x3")
        self.agent.send(signal.SIGTERM)
        if self.agent.wait():
            self.died()

    def died(self):
        assert self.agent.wait() == -signal.SIGKILL, self.agent.log()
        raise Died

    def finish(self):
        """Whatever point it came to: the machine has what it was told, and nobody else ever does."""
        self.agent.start()
        for name in {"m1", "m2", "x1"} - self.others.keys():
            self.ask("DEL", name)
        for name, addresses in list(self.others.items()):
            assert self.other(name) == addresses
        self.other("x4")
        self.start("m3")
        held = [lease.address for lease in self.agent.leases()]
        assert len(set(held)) == len(held)
        assert {lease.kind for lease in self.agent.leases()} == {"pod"}
        self.agent.stop()
        self.judge_disk()

    def start(self, name):
        """A pod of the machine, which has its address from the first on."""
        addresses = self.ask("ADD", name)
        assert self.machine in {None, addresses}, "the machine has another address"
        self.machine = addresses
        assert not {*addresses} & {address for each in self.others.values() for address in each}

    def other(self, name):
        addresses = self.others[name] = self.ask("ADD", name)
        assert not {*addresses} & {*(self.machine or ())}, "somebody else has the machine's address"
        return addresses

    def ask(self, verb, name):
        if name not in self.uids:
            owners = [OWNER] if name.startswith("m") else []
            self.uids[name] = pod(self.server, self.space, name, self.node, ownerReferences=owners)
        called = arguments(name, self.space, uid=self.uids[name])
        try:
            reply = self.agent.ask(verb, name, network=self.net, CNI_ARGS=called)
        except AllotmentError:
            self.died()
        assert not reply.exit_code, reply.body
        return told(reply.body) if verb == "ADD" else ()

    def judge_disk(self):
        if (self.agent.state / "ledger.db").exists() and not (self.agent.state / "ledger.rebuild").exists():
            with LedgerReader(self.agent.state) as reader:
                assert reader.problems() == []
                leases = reader.content().book.leases
            pods = {str(lease.address) for lease in leases if lease.owner.container_id in self.others}
            assert pods >= {address for addresses in self.others.values() for address in addresses}
            machines = {str(lease.address) for lease in leases if lease.owner.vm}
            assert machines == {*(self.machine or machines)}, "the machine's addresses are anybody's"


class Stage(DiskStage):
    """Where lives are played, one after the other."""

    def __init__(self, server):
        self._server = server

    @contextlib.contextmanager
    def _life(self):
        shutil.rmtree(self._home, ignore_errors=True)
        server, node = self._server, f"cr{next(_NUMBERS)}"
        add_node(server, node)
        server.kubectl("label", "node", node, "kubevirt.io/schedulable=true")
        server.request("POST", "/api/v1/namespaces", object_("v1", "Namespace", f"n{node}"))
        subnets = [{"cidr": "10.73.0.0/16", "hostPrefixLength": 28}]
        made = create(server, network(f"v{node}", subnets=subnets))
        create(server, allocation(made, node, "10.73.0.0/28"))
        with ClusterAgent(self._launcher, server, node, folder=self._home) as agent:
            try:
                yield Life(server, agent, node)
            finally:
                self._control.disarm()
                for plural, name in (("allocations", f"v{node}.{node}"), ("networks", f"v{node}")):
                    patch(server, plural, name, {"metadata": {"finalizers": []}})
                    delete(server, plural, name)
                server.kubectl("delete", "node", node)


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_each_change_of_the_disk(server, step):
    with Stage(server) as stage:
        points = range(1, stage.count() + 1, step)
        died = 0
        for point in points:
            try:
                died += stage.play(point, half=bool(point % 2))
            except BaseException as error:
                error.add_note(f"killed at change {point}")
                raise
        assert died >= len(points) - 2, "hardly anything was interrupted"
