"""Builds CRI-O, once, and what it calls: `PYTHONPATH=tests python -m crio.build`.

CRI-O and `pinns`, which makes its namespaces, come from the Go module that go.mod pins; `conmon` is Debian's, fetched
into the cache where it isn't installed. It takes some minutes, and a C compiler: CRI-O doesn't build without cgo.
Standard library alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from golang import built
from keeping import BuildError, kept, run

if TYPE_CHECKING:
    from golang import Go

__all__ = ["conmon", "programs"]

HERE = Path(__file__).resolve().parent
MODULE = "github.com/cri-o/cri-o"
# Without the C libraries of what the tests don't use: signatures by GPG, and other file systems.
TAGS = ("containers_image_openpgp", "exclude_graphdriver_btrfs", "exclude_graphdriver_devicemapper")


def programs() -> Path:
    """The folder of `crio` and `pinns`. Raises BuildError."""
    return built("crio", sources=[*HERE.glob("go.*")], more=" ".join(TAGS), make=_build)


def conmon() -> Path:
    """The program that watches CRI-O's containers. Raises BuildError."""
    if found := shutil.which("conmon"):
        return Path(found)
    if shutil.which("apt-get") is None:
        raise BuildError("conmon is missing; install the package of that name")
    return kept("conmon", "debian", _fetch) / "usr" / "bin" / "conmon"


def _build(go: Go, folder: Path) -> None:
    go.build([f"{MODULE}/cmd/crio"], folder / "crio", module=HERE, tags=TAGS, cgo=True)
    sources = sorted((go.folder_of(MODULE, module=HERE) / "pinns" / "src").glob("*.c"))
    run(["cc", "-std=gnu99", "-Os", "-o", str(folder / "pinns"), *map(str, sources)], dict(os.environ))


def _fetch(folder: Path) -> None:
    package = folder / "package"
    package.mkdir()
    run(["apt-get", "download", "-q", "conmon"], dict(os.environ), package)
    for file in package.iterdir():
        run(["dpkg", "-x", str(file), str(folder)], dict(os.environ))
        file.unlink()
    program = folder / "usr" / "bin" / "conmon"
    if subprocess.run([program, "--version"], capture_output=True, check=False).returncode != 0:
        raise BuildError("Debian's conmon doesn't run here; install the package with what it depends on")


if __name__ == "__main__":
    try:
        print(programs(), conmon())
    except BuildError as error:
        sys.exit(f"build: {error}")
