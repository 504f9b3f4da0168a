"""A real CRI-O, with all that it needs; see real_runtime.py."""

import json
import shutil
import socket
import sys
from pathlib import Path

from crio.build import conmon, programs
from pause_image import blobs
from real_runtime import NODE, RealRuntime

__all__ = ["NODE", "Crio", "is_there"]

_PORT = 5000
_CONFIG = """
[crio]
root = "{folder}/root"
runroot = "{folder}/runroot"
storage_driver = "vfs"
log_dir = "{folder}/logs"
version_file = "{folder}/version"
version_file_persist = "{folder}/version-persist"
clean_shutdown_file = "{folder}/clean"
internal_wipe = false
[crio.api]
listen = "{folder}/c.sock"
[crio.runtime]
conmon = "{conmon}"
conmon_cgroup = "pod"
cgroup_manager = "cgroupfs"
pinns_path = "{programs}/pinns"
default_runtime = "runc"
apparmor_profile = "unconfined"
seccomp_profile = ""
hooks_dir = ["{folder}/hooks"]
container_exits_dir = "{folder}/exits"
container_attach_socket_dir = "{folder}/attach"
[crio.runtime.runtimes.runc]
runtime_path = "{runc}"
runtime_root = "{folder}/runc"
monitor_path = "{conmon}"
[crio.image]
pause_image = "127.0.0.1:{port}/pause:1"
signature_policy = "{folder}/policy.json"
[crio.network]
network_dir = "{folder}/net.d"
plugin_dirs = ["{plugins}"]
[crio.nri]
enable_nri = false
"""
_REGISTRIES = """
unqualified-search-registries = []
[[registry]]
location = "127.0.0.1:{port}"
insecure = true
"""
_STORAGE = """
[storage]
driver = "vfs"
graphroot = "{folder}/root"
runroot = "{folder}/runroot"
"""


def is_there():
    """Whether what it is built with, and needs besides, is installed."""
    return all(map(shutil.which, ("runc", "cc", "unshare", "ip", "go")))


class Crio(RealRuntime):
    """A context manager. Raises BuildError where it can't be built."""

    def prepare(self):
        words = {
            "folder": self.folder,
            "plugins": self.plugins,
            "programs": programs(),
            "conmon": conmon(),
            "runc": shutil.which("runc"),
            "port": _PORT,
        }
        for name, text in (("crio.conf", _CONFIG), ("registries.conf", _REGISTRIES), ("storage.conf", _STORAGE)):
            (self.folder / name).write_text(text.format(**words))
        (self.folder / "policy.json").write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        images = self.folder / "images"
        images.mkdir()
        found, manifest = blobs()
        for digest, content in found.items():
            (images / digest).write_bytes(content)
        (images / "manifest").write_text(manifest)
        self._environment |= {
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    def command(self):
        registry = f"{sys.executable} {Path(__file__).with_name('registry.py')} {self.folder}/images {_PORT}"
        crio = f"{programs()}/crio --config {self.folder}/crio.conf --config-dir {self.folder}/none"
        return f"ip link set lo up && {{ {registry} & exec {crio}; }}"

    def is_up(self):
        with socket.socket(socket.AF_UNIX) as caller:
            return caller.connect_ex(str(self.runtime.socket)) == 0
