"""The small C programs of the benchmarks, built when they are first needed and kept in the user's cache."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

__all__ = ["cache_folder", "namespace", "nothing", "spawn", "timed"]

_HERE = Path(__file__).parent
# As the shim is built, so that the floor is one that it could reach.
_FLAGS = ("-std=gnu11", "-O2", "-static", "-s", "-Wall", "-Wextra", "-Werror")


def cache_folder() -> Path:
    """Where built programs are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "allotment"


def spawn() -> Path:
    """The load driver."""
    return _built("spawn")


def namespace() -> Path:
    """The holder of a network namespace, which ends with this process."""
    return _built("namespace")


def nothing() -> Path:
    """A static binary that does nothing: the floor under every plugin."""
    return _built("nothing")


def timed() -> Path:
    """What runs a CNI plugin and writes down how long that took."""
    return _built("timed")


@functools.cache
def _built(name: str) -> Path:
    source = _HERE / f"{name}.c"
    flags = (*_FLAGS, "-target", f"{platform.machine()}-linux-musl")
    key = hashlib.sha256(b"\0".join([source.read_bytes(), " ".join(flags).encode()])).hexdigest()[:16]
    binary = cache_folder() / "bench" / f"{name}-{key}"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        fresh = binary.with_name(f".{binary.name}.{os.getpid()}")
        command = [sys.executable, "-m", "ziglang", "cc", *flags, "-o", str(fresh), str(source)]
        subprocess.run(command, check=True)
        fresh.rename(binary)
    return binary
