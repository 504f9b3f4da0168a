"""What happens to a cluster in its life, with pods coming and going: afterwards everything fits (`sound`).

Allotment is installed as people install it, and serves a network of both families. Agents that are killed, rolled or
rebooted under are test_daemonset's.
"""

import contextlib
import json
import re
import subprocess
import threading

import pytest

from agents import now
from cluster.access import KubectlError
from cluster.cluster import Cluster
from cluster.installation import NAMESPACE, NETWORK, Installation
from cluster.workloads import (
    agrees,
    is_ready,
    kill_agent,
    pod,
    pods,
    ready,
    running,
    sandboxes,
    sound,
)
from nodes import until

pytestmark = [pytest.mark.slow, pytest.mark.root]

BLOCKS = {"n1": ("10.81.0.0/24", "fd00:81::/112"), "n2": ("10.81.1.0/24", "fd00:81::1:0/112")}
DARK = 120.0
"""Seconds for which the API server is away."""


@pytest.fixture(scope="module")
def cluster():
    with Cluster("n1", "n2", pod_network=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def installed(cluster, tmp_path_factory):
    return Installation(cluster, tmp_path_factory.mktemp("installation"), BLOCKS, dual=True)


def test_pods_of_a_node_reach_each_other_in_both_families_under_their_own_addresses(cluster, installed):
    """I1: who is asked sees the address that the ledger has for who asks."""
    node = cluster.nodes["n1"]
    with running(installed, "Deployment", "near", 3, node="n1"):
        agrees(installed, "near")
        leases = installed.held("n1")
        assert len(leases) == 6
        for asker in leases:
            for asked in leases:
                if asked["pod"] != asker["pod"] and (":" in asked["address"]) == (":" in asker["address"]):
                    inside = ("nsenter", f"--net={asker['netns']}")
                    node.run(*inside, "ping", "-c", "1", "-W", "5", asked["address"])
                    answer = node.run(*inside, "curl", "--silent", "--max-time", "5", url(asked["address"])).split()
                    assert answer == [asked["pod"].removeprefix("default/"), asker["address"]]
        sound(installed)


def test_a_static_pod_has_an_address_with_and_without_agent_and_api_server(cluster, installed):
    """I2, I11, I12."""
    node = cluster.nodes["n1"]
    with static_pod(node, "still"):
        before = until(lambda: held_by(installed, "default/still-n1"), "it gets no address", limit=120)
        until(lambda: ready_mirror(cluster, "still-n1"), "it is not ready", limit=120)
        sound(installed)
        kill_agent(installed, "n1")
        until(lambda: held_by(installed, "default/still-n1") == before, "it has lost its address", limit=120)
        with without_api_server(cluster):
            with static_pod(node, "dark"):
                found = until(lambda: held_by(installed, "default/dark-n1"), "it gets no address", limit=180)
                for address in found:
                    until(lambda address=address: serves(node, address), f"{address} does not answer", limit=60)
            until(lambda: held_by(installed, "default/dark-n1") == set(), "its DEL does not free it", limit=180)
            assert held_by(installed, "default/still-n1") == before
        sound(installed)
    until(lambda: held_by(installed, "default/still-n1") == set(), "its DEL does not free it", limit=120)
    until(lambda: not cluster.get("pods", "-n", "default"), "the mirror stays", limit=120)
    sound(installed)


@pytest.mark.parametrize("service", ["kubelet", "containerd"])
def test_a_service_that_is_killed_while_pods_come_and_go_leaves_everything_in_order(cluster, installed, service):
    """I1, I7, I11: what it had begun is repeated or taken back when it is there again."""
    with running(installed, "Deployment", "shaken", 12):
        with churn(installed, "shaken") as deleted:
            for _ in range(2):
                for node in cluster.nodes.values():
                    seen = len(deleted)
                    node.hold(service)
                    until(lambda seen=seen: len(deleted) > seen + 4, "no pods go", limit=120)
                    node.release(service)
                    until(lambda node=node: cluster.ready(node.name), f"{node.name} is not ready", limit=120)
        sound(installed)


def test_a_pod_force_deleted_while_the_agent_is_down_keeps_its_addresses_as_long_as_it_lives(cluster, installed):
    """I8: the object goes first, and that is no evidence. The runtime's DEL is, of which history tells."""
    node = cluster.nodes["n1"]
    with running(installed, "Deployment", "forced", 3, node="n1"):
        victim = pods(installed, "forced")[0]["metadata"]["name"]
        [container] = {lease["container"] for lease in installed.held("n1") if lease["pod"] == f"default/{victim}"}
        node.hold("kubelet")  # who would have the agent started again
        try:
            kill_agent(installed, "n1")
            until(lambda: not agent_answers(installed), "the agent lives")
            cluster.kubectl("delete", "pod", victim, "--force", "--grace-period=0", "--wait=false")
            until(lambda: victim not in names(cluster), "the object stays")
            assert container in sandboxes(node)
        finally:
            node.release("kubelet")

        def freed():
            with contextlib.suppress(subprocess.CalledProcessError, ValueError):
                if any(lease["container"] == container for lease in installed.held("n1", here=True)):
                    return False
                assert container not in sandboxes(node), "it was freed while its sandbox lived"
                return True
            return False

        until(freed, "it is not freed", limit=180)
        ready(installed, "forced", 3)
        sound(installed)
        told = json.loads(installed.ask("n1", "history", "-o", "json", "--container", container))
        ends = {entry["cause"] for entry in told}
        assert ends <= {"del", "spool", "workload"}
        assert ends


def test_two_minutes_without_the_api_server_while_sandboxes_die(cluster, installed):
    """I12, I11: the kubelets make them anew from what they know, agents included, and static pods come and go."""
    machines = cluster.nodes
    with running(installed, "Deployment", "away", 10):
        with without_api_server(cluster):
            began = now()
            dead = anew(machines)
            rounds = 0
            while now() < began + DARK:
                rounds += 1
                for name, node in machines.items():
                    brief = f"default/brief-{rounds}-{name}"
                    with static_pod(node, f"brief-{rounds}"):
                        until(
                            lambda brief=brief, name=name: held_by(installed, brief, name),
                            f"{brief} gets no address",
                            limit=180,
                        )
                    until(
                        lambda brief=brief, name=name: held_by(installed, brief, name) == set(),
                        f"the DEL of {brief} does not free it",
                        limit=180,
                    )
            assert rounds > 1
            dead |= anew(machines)
        sound(installed)
        alive = {lease["container"] for name in machines for lease in installed.held(name)}
        assert len(alive) == 10
        assert not alive & dead


def anew(machines):
    """Kill all sandboxes of all nodes, those of the agents too, and wait until there are as many new ones."""
    before = {name: sandboxes(node) for name, node in machines.items()}
    for node in machines.values():
        node.run("pkill", "-KILL", "-x", "pause")
    for name, node in machines.items():
        until(
            lambda node=node, name=name: len(sandboxes(node) - before[name]) >= len(before[name]),
            f"no new sandboxes are made on {name}",
            limit=180,
        )
    return set().union(*before.values())


def test_history_that_etcd_forgets_while_pods_come_and_go_is_read_anew(cluster, installed):
    """I11: the agents are told 410, read whole lists, and go on without having been started again."""
    with running(installed, "Deployment", "compact", 8):
        before, agents = lists_of(cluster), agent_containers(cluster)
        with churn(installed, "compact") as deleted:
            for _ in range(2):
                seen = len(deleted)
                until(lambda seen=seen: len(deleted) > seen + 4, "no pods go", limit=120)
                cluster.api.compact()
        until(
            lambda: all(count > before[node] for node, count in lists_of(cluster).items()),
            "no lists are read anew",
            limit=180,
        )
        sound(installed)
        assert agent_containers(cluster) == agents


def test_a_line_that_swallows_all_of_a_node_is_found_dead_and_made_anew(cluster, installed):
    """I12: no FIN, no RST, nothing; pods go on starting meanwhile."""
    node = cluster.nodes["n1"]
    drops = "\n".join(f"ip {end} {cluster.api.address} drop" for end in ("daddr", "saddr"))
    hooks = ("input", "output")
    chains = "\n".join(f"chain {hook} {{ type filter hook {hook} priority 0;\n{drops}\n}}" for hook in hooks)
    with running(installed, "Deployment", "swallowed", 4):
        node.run("nft", "-f", "-", input=f"table ip swallow {{\n{chains}\n}}\n")
        try:
            until(lambda: metric(node, "source_out_of_contact_seconds") > 0, "nobody notices", limit=120)
            with static_pod(node, "alone"):
                until(lambda: held_by(installed, "default/alone-n1"), "it gets no address", limit=120)
            until(lambda: held_by(installed, "default/alone-n1") == set(), "its DEL does not free it", limit=120)
        finally:
            node.run("nft", "delete", "table", "ip", "swallow")
        until(lambda: metric(node, "source_out_of_contact_seconds") == 0, "contact is not found again", limit=120)
        sound(installed)


def test_a_pod_gets_the_address_that_its_annotation_asks_for_unless_another_has_it(cluster, installed):
    """I1."""
    wanted = "10.81.0.200"
    annotations = {"allotment.dev/ips": json.dumps({NETWORK: [wanted]})}

    def make(name):
        cluster.kubectl("apply", "-f", "-", input=json.dumps(pod(name, "n1", annotations=annotations)))

    make("first")
    try:
        until(lambda: ready_mirror(cluster, "first"), "it is not ready", limit=120)
        assert wanted in held_by(installed, "default/first")
        make("second")
        try:
            message = until(lambda: refusal_of(cluster, "second"), "the kubelet does not say why", limit=120)
            assert wanted in message
            assert "default/first" in message
            cluster.kubectl("delete", "pod", "first")
            until(lambda: ready_mirror(cluster, "second"), "it does not get it", limit=180)
            assert wanted in held_by(installed, "default/second")
            sound(installed)
        finally:
            cluster.kubectl("delete", "pod", "second")
    finally:
        cluster.kubectl("delete", "pod", "first", "--ignore-not-found")
    until(lambda: not installed.held("n1"), "the addresses are not freed", limit=120)


# -- done to them


@contextlib.contextmanager
def static_pod(node, name):
    """A pod that the kubelet has from a file, as long as this lasts."""
    file, draft = f"/etc/kubernetes/manifests/{name}.json", f"/etc/kubernetes/{name}.draft"
    node.run("tee", draft, input=json.dumps(pod(name)))
    node.run("mv", draft, file)
    try:
        yield
    finally:
        node.run("rm", file)


@contextlib.contextmanager
def without_api_server(cluster):
    cluster.api.stop()
    try:
        yield
    finally:
        cluster.api.start()
    until(lambda: cluster.ready("n1") and cluster.ready("n2"), "the nodes don't come back", limit=180)


@contextlib.contextmanager
def churn(installed, app):
    """One pod of an app after the other is deleted, by force, as long as this lasts; the list of those so far."""
    done = threading.Event()
    deleted = []

    def work():
        while not done.wait(0.2):
            with contextlib.suppress(KubectlError, subprocess.TimeoutExpired):
                names = [one["metadata"]["name"] for one in pods(installed, app)]
                for name in names[:2]:
                    installed.cluster.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--wait=false")
                    deleted.append(name)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield deleted
    finally:
        done.set()
        thread.join()


# -- asked of them


def held_by(installed, name, node="n1"):
    """The addresses that a pod has in a node's ledger, asked for without an API server; None while nobody answers."""
    with contextlib.suppress(subprocess.CalledProcessError, ValueError):
        return {lease["address"] for lease in installed.held(node, here=True) if lease["pod"] == name}
    return None


def agent_answers(installed):
    try:
        installed.ask_here("n1", "status")
    except subprocess.CalledProcessError:
        return False
    return True


def names(cluster):
    return [one["metadata"]["name"] for one in cluster.get("pods", "-n", "default")]


def ready_mirror(cluster, name):
    """Whether the API server shows a pod (a static one's mirror, say) as ready."""
    return any(one["metadata"]["name"] == name and is_ready(one) for one in cluster.get("pods", "-n", "default"))


def refusal_of(cluster, name):
    """What the kubelet says of a sandbox that it could not make."""
    events = cluster.get("events", "--field-selector", f"reason=FailedCreatePodSandBox,involvedObject.name={name}")
    return next((one["message"] for one in events), None)


def agent_containers(cluster):
    """The IDs of the agents' containers."""
    found = cluster.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent")
    return {each["containerID"] for one in found for each in one["status"]["containerStatuses"]}


def lists_of(cluster):
    """By node, how many whole lists its agent has read."""
    return {name: metric(node, "source_lists_total") for name, node in cluster.nodes.items()}


def metric(node, name):
    """The sum of a metric's samples, as an agent tells it."""
    text = node.run("curl", "--silent", "--fail", "http://127.0.0.1:9733/metrics")
    return sum(map(float, re.findall(rf"^allotment_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))


def url(address):
    return f"http://[{address}]:8080/" if ":" in address else f"http://{address}:8080/"


def serves(node, address):
    try:
        return node.run("curl", "--silent", "--max-time", "5", url(address))
    except subprocess.CalledProcessError:
        return ""
