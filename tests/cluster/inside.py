"""The first process of a node: makes the node's view of the machine, starts its services and starts them again.

    python inside.py NODE.json

It runs in namespaces of its own (mount, pid, uts, ipc, and the node's net); see node.py. All services are its children:
when it is killed, all of the node ends, as when the power fails. Standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

_TICK = 0.1
_CGROUPS = Path("/sys/fs/cgroup")


def main(file: str) -> None:
    """Be the node that the file describes, for ever."""
    node = json.loads(Path(file).read_text())
    folder = Path(node["folder"])
    socket.sethostname(node["name"])
    _mount_own(node, folder)
    _lay_out(node)
    os.environ["PATH"] = f"{node['path']}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    services = {name: _Service(name, command, folder) for name, command in node["services"].items()}
    services["containerd"].tend()
    _import_images(node, folder)
    while True:
        for service in services.values():
            service.tend()
        _take_up()
        time.sleep(_TICK)


class _Service:
    """A program that is started again when it has ended, unless a file says that it shall rest.

    Files in the node's folder, for whoever is outside: `NAME.log`, `NAME.pid` (in here), and `NAME.hold`, which is for
    him to make.
    """

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self._command = command
        self._log = folder / f"{name}.log"
        self._pid_file = folder / f"{name}.pid"
        self._hold = folder / f"{name}.hold"
        self._process: subprocess.Popen[bytes] | None = None

    def tend(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._process = None
            self._pid_file.unlink()
        if self._process is None and not self._hold.exists():
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            draft = self._pid_file.with_suffix(".draft")
            draft.write_text(str(self._process.pid))
            draft.rename(self._pid_file)


def _mount_own(node: dict, folder: Path) -> None:
    _run("mount", "--make-rprivate", "/")
    _run("mount", "-t", "proc", "proc", "/proc")
    # A new /sys is the one of this network namespace; it comes without the machine's control groups.
    aside = folder / "cgroups"
    aside.mkdir(exist_ok=True)
    _run("mount", "--rbind", str(_CGROUPS), str(aside))
    _run("mount", "-t", "sysfs", "sysfs", "/sys")
    _run("mount", "--rbind", str(aside), str(_CGROUPS))
    _run("umount", "--lazy", str(aside))
    # The kubelet sets what holds for the whole machine: let it find that done, and write to files.
    for name, value in node["machine_settings"].items():
        copy = folder / "settings" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(value + "\n")
        _run("mount", "--bind", str(copy), f"/proc/sys/{name}")
    # What is made or changed below these stays in the node, though it sees what the machine has there.
    for top in ("/etc", "/opt", "/var/lib", "/var/log"):
        upper, work = folder / f"changes{top}", folder / f"changes-work{top}"
        for made in (upper, work):
            made.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={top},upperdir={upper},workdir={work}", top)
    # These are on the machine's own file system: what containerd needs for its layers, and a database likes better.
    for path in node["own_folders"]:
        kept = Path(f"{folder}/own{path}")
        for made in (kept, Path(path)):
            made.mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", str(kept), path)
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    # Last: the kubelet wants a shared root, and earlier this would take back the unmounting above.
    _run("mount", "--make-rshared", "/")


def _lay_out(node: dict) -> None:
    Path("/run/lock").mkdir()
    Path("/run/netns").mkdir()
    for path in ("/opt/cni/bin", "/etc/cni/net.d", "/etc/kubernetes/manifests"):
        Path(path).mkdir(parents=True, exist_ok=True)
    for plugin in Path(node["cni_plugins"]).iterdir():
        shutil.copy(plugin, "/opt/cni/bin/")
    for name, content in node["files"].items():
        Path(name).write_text(content)


def _import_images(node: dict, folder: Path) -> None:
    """Give containerd the images, when it is there; after a reboot it has them."""
    done = folder / "imported"
    client = ["ctr", "--namespace", "k8s.io"]
    while subprocess.run([*client, "version"], capture_output=True, check=False).returncode != 0:
        time.sleep(_TICK)
    if not done.exists():
        for archive in node["images"]:
            _run(*client, "images", "import", archive)
        done.touch()


def _take_up() -> None:
    """Reap what orphans have left to the first process, and services (whose Popen bears that)."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)}: {ended.stderr}")


if __name__ == "__main__":
    main(sys.argv[1])
