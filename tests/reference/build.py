"""Builds, once, the programs of others beside which we are tested: `PYTHONPATH=tests python -m reference.build`.

- the reference plugins (host-local, ptp, bridge, macvlan, portmap, loopback, tuning) and `cnitool`, from Go modules at
  the versions that go.mod pins;
- `cnidriver`, our own small program on libcni, which does what a container runtime does;
- Debian's older plugins (`containernetworking-plugins`), through apt where they are missing.

What is built goes into `~/.cache/allotment/reference-<hash>`, see golang.py. Standard library alone: this runs before
anything is installed.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from golang import built
from keeping import BuildError, run, say

if TYPE_CHECKING:
    from golang import Go

__all__ = ["cnidriver", "cnitool", "debian_plugins", "reference_plugins"]

HERE = Path(__file__).resolve().parent
DEBIAN_PACKAGE = "containernetworking-plugins"
DEBIAN_FOLDER = Path("/usr/lib/cni")

_PLUGINS = "github.com/containernetworking/plugins/plugins"
TARGETS = {
    "plugins/host-local": f"{_PLUGINS}/ipam/host-local",
    "plugins/ptp": f"{_PLUGINS}/main/ptp",
    "plugins/bridge": f"{_PLUGINS}/main/bridge",
    "plugins/macvlan": f"{_PLUGINS}/main/macvlan",
    "plugins/loopback": f"{_PLUGINS}/main/loopback",
    "plugins/portmap": f"{_PLUGINS}/meta/portmap",
    "plugins/tuning": f"{_PLUGINS}/meta/tuning",
    "tools/cnitool": "github.com/containernetworking/cni/cnitool",
    "tools/cnidriver": "./cnidriver",
}


def reference_plugins() -> Path:
    """The folder of the reference plugins, as for CNI_PATH."""
    return _built() / "plugins"


def cnitool() -> Path:
    """The CNI project's command-line tool."""
    return _built() / "tools" / "cnitool"


def cnidriver() -> Path:
    """Our program on libcni; see cnidriver/main.go for its arguments."""
    return _built() / "tools" / "cnidriver"


def debian_plugins() -> Path:
    """The folder of Debian's plugins (1.1.1 in Debian 12), installed when they are missing and we are root."""
    if (DEBIAN_FOLDER / "ptp").exists():
        return DEBIAN_FOLDER
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BuildError(f"{DEBIAN_FOLDER}/ptp is missing; install the package {DEBIAN_PACKAGE}")
    say(f"installing {DEBIAN_PACKAGE}")
    install = ["apt-get", "install", "-qy", "--no-install-recommends", DEBIAN_PACKAGE]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(install, env=env, stdout=sys.stderr, check=False).returncode != 0:
        run(["apt-get", "update", "-q"], env)
        run(install, env)
    if not (DEBIAN_FOLDER / "ptp").exists():
        raise BuildError(f"{DEBIAN_PACKAGE} is installed, but {DEBIAN_FOLDER}/ptp is missing")
    return DEBIAN_FOLDER


@functools.cache
def _built() -> Path:
    return built("reference", sources=[*HERE.glob("go.*"), *HERE.glob("**/*.go")], make=_build)


def _build(go: Go, folder: Path) -> None:
    for number, (name, package) in enumerate(TARGETS.items(), start=1):
        say(f"building {name} ({number} of {len(TARGETS)})")
        go.build([package], folder / name, module=HERE)


if __name__ == "__main__":
    try:
        for made in (reference_plugins(), cnidriver(), cnitool(), debian_plugins()):
            print(made)
    except BuildError as error:
        sys.exit(f"build: {error}")
