"""The image of the agent, built from `daemonset/Containerfile` on a Debian base that needs no container registry."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from keeping import kept, latest_kept, say

__all__ = ["AGENT", "agent_image"]

ROOT = Path(__file__).resolve().parents[2]
AGENT = "allotment.test/agent:1"
_CONTAINERFILE = ROOT / "daemonset" / "Containerfile"
_ARCHIVE = "image.tar"
_BASE = "allotment.test/base:1"
_PACKAGES = "python3,python3-venv,ca-certificates"
_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
_WITHOUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")


@functools.cache
def agent_image() -> Path:
    """The image's archive, of the sources as they are; the same sources are built once. Takes a minute or two."""
    with tempfile.TemporaryDirectory(prefix="al-image-") as name:
        work = Path(name)
        wheel = _wheel(work / "dist")
        digest = _digest(wheel.read_bytes(), _CONTAINERFILE.read_bytes(), _PACKAGES.encode())
        # Hundreds of megabytes each.
        folder = latest_kept("agent-image", digest, lambda folder: _build(work, folder / _ARCHIVE))
    return folder / _ARCHIVE


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _wheel(folder: Path) -> Path:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    [wheel] = folder.glob("allotment-*.whl")
    return wheel


def _build(work: Path, archive: Path) -> None:
    """Build in a folder that holds `dist/`, with buildah's store in it."""
    shutil.copy(_base(), work / "base.tar")
    (work / "base").write_text("FROM scratch\nADD base.tar /\n")
    (work / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{work}/store"\nrunroot = "{work}/run"\n', encoding="utf-8"
    )
    say("building the agent's image")
    _buildah(work, "build", "-t", _BASE, "-f", str(work / "base"), str(work))
    options = ("--build-arg", f"BASE={_BASE}", "--volume", f"{_AUTHORITIES}:{_AUTHORITIES}:ro")
    _buildah(work, "build", *options, "-t", AGENT, "-f", str(_CONTAINERFILE), str(work))
    _buildah(work, "push", AGENT, f"docker-archive:{archive}:{AGENT}")


def _base() -> Path:
    """A small Debian with Python, as an archive."""
    return kept("debian", _digest(_PACKAGES.encode()), _bootstrap) / _ARCHIVE


def _bootstrap(folder: Path) -> None:
    say("making a Debian base (about 180 MB)")
    options = [f"--include={_PACKAGES}", *(f"--dpkgopt=path-exclude={pattern}" for pattern in _WITHOUT)]
    command = ["nice", "mmdebstrap", "--quiet", "--variant=minbase", *options, "bookworm", str(folder / _ARCHIVE)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def _buildah(work: Path, verb: str, *words: str) -> None:
    options = ["--isolation", "chroot"] if verb == "build" else []
    subprocess.run(
        ["nice", "buildah", verb, "--quiet", *options, *words],
        check=True,
        stdout=sys.stderr,
        env={**os.environ, "CONTAINERS_STORAGE_CONF": str(work / "storage.conf")},
    )
