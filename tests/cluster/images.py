"""Small container images, made without a registry and without any container tool.

`pause` keeps a pod's namespaces, as every pod needs. `web` (images/web.go) is a web server and client for pods.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from golang import built
from keeping import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from golang import Go

__all__ = ["PAUSE", "WEB", "image", "pod_images"]

PAUSE = "allotment.test/pause:1"
WEB = "allotment.test/web:1"
_HERE = Path(__file__).resolve().parent / "images"
_OCI = "application/vnd.oci.image"


@functools.cache
def pod_images() -> list[Path]:
    """The archives of both images."""
    folder = built("images", sources=[*_HERE.iterdir(), Path(__file__)], make=_build)
    return sorted(folder.glob("*.tar"))


def image(name: str, entrypoint: list[str], files: Mapping[str, bytes]) -> bytes:
    """An archive, in OCI's layout, of an image with one layer of executable files, for this machine's architecture."""
    layer = _archive({path.lstrip("/"): content for path, content in files.items()})
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Entrypoint": entrypoint},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(config).encode()),
        "layers": [blob("layer.v1.tar+gzip", gzip.compress(layer, 1, mtime=0))],
    }
    named = {"annotations": {"io.containerd.image.name": name}}
    index = {"schemaVersion": 2, "manifests": [blob("manifest.v1+json", json.dumps(manifest).encode()) | named]}
    whole = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode()}
    return _archive({**whole, **blobs})


def _build(go: Go, folder: Path) -> None:
    say("building the images of the test cluster's pods")
    pause = folder / "pause"
    compile_ = [sys.executable, "-m", "ziglang", "cc", "-target", f"{_machine()}-linux-musl", "-static", "-Os", "-s"]
    subprocess.run([*compile_, "-o", str(pause), str(_HERE / "pause.c")], check=True, stdout=sys.stderr)
    go.build(["."], folder / "web", module=_HERE)
    for name, program in ((PAUSE, pause), (WEB, folder / "web")):
        inside = f"/{program.name}"
        (folder / f"{program.name}.tar").write_bytes(image(name, [inside], {inside: program.read_bytes()}))


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _machine() -> str:
    return subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()


def _architecture() -> str:
    """As OCI calls it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}[_machine()]
