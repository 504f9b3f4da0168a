"""The agent on a whole cluster, from its image and its DaemonSet: pods start with their ledger's addresses."""

import pytest

from cluster.cluster import Cluster
from cluster.installation import NAMESPACE, NETWORK, Installation
from cluster.workloads import agrees, kill_agent, namespaces, pods, ready, ready_now, running, sound
from nodes import until

pytestmark = [pytest.mark.slow, pytest.mark.root]

MANY = 60
SUCCESSORS = 50
BLOCKS = {"n1": ("10.81.0.0/24",), "n2": ("10.81.1.0/24",)}


@pytest.fixture(scope="module")
def cluster():
    with Cluster("n1", "n2", pod_network=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def installed(cluster, tmp_path_factory):
    return Installation(cluster, tmp_path_factory.mktemp("installation"), BLOCKS)


def test_sixty_pods_start_with_their_ledgers_addresses_and_give_them_back(cluster, installed):
    """I1, I2, I4."""
    with running(installed, "Deployment", "many", MANY):
        agrees(installed, "many")
        [first, second] = [one for one in pods(installed, "many") if one["spec"]["nodeName"] == "n1"][:2]
        answer = cluster.kubectl(
            "exec", first["metadata"]["name"], "--", "/web", "get", f"http://{second['status']['podIP']}:8080/"
        )
        assert answer.split()[0] == second["metadata"]["name"]
        sound(installed)


def test_a_statefulsets_pod_keeps_its_name_and_never_loses_the_address_of_its_successor(cluster, installed):
    """I7: the old pod's DEL comes after the new one's ADD, or before; it releases its own.

    Most of them are gone before they have an address, some while they get it, and every fifth serves first.
    """
    with running(installed, "StatefulSet", "same", 1, serviceName="same"):
        [last] = pods(installed, "same")
        for number in range(SUCCESSORS):
            cluster.kubectl("delete", "pod", "same-0", "--force", "--grace-period=0", "--wait=false")
            last = until(lambda last=last: successor(installed, last), "there is no new pod", limit=120)
            if number % 5 == 0:
                ready(installed, "same", 1)
        ready(installed, "same", 1)
        agrees(installed, "same")
        sound(installed)


def successor(installed, last):
    """The pod of the StatefulSet `same` that came after this one, once it has its node; None until then."""
    return next(
        (
            one
            for one in pods(installed, "same")
            if one["metadata"]["uid"] != last["metadata"]["uid"] and "nodeName" in one["spec"]
        ),
        None,
    )


def test_agents_killed_while_pods_come_and_go_lose_nothing(cluster, installed):
    """I1, I2, I11."""
    with running(installed, "Deployment", "churn", 20):
        for _ in range(3):
            for node in BLOCKS:
                kill_agent(installed, node)
            cluster.kubectl("rollout", "restart", "deployment", "churn")
            cluster.kubectl("rollout", "status", "deployment", "churn", "--timeout=180s", limit=200)
        ready(installed, "churn", 20)
        sound(installed)


def test_without_the_api_server_a_nodes_sandboxes_are_made_anew_and_get_addresses(cluster, installed):
    """I12: all sandboxes of the node die, that of its agent too; the kubelet makes new ones from what it knows."""
    with running(installed, "Deployment", "dark", 6, node="n1"):
        node = cluster.nodes["n1"]
        before = namespaces(node)
        cluster.api.stop()
        try:
            node.run("pkill", "-KILL", "-x", "pause")
            until(lambda: len(namespaces(node) - before) == len(before), "no new sandboxes are made", limit=120)
        finally:
            cluster.api.start()
        sound(installed)


def test_a_rebooted_nodes_pods_get_addresses_anew_and_no_lease_of_before_is_left(cluster, installed):
    with running(installed, "Deployment", "boot", 8, node="n2"):
        cluster.nodes["n2"].reboot()
        until(lambda: not ready_now(installed, "boot"), "the pods did not stop", limit=60)
        ready(installed, "boot", 8)
        sound(installed)
        assert len(installed.held("n2")) == 8


def test_a_rolled_daemonset_fails_no_pod(cluster, installed):
    """I11: an upgrade, with pods starting all the while."""
    with running(installed, "Deployment", "roll", 4):
        cluster.kubectl("rollout", "restart", "daemonset", "allotment-agent", "-n", NAMESPACE)
        cluster.kubectl("scale", "deployment", "roll", "--replicas=30")
        cluster.kubectl(
            "rollout", "status", "daemonset", "allotment-agent", "-n", NAMESPACE, "--timeout=180s", limit=200
        )
        ready(installed, "roll", 30)
        sound(installed)
        events = cluster.get("events", "--field-selector=reason=FailedCreatePodSandBox")
        ours = [one["message"] for one in events if one["involvedObject"]["name"].startswith("roll-")]
        assert ours == []


def test_a_drained_network_refuses_and_lets_go_with_the_last_pod(cluster, installed):
    """I5. The last test: the network is gone afterwards."""
    with running(installed, "Deployment", "last", 2, node="n1"):
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
