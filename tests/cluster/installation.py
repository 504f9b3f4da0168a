"""Allotment on a test cluster, as `kubectl apply -k daemonset` installs it; and the controller's part, by hand."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.access import KubectlError
from cluster.agent_image import AGENT, agent_image
from kube.cluster_agent import allocation, network
from nodes import until

if TYPE_CHECKING:
    from cluster.cluster import Cluster

__all__ = ["NETWORK", "Installation"]

DAEMONSET = Path(__file__).resolve().parents[2] / "daemonset"
NAMESPACE = "allotment-system"
NETWORK = "default"

_BOOT_ID = {
    "op": "add",
    "path": "/spec/template/spec/containers/0/env/-",
    # The nodes of a test cluster share a kernel; the boot ID of each is a file that is mounted over the kernel's.
    "value": {"name": "ALLOTMENT_BOOT_ID_FILE", "value": "/host/boot_id"},
}
_BOOT_ID_MOUNT = {
    "op": "add",
    "path": "/spec/template/spec/containers/0/volumeMounts/-",
    "value": {"name": "boot-id", "mountPath": "/host/boot_id", "readOnly": True},
}
_BOOT_ID_VOLUME = {
    "op": "add",
    "path": "/spec/template/spec/volumes/-",
    "value": {"name": "boot-id", "hostPath": {"path": "/proc/sys/kernel/random/boot_id", "type": "File"}},
}


_READY = 240.0
"""Seconds until all nodes have to be ready."""


class Installation:
    """The agents of a cluster, and one network whose blocks the nodes have; `blocks` are by node.

    The network has IPv4 10.81.0.0/16 in blocks of 256 addresses; with `dual` also IPv6 fd00:81::/96, in blocks of 2^16.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, blocks: dict[str, tuple[str, ...]], *, dual: bool = False
    ) -> None:
        self.cluster = cluster
        self.blocks = blocks
        cluster.load(agent_image())
        self.overlay = folder / "overlay"
        self.overlay.mkdir()
        # kustomize takes no absolute paths, and nothing that lies above.
        (self.overlay / "daemonset").symlink_to(DAEMONSET)
        name, tag = AGENT.rsplit(":", 1)
        content = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": ["daemonset"],
            "images": [{"name": "allotment", "newName": name, "newTag": tag}],
            "patches": [
                {
                    "target": {"kind": "DaemonSet"},
                    "patch": json.dumps([_BOOT_ID, _BOOT_ID_MOUNT, _BOOT_ID_VOLUME]),
                }
            ],
        }
        (self.overlay / "kustomization.yaml").write_text(json.dumps(content))
        cluster.kubectl("apply", "--server-side", "-k", str(self.overlay))
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        subnets = [{"cidr": "10.81.0.0/16", "hostPrefixLength": 24}]
        if dual:
            subnets.append({"cidr": "fd00:81::/96", "hostPrefixLength": 112})
        self.make(network(NETWORK, subnets=subnets))
        [self.network] = [one for one in cluster.get("networks") if one["metadata"]["name"] == NETWORK]
        for node, cidrs in blocks.items():
            self.make(allocation(self.network, node, *cidrs))
        # A node is ready once its runtime finds a configuration, which goes in once the agent can give addresses.
        until(lambda: all(map(cluster.ready, blocks)), "the nodes don't get ready", limit=_READY)

    def make(self, item: dict) -> None:
        """Have the API server have an object."""
        # A kind that was just made answers 404 and 429 for a moment.
        until(lambda: self._made(item), f"{item['kind']} {item['metadata']['name']} can't be made")

    def _made(self, item: dict) -> bool:
        try:
            self.cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(item))
        except KubectlError:
            return False
        return True

    def agent(self, node: str) -> str:
        """The name of the node's agent pod."""
        [pod] = [
            one["metadata"]["name"]
            for one in self.cluster.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent")
            if one["spec"]["nodeName"] == node and "deletionTimestamp" not in one["metadata"]
        ]
        return pod

    def ask(self, node: str, *words: str) -> str:
        """What `allotment …` prints in the node's agent pod."""
        return self.cluster.kubectl("exec", "-n", NAMESPACE, self.agent(node), "-c", "agent", "--", "allotment", *words)

    def ask_here(self, node: str, *words: str) -> str:
        """The same by way of the node's runtime, which works without an API server. Raises CalledProcessError."""
        machine = self.cluster.nodes[node]
        agents = machine.containers('labels."io.kubernetes.container.name"==agent')
        command = ("ctr", "--namespace", "k8s.io", "tasks", "exec", "--exec-id", uuid.uuid4().hex)
        return machine.run(*command, *agents, "allotment", *words)

    def held(self, node: str, *, here: bool = False) -> list[dict]:
        """The leases of a node's ledger, as `allotment leases` tells them; with `here` as `ask_here` does."""
        ask = self.ask_here if here else self.ask
        return json.loads(ask(node, "leases", "-o", "json"))
