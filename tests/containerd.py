"""A real containerd, with all that it needs; see real_runtime.py."""

import shutil
import subprocess

from agents import PATIENCE
from pause_image import PAUSE, archive
from real_runtime import NODE, RealRuntime

__all__ = ["NODE", "Containerd", "is_there"]

_CONFIG = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{folder}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/net.d"
"""


def is_there():
    """Whether the programs are installed."""
    return all(map(shutil.which, ("containerd", "runc", "ctr", "cc", "unshare")))


class Containerd(RealRuntime):
    """A context manager."""

    def prepare(self):
        config = _CONFIG.format(folder=self.folder, image=PAUSE, plugins=self.plugins)
        (self.folder / "config.toml").write_text(config)

    def command(self):
        return f"exec containerd --config {self.folder}/config.toml"

    def is_up(self):
        return self._ctr("version", check=False).returncode == 0

    def start(self):
        super().start()
        image = self.folder / "pause.tar"
        image.write_bytes(archive())
        self._ctr("images", "import", str(image))

    def _ctr(self, *words, check=True):
        command = ["ctr", "--address", str(self.runtime.socket), "--namespace", "k8s.io", *words]
        return subprocess.run(command, check=check, capture_output=True, timeout=PATIENCE)
