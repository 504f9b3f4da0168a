"""All of it taken off a whole cluster again, as docs/operations/uninstall.md says, under pods that run."""

import contextlib
import json
from pathlib import Path

import pytest

from cluster.access import KubectlError
from cluster.agent_image import AGENT
from cluster.cluster import Cluster
from cluster.images import WEB
from cluster.installation import NAMESPACE, Installation
from nodes import until

pytestmark = [pytest.mark.slow, pytest.mark.root]

DAEMONSET = Path(__file__).resolve().parents[2] / "daemonset"
UNINSTALL = "allotment-uninstall"
BLOCKS = {"n1": ("10.81.0.0/24",), "n2": ("10.81.1.0/24",)}
STATE = "/var/lib/allotment"
OURS = ("/opt/cni/bin/allotment", "/etc/cni/net.d/10-allotment.conflist", STATE, "/run/allotment")
# The nodes of a test cluster share a kernel; the boot ID of each is a file that is mounted over the kernel's.
BOOT_ID = [
    {
        "op": "add",
        "path": "/spec/template/spec/initContainers/0/env/-",
        "value": {"name": "ALLOTMENT_BOOT_ID_FILE", "value": "/host/boot_id"},
    },
    {
        "op": "add",
        "path": "/spec/template/spec/initContainers/0/volumeMounts/-",
        "value": {"name": "boot-id", "mountPath": "/host/boot_id", "readOnly": True},
    },
    {
        "op": "add",
        "path": "/spec/template/spec/volumes/-",
        "value": {"name": "boot-id", "hostPath": {"path": "/proc/sys/kernel/random/boot_id", "type": "File"}},
    },
]
ANOTHER = {
    "cniVersion": "1.0.0",
    "name": "another",
    "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.82.0.0/24"}]]}}],
}


@pytest.fixture
def cluster():
    """A node whose state has a disk of its own, as all nodes have here, and one where it lies in a plain folder."""
    with Cluster("n1", "n2", pod_network=False) as cluster:
        cluster.nodes["n2"].run("umount", STATE)
        yield cluster


@pytest.fixture
def installed(cluster, tmp_path):
    return Installation(cluster, tmp_path, BLOCKS)


@pytest.fixture
def overlay(tmp_path):
    """daemonset/uninstall with the tests' image, for `kubectl apply -k`."""
    folder = tmp_path / "uninstall-overlay"
    folder.mkdir()
    (folder / "uninstall").symlink_to(DAEMONSET / "uninstall")
    name, tag = AGENT.rsplit(":", 1)
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["uninstall"],
        "images": [{"name": "allotment", "newName": name, "newTag": tag}],
        "patches": [{"target": {"kind": "DaemonSet"}, "patch": json.dumps(BOOT_ID)}],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(content))
    return folder


def start_pods(cluster, count):
    """Pods whose addresses are ours; their names."""
    container = {"name": "web", "image": WEB, "imagePullPolicy": "Never"}
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    spec = {"replicas": count, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(deployment))
    cluster.kubectl("rollout", "status", "deployment", "web", "--timeout=180s", limit=200)
    return [one["metadata"]["name"] for one in cluster.get("pods", "-l", "app=web")]


def said(cluster, component="nodes"):
    """What pods say in their logs; one that is being started says nothing."""
    text = ""
    for pod in cluster.get("pods", "-n", UNINSTALL, "-l", f"app.kubernetes.io/component={component}"):
        with contextlib.suppress(KubectlError):
            text += cluster.kubectl("logs", "-n", UNINSTALL, pod["metadata"]["name"], "-c", "uninstall")
    return text


def left(cluster):
    """What of ours is on the nodes."""
    return [
        f"{name}: {path}"
        for name, node in cluster.nodes.items()
        for path in node.run("sh", "-c", f"ls -d {' '.join(OURS)} 2>/dev/null; true").split()
    ]


def finish(cluster, overlay):
    """The documented end, and what must be true then."""
    try:
        complete = ("--for=condition=Complete", "job/cluster")
        cluster.kubectl("wait", "-n", UNINSTALL, *complete, "--timeout=240s", limit=260)
        cluster.kubectl("rollout", "status", "-n", UNINSTALL, "daemonset/nodes", "--timeout=240s", limit=260)
    except KubectlError as error:
        pods = cluster.kubectl("get", "pods", "--all-namespaces", "-o", "wide")
        raise AssertionError(f"{error}\n{said(cluster, 'cluster')}\n{said(cluster)}\n{pods}") from error
    assert left(cluster) == [f"n1: {STATE}"]  # a mount point, which is the administrator's
    assert cluster.nodes["n1"].run("ls", "-A", STATE) == ""
    cluster.kubectl("delete", "-k", str(overlay), "--timeout=120s", limit=150)
    for kind in ("crd", "namespace", "clusterrole", "clusterrolebinding", "validatingadmissionpolicy"):
        until(
            lambda kind=kind: not [one for one in cluster.get(kind) if "allotment" in one["metadata"]["name"]],
            f"something of ours is left among {kind}",
            limit=120,
        )


def test_the_pods_end_first_and_then_nothing_is_left(cluster, installed, overlay):
    start_pods(cluster, 4)
    cluster.kubectl("apply", "-k", str(overlay))
    until(lambda: "default/web-" in said(cluster), "no node says for which pods it waits", limit=180)
    assert len(left(cluster)) == 8
    # The agents are gone; the plugin keeps the DELs, and so the pods end.
    until(lambda: not cluster.get("pods", "-n", NAMESPACE), "the agents stay", limit=120)
    cluster.kubectl("delete", "deployment", "web")
    until(lambda: not cluster.get("pods", "-l", "app=web"), "the pods don't end", limit=180)
    finish(cluster, overlay)


def test_after_everything_was_deleted_at_once_and_with_pods_that_run_on(cluster, installed, overlay):
    """They keep their networks, and another plugin's configuration ends them."""
    names = start_pods(cluster, 2)
    with pytest.raises(KubectlError):  # held by finalizers that nobody takes off any more
        cluster.kubectl("delete", "--timeout=20s", "-k", str(installed.overlay), limit=60)
    for node in cluster.nodes.values():
        node.run("sh", "-c", f"echo '{json.dumps(ANOTHER)}' >/etc/cni/net.d/05-another.conflist")
    cluster.kubectl("apply", "-k", str(overlay))
    until(lambda: "default/web-" in said(cluster), "no node says for which pods it waits", limit=180)
    cluster.kubectl("set", "env", "-n", UNINSTALL, "daemonset/nodes", "FORCE=--force")
    finish(cluster, overlay)

    pods = cluster.get("pods", "-l", "app=web")
    assert sorted(names) == sorted(one["metadata"]["name"] for one in pods)
    for pod in pods:
        own = f"http://{pod['status']['podIP']}:8080/"
        assert pod["metadata"]["name"] in cluster.kubectl("exec", pod["metadata"]["name"], "--", "/web", "get", own)
    cluster.kubectl("delete", "deployment", "web")
    until(lambda: not cluster.get("pods", "-l", "app=web"), "the pods don't end", limit=120)
