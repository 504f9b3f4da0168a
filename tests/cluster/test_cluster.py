"""The test cluster does what a real one does, survives what tests do to it, and leaves nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import keeping
from cluster.cluster import Cluster
from cluster.images import PAUSE, WEB
from nodes import until

pytestmark = [pytest.mark.slow, pytest.mark.root]


def pod(name, node, image=WEB, **metadata):
    container = {"name": "c", "image": image, "imagePullPolicy": "Never"}
    if image == WEB:
        container["readinessProbe"] = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


@contextlib.contextmanager
def pods(cluster, *wanted):
    """Pods that are there and ready, by their names."""
    cluster.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted}))
    names = [f"pod/{one['metadata']['name']}" for one in wanted]
    try:
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=60s", *names)
        yield {name: one for one in cluster.get("pods") if f"pod/{(name := one['metadata']['name'])}" in names}
    finally:
        cluster.kubectl("delete", "--wait", *names)


def mounts_below(folder):
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if folder in line]


def test_both_nodes_are_ready_and_run_pods_that_reach_each_other(cluster):
    assert cluster.ready("n1")
    assert cluster.ready("n2")
    with pods(cluster, pod("east", "n1"), pod("west", "n2")) as running:
        addresses = {name: [one["ip"] for one in found["status"]["podIPs"]] for name, found in running.items()}
        assert addresses["east"][0].startswith("10.244.1.")
        assert addresses["west"][0].startswith("10.244.2.")
        v4, v6 = addresses["west"]
        for url in (f"http://{v4}:8080/", f"http://[{v6}]:8080/"):
            answer = cluster.kubectl("exec", "east", "--", "/web", "get", url).split()
            assert answer[0] == "west"
            assert answer[1] in addresses["east"]


def test_a_service_leads_to_its_pods_from_a_pod_and_from_a_host(cluster):
    with pods(cluster, pod("behind", "n2", labels={"app": "behind"}), pod("before", "n1")):
        cluster.kubectl("expose", "pod", "behind", "--port=80", "--target-port=8080")
        try:
            address = cluster.kubectl("get", "service", "behind", "-o", "jsonpath={.spec.clusterIP}")
            until(lambda: asked(cluster, "before", address), "the Service does not answer")
            answer = cluster.nodes["n1"].run("curl", "-s", "-m", "5", f"http://{address}/")
            assert answer.startswith("behind ")
        finally:
            cluster.kubectl("delete", "service", "behind")


def asked(cluster, name, address):
    command = [*cluster.api.kubectl_command(), "exec", name, "--", "/web", "get", f"http://{address}/"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return ended.stdout.startswith("behind ")


def test_pods_outlive_kubelet_and_containerd(cluster):
    node = cluster.nodes["n1"]
    with pods(cluster, pod("outlives", "n1")) as running:
        for service in ("kubelet", "containerd"):
            node.restart(service)
        until(lambda: cluster.ready("n1"), "n1 is not ready")
        [after] = [one for one in cluster.get("pods") if one["metadata"]["name"] == "outlives"]
        assert after["status"]["podIPs"] == running["outlives"]["status"]["podIPs"]
        assert after["status"]["containerStatuses"][0]["restartCount"] == 0
        with pods(cluster, pod("later", "n1", PAUSE)):
            pass


def test_a_rebooted_node_has_another_boot_id_and_starts_its_pods_anew(cluster):
    node = cluster.nodes["n2"]
    with pods(cluster, pod("rebooted", "n2")) as running:
        [before] = [one for one in cluster.get("nodes") if one["metadata"]["name"] == "n2"]
        sandboxes = node.run("ls", "/run/netns")
        node.reboot()

        def rebooted():
            [after] = [one for one in cluster.get("nodes") if one["metadata"]["name"] == "n2"]
            return after["status"]["nodeInfo"]["bootID"] != before["status"]["nodeInfo"]["bootID"]

        def restarted():
            [found] = [one for one in cluster.get("pods") if one["metadata"]["name"] == "rebooted"]
            [status] = found["status"]["containerStatuses"]
            return status["ready"] and status["restartCount"] == 1

        until(rebooted, "n2 has not reported another boot")
        until(restarted, "the pod has not been started again")
        assert node.run("ls", "/run/netns") != sandboxes
        assert running["rebooted"]["metadata"]["uid"] in cluster.kubectl("get", "pods", "-o", "yaml")


def test_a_static_pod_runs(cluster):
    node = cluster.nodes["n1"]
    manifest = "/etc/kubernetes/manifests/static.json"
    node.run("tee", manifest, input=json.dumps(pod("static", "")))
    try:
        until(lambda: "Running" in cluster.kubectl("get", "pods"), "the static pod does not run")
        assert "static-n1" in cluster.kubectl("get", "pods", "-o", "name")
    finally:
        node.run("rm", manifest)
    until(lambda: "static-n1" not in cluster.kubectl("get", "pods", "-o", "name"), "the static pod stays")


def test_the_machine_s_own_settings_and_folders_stay_as_they_are(cluster):
    for path in ("/opt/cni/bin", "/etc/cni/net.d", "/var/lib/kubelet"):
        inside = cluster.nodes["n1"].run("ls", path).split()
        outside = {found.name for found in Path(path).iterdir()} if Path(path).exists() else set()
        assert set(inside) - outside
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    assert cluster.nodes["n1"].run("cat", "/proc/sys/kernel/random/boot_id") != boot


def test_a_cluster_comes_and_goes_by_command_and_leaves_nothing(command, tmp_path):
    command("up", "n1")
    folder = command.folder
    assert "Ready" in ask(folder / "kubectl", "get", "nodes")
    assert "kubelet" in ask(folder / "n1", "ps", "axo", "comm")
    with pytest.raises(subprocess.CalledProcessError):
        command("up")
    command("down")
    assert not folder.exists()
    assert left(tmp_path) == []
    assert mounts_below(str(tmp_path)) == []


def test_after_its_holder_was_killed_down_removes_what_is_left(command, tmp_path):
    command("up", "n1")
    [cluster] = tmp_path.glob("al-cluster-*")
    assert control_groups(cluster.name) != []
    os.kill(int((command.folder / "pid").read_text()), signal.SIGKILL)
    until(lambda: str(tmp_path) not in command_lines(), "the cluster's processes live on")
    assert mounts_below(str(tmp_path)) != []
    command("down")
    assert mounts_below(str(tmp_path)) == []
    assert control_groups(cluster.name) == []
    assert left(tmp_path) == []


@pytest.fixture
def command(tmp_path):
    """Runs `python -m cluster`, with all that was built, but apart from the cluster that a person may have."""
    cache = tmp_path / "cache" / "allotment"
    cache.mkdir(parents=True)
    for built in keeping.cache().glob("*-*"):
        (cache / built.name).symlink_to(built)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "TMPDIR": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def run(*words):
        subprocess.run([sys.executable, "-m", "cluster", *words], env=environment, check=True, timeout=180)

    run.folder = cache / "cluster"
    yield run
    run("down")


def left(folder):
    """What is in a temporary folder besides the cache."""
    return [path.name for path in folder.iterdir() if path.name != "cache"]


def control_groups(name):
    """The control groups of a cluster's nodes, in one tree or several."""
    return [path for depth in ("", "*/") for path in Path("/sys/fs/cgroup").glob(f"{depth}{name}-*")]


def ask(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def command_lines():
    """The command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(found)


def test_a_second_cluster_whose_nodes_wait_for_a_pod_network_leaves_the_first_alone(cluster):
    with pods(cluster, pod("first", "n1")):
        with Cluster("n1", pod_network=False) as bare:
            assert [one["metadata"]["name"] for one in bare.get("nodes")] == ["n1"]
            assert not bare.ready("n1")
            folder = bare.folder
        assert not folder.exists()
        assert "/web" in cluster.nodes["n1"].run("ps", "axo", "args")
        with pods(cluster, pod("second", "n1")):
            pass
