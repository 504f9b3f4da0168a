"""The image of a pod's first process, for tests with a real runtime: made here, so that nothing has to be fetched."""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from pathlib import Path

__all__ = ["MANIFEST", "PAUSE", "archive", "blobs"]

PAUSE = "allotment.test/pause:1"
_OCI = "application/vnd.oci.image"
MANIFEST = f"{_OCI}.manifest.v1+json"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SOURCE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


def blobs():
    """All content by digest, and the digest of the manifest: one layer that holds a program that waits."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "pause.c"), Path(folder, "pause")
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-static", "-Os", "-o", program, source], check=True)
        layer = _tar({"pause": program.read_bytes()}, mode=0o755)
    found = {}

    def kept(content, kind):
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        found[digest] = content
        return {"mediaType": f"{_OCI}.{kind}", "digest": digest, "size": len(content)}

    described = kept(layer, "layer.v1.tar")
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [described["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": kept(json.dumps(config).encode(), "config.v1+json"),
        "layers": [described],
    }
    return found, kept(json.dumps(manifest).encode(), "manifest.v1+json")["digest"]


def archive():
    """The same as an OCI layout (opencontainers/image-spec, image-layout.md), in a tar file."""
    found, digest = blobs()
    top = {"mediaType": MANIFEST, "digest": digest, "size": len(found[digest])}
    index = {"schemaVersion": 2, "manifests": [{**top, "annotations": {"io.containerd.image.name": PAUSE}}]}
    files = {f"blobs/{name.replace(':', '/')}": content for name, content in found.items()}
    return _tar({"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(), **files})


def _tar(files, mode=0o644):
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return whole.getvalue()
