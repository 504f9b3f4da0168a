"""Builds the shim for both architectures into the package: as hatchling's build hook, or as `python shim/build.py`.

zig (PyPI package `ziglang`) is a C compiler and a musl for every architecture in one wheel, so that neither a cross
compiler nor a libc has to be there. ALLOTMENT_SHIM_CC names another compiler for this machine's architecture, and
ALLOTMENT_SHIM_CC_X86_64 and ALLOTMENT_SHIM_CC_AARCH64 for the one they name (`musl-gcc`, `aarch64-linux-gnu-gcc`).
A binary whose sources, flags and compiler have not changed, and which is as it was built, is not built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, where only a compiler is needed
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "shim" / "main.c"
TARGET = ROOT / "agent" / "allotment" / "_shim"
STAMPS = ROOT / "build" / "shim.json"
ARCHITECTURES = ("x86_64", "aarch64")
LIMIT = 64 * 1024  # bytes; with a libc other than musl it cannot be held, and is not asked for
FLAGS = (
    "-std=c11",
    "-Os",
    "-static",
    "-s",
    "-ffunction-sections",
    "-fdata-sections",
    "-Wl,--gc-sections",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wconversion",
    "-Wshadow",
)


class BuildError(Exception):
    """The compiler is missing, has refused, or made something too large."""


def build(*, quiet: bool = False) -> list[Path]:
    """Build what is not up to date. Returns the binaries; an architecture nobody can compile for is left out.

    Raises:
        BuildError: the source does not compile, or there is no compiler at all.
    """
    stamps = _read_stamps()
    built = []
    for architecture in ARCHITECTURES:
        compiler = _compiler(architecture)
        if compiler is None:
            print(f"shim for {architecture} not built: install ziglang, or name a compiler", file=sys.stderr)
            continue
        binary = TARGET / f"allotment-{architecture}"
        command = [*compiler, *FLAGS, f'-DALLOTMENT_VERSION="{_version()}"']
        # Not which interpreter runs zig: an isolated build brings one at another path each time.
        lasting = command[command.index("cc") :] if _is_zig(compiler) else command
        inputs = _hash(SOURCE.read_bytes(), "\0".join(lasting).encode(), _describe(compiler))
        if stamps.get(architecture) != [inputs, _hash_of(binary)]:
            _compile(command, binary, small=_is_zig(compiler) or "musl" in compiler[0])
            stamps[architecture] = [inputs, _hash_of(binary)]
            _replace(STAMPS, json.dumps(stamps).encode())
        elif not quiet:
            print(f"{binary.name} is up to date", file=sys.stderr)
        built.append(binary)
    if not built:
        raise BuildError("no compiler: install ziglang, or set ALLOTMENT_SHIM_CC")
    return built


def _compiler(architecture: str) -> list[str] | None:
    named = os.environ.get(f"ALLOTMENT_SHIM_CC_{architecture.upper()}")
    if not named and architecture == platform.machine():
        named = os.environ.get("ALLOTMENT_SHIM_CC")
    if named:
        return shlex.split(named)
    try:
        import ziglang  # noqa: F401, PLC0415  # asked for only where it is needed
    except ImportError:
        return None
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-musl"]


def _is_zig(compiler: list[str]) -> bool:
    return compiler[1:3] == ["-m", "ziglang"]


def _describe(compiler: list[str]) -> bytes:
    """Something that changes when the compiler does."""
    if _is_zig(compiler):
        from importlib.metadata import version  # noqa: PLC0415  # only where zig is the compiler

        return version("ziglang").encode()
    path = shutil.which(compiler[0])
    if path is None:
        raise BuildError(f"the compiler {compiler[0]} is not to be found")
    return subprocess.run([path, "--version"], check=False, capture_output=True).stdout


def _compile(command: list[str], binary: Path, *, small: bool) -> None:
    binary.parent.mkdir(parents=True, exist_ok=True)
    temporary = binary.with_name(f".{binary.name}.{os.getpid()}")
    try:
        # The name is given relative to the root, so that the result is the same wherever the tree lies.
        source = str(SOURCE.relative_to(ROOT))
        done = subprocess.run([*command, "-o", str(temporary), source], cwd=ROOT, check=False, capture_output=True)
        if done.returncode:
            raise BuildError(f"{shlex.join(command)} failed:\n{done.stderr.decode(errors='replace')}")
        if small and temporary.stat().st_size > LIMIT:
            raise BuildError(f"{binary.name} has {temporary.stat().st_size} bytes; {LIMIT} are allowed")
        temporary.chmod(0o755)
        temporary.rename(binary)
    finally:
        temporary.unlink(missing_ok=True)


def _version() -> str:
    text = (ROOT / "agent" / "allotment" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__\s*=\s*"([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise BuildError("agent/allotment/__init__.py names no __version__")
    return found[1]


def _read_stamps() -> dict[str, Any]:
    try:
        stamps = json.loads(STAMPS.read_bytes())
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _hash_of(path: Path) -> str:
    try:
        return _hash(path.read_bytes())
    except OSError:
        return ""


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.rename(path)


class ShimBuildHook(BuildHookInterface):
    """What hatchling runs before it gathers a wheel's files, also for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build; a source distribution carries the source instead."""
        if self.target_name == "wheel":
            build(quiet=True)


if __name__ == "__main__":
    try:
        for path in build():
            print(f"{path.relative_to(ROOT)}  {path.stat().st_size} bytes")
    except BuildError as error:
        sys.exit(str(error))
