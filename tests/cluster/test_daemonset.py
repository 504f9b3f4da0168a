"""The agent on a whole cluster, from its image and its DaemonSet: pods start with their ledger's addresses."""

import contextlib
import ipaddress
import json

import pytest

from cluster.cluster import Cluster
from cluster.images import WEB
from cluster.installation import NAMESPACE, NETWORK, Installation
from nodes import until

pytestmark = [pytest.mark.slow, pytest.mark.root]

MANY = 60
BLOCKS = {"n1": ("10.81.0.0/24",), "n2": ("10.81.1.0/24",)}


@pytest.fixture(scope="module")
def cluster():
    with Cluster("n1", "n2", pod_network=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def installed(cluster, tmp_path_factory):
    installed = Installation(cluster, tmp_path_factory.mktemp("installation"), BLOCKS)
    # A node is ready once its runtime finds a configuration, which goes in once the agent can give addresses.
    until(lambda: cluster.ready("n1") and cluster.ready("n2"), "the nodes don't get ready", limit=180)
    return installed


def workload(kind, name, replicas, *, node="", **spec):
    container = {
        "name": "web",
        "image": WEB,
        "imagePullPolicy": "Never",
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1},
    }
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
        },
    }
    selector = {"matchLabels": {"app": name}}
    spec = {"replicas": replicas, "selector": selector, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def pods(cluster, app):
    return [one for one in cluster.get("pods", "-l", f"app={app}") if "deletionTimestamp" not in one["metadata"]]


def ready(cluster, app, count):
    """The pods of an app, once so many of them are ready."""

    def found():
        found = pods(cluster, app)
        good = [
            one
            for one in found
            if any(each["type"] == "Ready" and each["status"] == "True" for each in one["status"].get("conditions", ()))
        ]
        return found if len(good) == len(found) == count else None

    return until(found, f"{count} pods of {app} don't get ready", limit=180)


@contextlib.contextmanager
def running(cluster, installed, kind, name, replicas, **spec):
    """A workload whose pods are ready; it goes in any case, and what its pods had is given back."""
    cluster.kubectl("apply", "-f", "-", input=json.dumps(workload(kind, name, replicas, **spec)))
    try:
        ready(cluster, name, replicas)
        yield
    finally:
        cluster.kubectl("delete", kind.lower(), name)
    gone(cluster, installed, name)


def addresses_of(cluster, installed, app):
    """Of each pod: its name, its node, the address that the API server shows, and the one that its ledger has."""
    leases = {node: installed.leases(node) for node in BLOCKS}
    for one in pods(cluster, app):
        name, node = one["metadata"]["name"], one["spec"]["nodeName"]
        yield name, node, one["status"].get("podIP"), leases[node].get(f"default/{name}")


def agrees(cluster, installed, app):
    """Each pod has the address that its node's ledger has for it, and no other pod has it (I1)."""
    addresses = {}
    for name, node, address, leased in addresses_of(cluster, installed, app):
        assert leased == address
        assert any(ipaddress.ip_address(address) in ipaddress.ip_network(block) for block in BLOCKS[node])
        assert address not in addresses, f"{name} and {addresses[address]} both have {address}"
        addresses[address] = name


def gone(cluster, installed, app):
    until(lambda: not cluster.get("pods", "-l", f"app={app}"), "the pods stay", limit=120)
    until(
        lambda: not any(key.startswith(f"default/{app}") for node in BLOCKS for key in installed.leases(node)),
        "leases are left of pods that are gone",
    )


def test_sixty_pods_start_with_their_ledgers_addresses_and_give_them_back(cluster, installed):
    """I1, I2, I4."""
    with running(cluster, installed, "Deployment", "many", MANY):
        agrees(cluster, installed, "many")
        [first, second] = [one for one in pods(cluster, "many") if one["spec"]["nodeName"] == "n1"][:2]
        answer = cluster.kubectl(
            "exec", first["metadata"]["name"], "--", "/web", "get", f"http://{second['status']['podIP']}:8080/"
        )
        assert answer.split()[0] == second["metadata"]["name"]
        assert "nothing wrong" in installed.ask("n1", "doctor")


def test_a_statefulsets_pod_keeps_its_name_and_never_loses_the_address_of_its_successor(cluster, installed):
    """I7: the old pod's DEL comes after the new one's ADD, or before; it releases its own."""
    with running(cluster, installed, "StatefulSet", "same", 1, serviceName="same"):
        for _ in range(10):
            [before] = ready(cluster, "same", 1)
            cluster.kubectl("delete", "pod", "same-0", "--force", "--grace-period=0", "--wait=false")
            until(
                lambda before=before: any(
                    one["metadata"]["uid"] != before["metadata"]["uid"] for one in pods(cluster, "same")
                ),
                "there is no new pod",
            )
        ready(cluster, "same", 1)
        agrees(cluster, installed, "same")


def test_agents_killed_while_pods_come_and_go_lose_nothing(cluster, installed):
    """I1, I2, I11."""
    with running(cluster, installed, "Deployment", "churn", 20):
        for _ in range(3):
            for node in BLOCKS:
                kill_agent(cluster, node)
            cluster.kubectl("rollout", "restart", "deployment", "churn")
            cluster.kubectl("rollout", "status", "deployment", "churn", "--timeout=180s", limit=200)
        ready(cluster, "churn", 20)
        until(lambda: all_agents_ready(cluster), "the agents are not back", limit=120)
        agrees(cluster, installed, "churn")


def test_without_the_api_server_a_nodes_sandboxes_are_made_anew_and_get_addresses(cluster, installed):
    """I12: all sandboxes of the node die, that of its agent too; the kubelet makes new ones from what it knows."""
    with running(cluster, installed, "Deployment", "dark", 6, node="n1"):
        node = cluster.nodes["n1"]
        before = namespaces(node)
        cluster.api.stop()
        try:
            node.run("pkill", "-KILL", "-x", "pause")
            until(lambda: len(namespaces(node) - before) == len(before), "no new sandboxes are made", limit=120)
        finally:
            cluster.api.start()
        until(lambda: cluster.ready("n1") and cluster.ready("n2"), "the nodes don't come back", limit=120)
        until(lambda: all_agents_ready(cluster), "the agents are not back", limit=120)
        ready(cluster, "dark", 6)
        until(lambda: agree(cluster, installed, "dark"), "pods and ledger don't come to agree")
        agrees(cluster, installed, "dark")


def test_a_rebooted_nodes_pods_get_addresses_anew_and_no_lease_of_before_is_left(cluster, installed):
    with running(cluster, installed, "Deployment", "boot", 8, node="n2"):
        cluster.nodes["n2"].reboot()
        until(lambda: not ready_now(cluster, "boot"), "the pods did not stop", limit=60)
        ready(cluster, "boot", 8)
        agrees(cluster, installed, "boot")
        held = [key for key in installed.leases("n2") if key.startswith("default/boot")]
        assert len(held) == 8


def test_a_rolled_daemonset_fails_no_pod(cluster, installed):
    """I11: an upgrade, with pods starting all the while."""
    with running(cluster, installed, "Deployment", "roll", 4):
        cluster.kubectl("rollout", "restart", "daemonset", "allotment-agent", "-n", NAMESPACE)
        cluster.kubectl("scale", "deployment", "roll", "--replicas=30")
        cluster.kubectl(
            "rollout", "status", "daemonset", "allotment-agent", "-n", NAMESPACE, "--timeout=180s", limit=200
        )
        ready(cluster, "roll", 30)
        agrees(cluster, installed, "roll")
        events = cluster.get("events", "--field-selector=reason=FailedCreatePodSandBox")
        ours = [one["message"] for one in events if one["involvedObject"]["name"].startswith("roll-")]
        assert ours == []


def test_a_drained_network_refuses_and_lets_go_with_the_last_pod(cluster, installed):
    """I5. The last test: the network is gone afterwards."""
    with running(cluster, installed, "Deployment", "last", 2, node="n1"):
        cluster.kubectl("delete", "allocations.allotment.dev", f"{NETWORK}.n1", "--wait=false")
        until(lambda: "draining" in installed.ask("n1", "utilization", "-o", "json"), "it does not drain")
        [found] = [
            one for one in cluster.get("allocations.allotment.dev") if one["metadata"]["name"] == f"{NETWORK}.n1"
        ]
        assert "allotment.dev/node" in found["metadata"]["finalizers"]
    until(
        lambda: (
            "allotment.dev/node"
            not in cluster.kubectl(
                "get", "allocations.allotment.dev", f"{NETWORK}.n1", "-o", "jsonpath={.metadata.finalizers}"
            )
        ),
        "the finalizer does not go",
        limit=60,
    )


# -- helpers


def kill_agent(cluster, node):
    """SIGKILL to the agent's process on a node; its container is started again."""
    cluster.nodes[node].run("pkill", "-KILL", "-f", "[a]llotment agent")


def all_agents_ready(cluster):
    found = cluster.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent")
    return len(found) == len(BLOCKS) and all(
        each["ready"] for one in found for each in one["status"].get("containerStatuses", ())
    )


def ready_now(cluster, app):
    return all(each["ready"] for one in pods(cluster, app) for each in one["status"].get("containerStatuses", ()))


def namespaces(node):
    """The pods' network namespaces on a node."""
    return set(node.run("ls", "/run/netns").split())


def agree(cluster, installed, app):
    """Whether the API server shows each pod with its ledger's address; the kubelet reports a moment later."""
    return all(address == leased for _, _, address, leased in addresses_of(cluster, installed, app))
