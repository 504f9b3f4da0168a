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

from golang import cache, say

__all__ = ["AGENT", "agent_image"]

ROOT = Path(__file__).resolve().parents[2]
AGENT = "allotment.test/agent:1"
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
        digest = hashlib.sha256(
            wheel.read_bytes() + (ROOT / "daemonset" / "Containerfile").read_bytes() + _PACKAGES.encode()
        )
        archive = cache() / f"agent-image-{digest.hexdigest()[:16]}.tar"
        if not archive.exists():
            for old in cache().glob("agent-image-*.tar"):
                old.unlink()
            _build(work, archive)
    return archive


def _wheel(folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(ROOT),
    ]
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
    _buildah(work, "build", *options, "-t", AGENT, "-f", str(ROOT / "daemonset" / "Containerfile"), str(work))
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    _buildah(work, "push", AGENT, f"docker-archive:{part}:{AGENT}")
    part.rename(archive)


def _base() -> Path:
    """A small Debian with Python, as an archive."""
    archive = cache() / f"debian-{hashlib.sha256(_PACKAGES.encode()).hexdigest()[:16]}.tar"
    if not archive.exists():
        say("making a Debian base (about 180 MB)")
        part = archive.with_suffix(".part.tar")
        left_out = [f"--dpkgopt=path-exclude={pattern}" for pattern in _WITHOUT]
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={_PACKAGES}",
            *left_out,
            "bookworm",
            str(part),
        ]
        subprocess.run(["nice", *command], check=True, stdout=sys.stderr)
        part.rename(archive)
    return archive


def _buildah(work: Path, verb: str, *words: str) -> None:
    options = ["--isolation", "chroot"] if verb == "build" else []
    subprocess.run(
        ["nice", "buildah", verb, "--quiet", *options, *words],
        check=True,
        stdout=sys.stderr,
        env={**os.environ, "CONTAINERS_STORAGE_CONF": str(work / "storage.conf")},
    )
