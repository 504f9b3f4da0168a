"""An image registry with the one image of pause_image, on loopback: CRI-O takes its images from nowhere else.

python registry.py FOLDER PORT

`FOLDER` has each blob under its digest, and in `manifest` the digest of the manifest. Standard library alone.
"""

import http.server
import sys
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class _Handler(http.server.BaseHTTPRequestHandler):
    """GET and HEAD of opencontainers/distribution-spec, of whatever name and tag."""

    protocol_version = "HTTP/1.1"
    folder = Path()

    def do_GET(self):  # the standard library's name
        *_, kind, wanted = ["", *self.path.strip("/").split("/")]
        digest = (self.folder / "manifest").read_text() if kind == "manifests" else wanted
        blob = self.folder / digest
        if kind in ("manifests", "blobs") and blob.is_file():
            self._answer(
                200, blob.read_bytes(), MANIFEST if kind == "manifests" else "application/octet-stream", digest
            )
        else:
            self._answer(404 if kind in ("manifests", "blobs") else 200, b"{}", "application/json")

    do_HEAD = do_GET  # noqa: N815  # as above

    def _answer(self, code, body, kind, digest=""):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    _Handler.folder = Path(sys.argv[1])
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler).serve_forever()
