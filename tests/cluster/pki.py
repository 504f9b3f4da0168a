"""Keys and certificates of a cluster that lives for minutes, made with openssl in some hundredths of a second each."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Authority", "Certificate"]

_DAYS = "30"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority in a folder, which also takes what it issues."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign", "subjectKeyIdentifier=hash")
        self.certificate = self._new("ca", "/CN=test-ca", *extensions)

    def issue(self, name: str, subject: str, *, names: tuple[str, ...] = ()) -> Certificate:
        """A certificate for servers and clients; `names` as in `DNS:localhost` or `IP:127.0.0.1`."""
        # Python 3.13 and newer refuse certificates that don't name their authority's key.
        extensions = ["authorityKeyIdentifier=keyid", "basicConstraints=critical,CA:FALSE"]
        extensions += ["keyUsage=critical,digitalSignature", "extendedKeyUsage=serverAuth,clientAuth"]
        if names:
            extensions.append(f"subjectAltName={','.join(names)}")
        authority = ("-CA", str(self.certificate.cert), "-CAkey", str(self.certificate.key))
        return self._new(name, subject, *extensions, more=authority)

    def key_pair(self, name: str) -> tuple[Path, Path]:
        """A bare key pair: the files of the private and of the public one."""
        private, public = self._folder / f"{name}.key", self._folder / f"{name}.pub"
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(private))
        _openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))
        return private, public

    def _new(self, name: str, subject: str, *extensions: str, more: tuple[str, ...] = ()) -> Certificate:
        made = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        added = [word for extension in extensions for word in ("-addext", extension)]
        files = ("-out", str(made.cert), "-keyout", str(made.key))
        # Without a configuration of its own, `req` adds extensions of the distribution's.
        _openssl("req", "-x509", *_KEY, "-config", "/dev/null", "-subj", subject, "-days", _DAYS, *added, *more, *files)
        return made


def _openssl(*arguments: str) -> None:
    ended = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"openssl {arguments[0]}: {ended.stderr}"
