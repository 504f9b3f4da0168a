"""What the tests on a cluster call sound is so, and each thing that is not is named."""

import copy
import json

import pytest

from cluster.workloads import faults

BLOCKS = {"n1": ("10.81.0.0/24", "fd00:81::/112"), "n2": ("10.81.1.0/24", "fd00:81::1:0/112")}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


class Told:
    """An installation, its cluster, and one of its nodes, that tell what they are given."""

    def __init__(self):
        self.cluster = self
        self.blocks = BLOCKS
        self.nodes_ready = {"n1", "n2"}
        self.agents = [{"status": {"containerStatuses": [{"ready": True}, {"ready": True}]}} for _ in BLOCKS]
        self.pods = [
            shown("a", "n1", "10.81.0.2", "fd00:81:0:0:0::2"),  # as nobody writes it, and it is the same
            shown("b", "n2", "10.81.1.2", "fd00:81::1:2"),
        ]
        self.leases = {
            "n1": [lease("a", "10.81.0.2"), lease("a", "fd00:81::2")],
            "n2": [lease("b", "10.81.1.2"), lease("b", "fd00:81::1:2")],
        }
        self.nodes = {"n1": Machine("a"), "n2": Machine("b")}

    def ready(self, node):
        return node in self.nodes_ready

    def get(self, _kind, _flag, namespace, *_words):
        return self.pods if namespace == "default" else self.agents

    def held(self, node):
        return self.leases[node]


class Machine:
    def __init__(self, *names):
        self.sandboxes = [f"sandbox-{name}" for name in names]
        self.namespaces = [f"cni-{name}" for name in names]

    def containers(self, _chosen):
        return self.sandboxes

    def run(self, *_command):
        return "\n".join(self.namespaces)


def shown(name, node, *addresses):
    status = {**copy.deepcopy(READY), "podIPs": [{"ip": address} for address in addresses]}
    return {"metadata": {"name": name}, "spec": {"nodeName": node}, "status": status}


def lease(name, address):
    return {
        "pod": f"default/{name}",
        "address": address,
        "container": f"sandbox-{name}",
        "netns": f"/run/netns/cni-{name}",
    }


def test_what_fits_is_sound():
    assert faults(Told()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: told.nodes_ready.remove("n2"), "n2 is not ready"),
        (lambda told: told.agents.pop(), "an agent is not ready"),
        (lambda told: told.agents[0]["status"]["containerStatuses"][1].update(ready=False), "an agent is not ready"),
        (lambda told: told.pods[0]["status"]["conditions"][0].update(status="False"), "default/a is not ready"),
        (lambda told: told.pods[0]["metadata"].update(deletionTimestamp="now"), "default/a is not ready"),
        (lambda told: told.pods[0]["status"]["podIPs"].pop(), "pods of n1"),
        (lambda told: told.pods.pop(), "pods of n2"),
        (lambda told: told.leases["n1"].append(lease("old", "10.81.0.9")), "pods of n1"),
        (lambda told: told.leases["n1"].append(lease("old", "10.81.0.9")), "sandboxes of n1"),
        (lambda told: told.leases["n1"].append(lease("a", "10.81.0.2")), "both have 10.81.0.2"),
        (lambda told: told.leases["n2"].append(lease("b", "10.81.0.2")), "both have 10.81.0.2"),
        (lambda told: told.leases["n2"].append(lease("b", "10.81.0.7")), "in none of"),
        (lambda told: told.nodes["n2"].sandboxes.append("sandbox-left"), "sandboxes of n2"),
        (lambda told: told.nodes["n2"].namespaces.append("cni-left"), "namespaces of n2"),
        (lambda told: told.nodes["n1"].namespaces.clear(), "namespaces of n1"),
    ],
)
def test_each_thing_that_does_not_fit_is_named(change, said):
    told = Told()
    change(told)
    assert any(said in fault for fault in faults(told)), json.dumps(faults(told))
