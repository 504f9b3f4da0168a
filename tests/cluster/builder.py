"""Builds Kubernetes, etcd and containerd from Go modules, once: `PYTHONPATH=tests python -m cluster.builder`.

Versions are pinned by the go.mod and go.sum of `kubernetes/`, `etcd/` and `containerd/`. The API server comes apart
from the rest, since the quick tests need it alone; Go's own cache makes the rest cheaper once it has built the former.
"""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from golang import built
from keeping import BuildError, say

if TYPE_CHECKING:
    from golang import Go

__all__ = ["api_server_programs", "cluster_programs"]

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class _Module:
    """A folder with go.mod and go.sum, the module it is about, and the Go variable that holds its version, if any."""

    folder: str
    name: str
    version_variable: str = ""

    @property
    def files(self) -> list[Path]:
        return [HERE / self.folder / "go.mod", HERE / self.folder / "go.sum"]

    @property
    def version(self) -> str:
        found = re.search(rf"^\s*(?:require )?{re.escape(self.name)} (v\S+)", self.files[0].read_text(), re.MULTILINE)
        return found[1]


@dataclass(frozen=True)
class _Part:
    """Commands of a module, by their path below it; `program` names the only one where its path does not."""

    module: _Module
    commands: tuple[str, ...]
    program: str = ""

    def build(self, go: Go, folder: Path) -> None:
        variables = {self.module.version_variable: self.module.version} if self.module.version_variable else {}
        packages = [f"{self.module.name}{command}" for command in self.commands]
        go.build(packages, folder / self.program, module=HERE / self.module.folder, variables=variables)


_KUBERNETES = _Module("kubernetes", "k8s.io/kubernetes", "k8s.io/component-base/version.gitVersion")
_ETCD = _Module("etcd", "go.etcd.io/etcd/server/v3")
_CONTAINERD = _Module(
    "containerd", "github.com/containerd/containerd/v2", "github.com/containerd/containerd/v2/version.Version"
)

_API_SERVER = (
    _Part(_ETCD, ("",), program="etcd"),
    _Part(_KUBERNETES, ("/cmd/kube-apiserver", "/cmd/kubectl")),
)
_CLUSTER = (
    _Part(_KUBERNETES, ("/cmd/kube-controller-manager", "/cmd/kube-scheduler", "/cmd/kubelet", "/cmd/kube-proxy")),
    _Part(_CONTAINERD, ("/cmd/containerd", "/cmd/containerd-shim-runc-v2", "/cmd/ctr")),
)


@functools.cache
def api_server_programs() -> Path:
    """The folder with etcd, kube-apiserver and kubectl. The first time takes minutes. Raises BuildError."""
    return _programs("api-server", _API_SERVER)


@functools.cache
def cluster_programs() -> Path:
    """The folder with what else a cluster consists of, from the controller manager to containerd. Raises BuildError."""
    return _programs("cluster", _CLUSTER)


def _programs(name: str, parts: tuple[_Part, ...]) -> Path:
    def make(go: Go, folder: Path) -> None:
        for part in parts:
            say(f"building {part.module.name} {part.module.version} for {name}, once; it takes minutes")
            part.build(go, folder)

    return built(name, sources=[file for part in parts for file in part.module.files], more=repr(parts), make=make)


if __name__ == "__main__":
    try:
        for made in (api_server_programs(), cluster_programs()):
            print(made)
    except BuildError as error:
        sys.exit(f"build: {error}")
