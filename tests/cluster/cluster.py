"""A whole Kubernetes cluster on this machine: control plane and nodes, each in namespaces of its own.

    with Cluster() as cluster:
        cluster.kubectl("run", "web", f"--image={WEB}", "--image-pull-policy=Never")

It is up in about ten seconds once its programs are built. Needs root, and what `.ci/packages` installs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cluster.builder import api_server_programs, cluster_programs
from cluster.control_plane import ControlPlane, KubectlError
from cluster.fabric import Fabric
from cluster.images import pod_images
from cluster.node import Node, remove_control_group
from cluster.processes import until_true
from reference.build import reference_plugins

if TYPE_CHECKING:
    from cluster.fabric import Place

__all__ = ["Cluster", "remove_leavings"]


class Cluster:
    """A cluster with nodes of these names; a context manager that leaves nothing behind, and ends with our thread.

    `pod_network`: whether the reference plugins (ptp, host-local) give the pods addresses. Without that the nodes get
    ready only once somebody else brings a CNI configuration. `leavings` is a file for `remove_leavings`.
    """

    def __init__(self, *nodes: str, pod_network: bool = True, leavings: Path | None = None) -> None:
        plugins, images = self.prepare()
        with contextlib.ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="al-cluster-"))
            stack.callback(shutil.rmtree, self.folder)
            self.fabric = fabric = Fabric(nodes or ("n1", "n2"))
            stack.callback(fabric.close)
            groups = {name: f"{self.folder.name}-{name}" for name in fabric.nodes}
            self._control_plane = ControlPlane(fabric.control_plane)
            stack.callback(self._control_plane.close)
            self.api = self._control_plane.api
            self.kubectl = self.api.kubectl
            if leavings is not None:
                folders = [str(folder) for folder in (self.folder, self.api.folder, fabric.folder)]
                left = {"folders": folders, "namespaces": str(fabric.folder), "groups": list(groups.values())}
                leavings.write_text(json.dumps(left))
            self.nodes: dict[str, Node] = {}
            for name, place in fabric.nodes.items():
                self.nodes[name] = Node(
                    place,
                    self.api,
                    self.folder / name,
                    control_group=groups[name],
                    conflist=_conflist(place) if pod_network else "",
                    plugins=plugins,
                    images=images,
                )
                stack.callback(self.nodes[name].close)
                self.nodes[name].start()
            self._until_up(ready=pod_network)
            self._stack = stack.pop_all()

    @staticmethod
    def prepare() -> tuple[Path, list[Path]]:
        """Build what a cluster is made of, where that is not done; its CNI plugins and images. Raises BuildError."""
        api_server_programs()
        cluster_programs()
        return reference_plugins(), pod_images()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything, and remove what it has made."""
        self._stack.close()

    def load(self, archive: Path) -> None:
        """Give all nodes an image (an OCI or Docker archive)."""
        for node in self.nodes.values():
            node.load(archive)

    def ready(self, node: str) -> bool:
        """Whether the control plane takes the node for ready."""
        status, body = self.api.request("GET", f"/api/v1/nodes/{node}")
        if status != 200:
            return False
        conditions = {one["type"]: one["status"] for one in body["status"].get("conditions", ())}
        return conditions.get("Ready") == "True"

    def get(self, kind: str, *words: str) -> list[dict]:
        """The objects of a kind, as kubectl finds them; such as `get("pods", "--all-namespaces")`."""
        return json.loads(self.kubectl("get", kind, "--output=json", *words))["items"]

    def _until_up(self, *, ready: bool) -> None:
        for node in self.nodes.values():
            until_true(
                lambda node=node: node.serves() and self._joined(node.name, ready=ready), f"{node.name} is not up"
            )
        until_true(self._has_account, "there is no ServiceAccount, without which nobody can make a pod")

    def _joined(self, name: str, *, ready: bool) -> bool:
        return self.ready(name) if ready else self.api.request("GET", f"/api/v1/nodes/{name}")[0] == 200

    def _has_account(self) -> bool:
        try:
            return bool(self.kubectl("get", "serviceaccount", "default"))
        except KubectlError:
            return False


def remove_leavings(file: Path) -> None:
    """Remove what a cluster has left whose process was killed; its own processes ended with it."""
    if not file.exists():
        return
    left = json.loads(file.read_text())
    for name in left["groups"]:
        remove_control_group(name)
    with contextlib.suppress(FileNotFoundError):
        for netns in Path(left["namespaces"]).iterdir():
            subprocess.run(["umount", "--lazy", netns], stderr=subprocess.DEVNULL, check=False)
    for folder in left["folders"]:
        shutil.rmtree(folder, ignore_errors=True)
    file.unlink()


def _conflist(place: Place) -> str:
    ranges = [[{"subnet": subnet}] for subnet in place.pods]
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    ptp = {"type": "ptp", "mtu": 1400, "ipam": {"type": "host-local", "ranges": ranges, "routes": routes}}
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "test", "plugins": [ptp, portmap]})
