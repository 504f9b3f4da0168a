"""A Kubernetes node: containerd, kubelet and kube-proxy in namespaces of their own, on default paths.

What a DaemonSet mounts of its host (/opt/cni/bin, /etc/cni/net.d, /run, /var/lib/…) is there, the node's own. The
machine gets nothing but control groups, and those go with the node.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.builder import cluster_programs
from cluster.images import PAUSE
from cluster.processes import Program, until_true
from nodes import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.control_plane import ApiServer
    from cluster.fabric import Place

__all__ = ["Node", "control_group_trees", "remove_control_group"]

_INSIDE = Path(__file__).with_name("inside.py")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_FOLDERS = (
    "/var/lib/allotment",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)
_CONTAINERD = "/run/containerd/containerd.sock"


class Node:
    """One node; `close` leaves nothing behind. It ends with the thread that starts it.

    `conflist` is what the node has in /etc/cni/net.d; empty: nothing, as where an agent's DaemonSet brings it.
    `images` are archives that its containerd gets. `control_group` is a name that nobody else uses.
    """

    def __init__(
        self,
        place: Place,
        api: ApiServer,
        folder: Path,
        *,
        control_group: str,
        conflist: str,
        plugins: Path,
        images: Sequence[Path],
    ) -> None:
        self.name = place.name
        self.place = place
        self.folder = folder
        folder.mkdir()
        self._api = api
        self._control_group = control_group
        self._conflist = conflist
        self._plugins = plugins
        self._images = images
        self._machine: Program | None = None

    def close(self) -> None:
        """Switch the node off, and remove its control groups and its folder."""
        self.kill()
        remove_control_group(self._control_group)
        shutil.rmtree(self.folder, ignore_errors=False)

    # -- its life

    def start(self) -> None:
        """Switch it on, with the disk as it was, and a boot ID of its own; wait for nothing."""
        remove_control_group(self._control_group)  # each that a dead container left costs the kubelet seconds
        self._make_control_groups()
        described = self.folder / "node.json"
        described.write_text(json.dumps(self._description()))
        spaces = ("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
        command = [*spaces, "--propagation", "private", sys.executable, "-I", _INSIDE, described]
        self._machine = Program(self.name, command, log=self.folder / "machine.log", within=self.place.within)

    def kill(self) -> None:
        """Switch it off, as when the power fails: its services, containers and namespaces end at once."""
        if self._machine is not None:
            first = self._first()
            self._machine.end(signal.SIGKILL)
            self._machine = None
            # The first process goes when all others in its pid namespace have gone.
            until(lambda: first is None or not Path(f"/proc/{first}").exists(), f"{self.name} goes on")
            for left in self.folder.glob("*.pid"):
                left.unlink()

    def reboot(self) -> None:
        """Switch it off and on; wait for nothing."""
        self.kill()
        self.start()

    def hold(self, service: str) -> None:
        """Kill `kubelet`, `containerd` or `kube-proxy`, and keep it from starting again until `release`."""
        (self.folder / f"{service}.hold").touch()
        pid = self._pid(service)
        self.run("kill", "-KILL", pid)
        until(lambda: self._pid_or_none(service) != pid, f"{service} of {self.name} goes on")

    def release(self, service: str) -> None:
        """Start it again after `hold`."""
        (self.folder / f"{service}.hold").unlink()
        until(lambda: self._pid_or_none(service) is not None, f"{service} of {self.name} does not start")

    def restart(self, service: str) -> None:
        """Kill it, and start it again."""
        self.hold(service)
        self.release(service)

    # -- looked into

    def run(self, *command: str, input: str | None = None, limit: float = 60.0) -> str:  # noqa: A002  # as in subprocess.run
        """What a command prints that runs in the node, as its root. Raises CalledProcessError."""
        return subprocess.run(
            [*self.command(), *command], input=input, capture_output=True, text=True, timeout=limit, check=True
        ).stdout

    def command(self) -> list[str]:
        """What goes before a command to run it in the node, until that is switched off."""
        first = self._first()
        assert first is not None, f"{self.name} is off"
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
        path = f"PATH={cluster_programs()}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return ["nsenter", "--target", first, *spaces, "--", "env", path]

    def load(self, archive: Path) -> None:
        """Give its containerd an image (an OCI or Docker archive)."""
        self.run("ctr", "--namespace", "k8s.io", "images", "import", str(archive))

    def containers(self, chosen: str) -> list[str]:
        """The IDs of those of its containers that run and that a filter of containerd's chooses, by their labels."""
        client = ("ctr", "--namespace", "k8s.io")
        found = self.run(*client, "containers", "list", "--quiet", chosen).split()
        tasks = [line.split() for line in self.run(*client, "tasks", "list").splitlines()]
        return [words[0] for words in tasks if words[0] in found and words[-1] == "RUNNING"]

    def log(self, service: str) -> str:
        """What `kubelet`, `containerd`, `kube-proxy` or the `machine` have said."""
        return (self.folder / f"{service}.log").read_text(errors="replace")

    def serves(self) -> bool:
        """Whether all its services have been started; fails when the node has ended by itself."""
        assert self._machine is not None
        assert self._machine.running, f"{self.name} has ended: {self._machine.tail()}"
        return self._pid_or_none("kubelet") is not None

    def _first(self) -> str | None:
        """The process that is the first in the node, as its number is outside."""
        if self._machine is None:
            return None
        with contextlib.suppress(FileNotFoundError):
            parent = self._machine.pid
            return next(iter(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()), None)
        return None

    def _pid(self, service: str) -> str:
        return until_true(lambda: self._pid_or_none(service), f"{service} of {self.name} does not run")

    def _pid_or_none(self, service: str) -> str | None:
        try:
            return (self.folder / f"{service}.pid").read_text()
        except FileNotFoundError:
            return None

    # -- how it is made

    def _description(self) -> dict:
        """What inside.py reads."""
        programs = cluster_programs()
        config, kubeconfig = "/etc/kubernetes", self._api.write_kubeconfig(self.name, self._api.node_token(self.name))
        kubelet = [
            str(programs / "kubelet"),
            f"--config={config}/kubelet.json",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.place.address},{self.place.address6}",
        ]
        files = {
            f"{config}/kubelet.json": json.dumps(self._kubelet()),
            f"{config}/kube-proxy.json": json.dumps(self._kube_proxy()),
            f"{config}/containerd.toml": _containerd(),
        }
        if self._conflist:
            files["/etc/cni/net.d/10-test.conflist"] = self._conflist
        return {
            "name": self.name,
            "folder": str(self.folder),
            "path": str(programs),
            "machine_settings": {
                "kernel/random/boot_id": str(uuid.uuid4()),
                "kernel/keys/root_maxbytes": "25000000",
                "kernel/keys/root_maxkeys": "1000000",
                "kernel/panic": "10",
                "kernel/panic_on_oops": "1",
                "vm/overcommit_memory": "1",
                "vm/panic_on_oom": "0",
            },
            "own_folders": _OWN_FOLDERS,
            "cni_plugins": str(self._plugins),
            "files": files,
            "images": [str(path) for path in self._images],
            "services": {
                "containerd": [str(programs / "containerd"), "--config", f"{config}/containerd.toml"],
                "kubelet": kubelet,
                "kube-proxy": [str(programs / "kube-proxy"), f"--config={config}/kube-proxy.json"],
            },
        }

    def _kubelet(self) -> dict:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.place.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._api.ca_file)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._control_group}",
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{_CONTAINERD}",
            "enforceNodeAllocatable": ["pods"],
            # A machine whose disk is full evicts nobody here, and the images, which have no registry, stay.
            "evictionHard": {"memory.available": "50Mi"}
            | {f"{disk}.{what}": "0%" for disk in ("nodefs", "imagefs") for what in ("available", "inodesFree")},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "failCgroupV1": False,
            "failSwapOn": False,
            "nodeStatusUpdateFrequency": "5s",
            "resolvConf": "/etc/resolv.conf",
            "serializeImagePulls": False,
            "staticPodPath": "/etc/kubernetes/manifests",
            "syncFrequency": "10s",
            "volumeStatsAggPeriod": "0s",
        }

    def _kube_proxy(self) -> dict:
        kubeconfig = self._api.write_kubeconfig("proxy", "proxy-token")
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "clusterCIDR": "10.244.0.0/16,fd00:244::/48",
            # What it would set holds for the whole machine and can't be set from here.
            "conntrack": {"maxPerCore": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
            "healthzBindAddress": "127.0.0.1:10256",
            "hostnameOverride": self.name,
            "metricsBindAddress": "127.0.0.1:10249",
            "mode": "nftables",
            "nftables": {"minSyncPeriod": "100ms", "syncPeriod": "10s"},
        }

    # -- control groups, of version 1 (a tree for each controller) or 2 (one tree)

    def _make_control_groups(self) -> None:
        for root in control_group_trees():
            group = root / self._control_group
            group.mkdir(exist_ok=True)
            if (root / "cgroup.subtree_control").exists():
                for holder in (root, group):
                    wanted = (holder / "cgroup.controllers").read_text().split()
                    (holder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
            elif (group / "cpuset.cpus").exists():  # empty in a new one, which then takes nobody
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (group / name).write_text((root / name).read_text())
                (group / "cgroup.clone_children").write_text("1")


def remove_control_group(name: str) -> None:
    """Remove a node's control groups, when all its processes are ending."""
    for group in [root / name for root in control_group_trees()]:
        until(lambda group=group: _removed(group), f"{group} stays")


def control_group_trees() -> list[Path]:
    """Where the machine's control groups begin: of version 2 one tree, of version 1 one for each controller."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _removed(group: Path) -> bool:
    """Remove a control group with all below; it is not there any more if that is True."""
    for below in sorted(group.rglob("*/"), reverse=True):
        with contextlib.suppress(OSError):  # somebody in it is just ending
            below.rmdir()
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def _containerd() -> str:
    """Its configuration; https://github.com/containerd/containerd/blob/main/docs/cri/config.md."""
    runc = shutil.which("runc", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    assert runc, "runc is missing: `make packages` installs it"
    return f"""
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{_CONTAINERD}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  pinned_images = {{ sandbox = "{PAUSE}" }}
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true  # whoever lacks CAP_SYS_RESOURCE can lower nobody's score
  cni = {{ bin_dirs = ["/opt/cni/bin"], conf_dir = "/etc/cni/net.d" }}
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    options = {{ BinaryName = "{runc}", SystemdCgroup = false }}
"""
