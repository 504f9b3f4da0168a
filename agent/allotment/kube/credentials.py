"""Who we are, kept up to date: the token and its file, and what TLS needs.

Files are looked at before each request (a stat costs microseconds, and needs no clock): a service account's token is
replaced about every 48 minutes, a certificate every few weeks. What can't be read at that moment is left as it was.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import AllotmentError, ConfigError
from allotment.kube.failures import Unreachable

if TYPE_CHECKING:
    from allotment.kube.access import Access, Pem

__all__ = ["Credentials"]

_Signature = tuple[int, int, int] | None
_TOKEN_LIMIT: Final = 1 << 20


class Credentials:
    """The headers and the TLS context of an `Access`, as they are now."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token = access.token
        self._token_seen: _Signature = None
        self._tls: ssl.SSLContext | None = None
        self._tls_seen: tuple[_Signature, ...] = ()
        self._renewing = asyncio.Lock()

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._access.server

    @property
    def access(self) -> Access:
        """What they are made from."""
        return self._access

    def token(self) -> str:
        """The token for the next request; empty where a certificate says who we are.

        Raises:
            Unreachable: its file has never been readable.
        """
        file = self._access.token_file
        if file is not None:
            seen = _signature(file)
            if seen != self._token_seen or not self._token:
                self._read_token(file, seen)
        return self._token

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context for the next connection; None for plain HTTP.

        Raises:
            ConfigError: a certificate or key can't be used.
        """
        access = self._access
        if not access.server.startswith("https:"):
            return None
        seen = tuple(_signature(pem) for pem in (access.ca, access.certificate, access.key) if isinstance(pem, Path))
        if self._tls is None or seen != self._tls_seen:
            try:
                self._tls = _tls_context(access)
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                if self._tls is None:
                    message = f"the certificates for {access.server} can't be used: {error}; look at the kubeconfig"
                    raise ConfigError(message) from error
                return self._tls  # half of a pair was replaced: the other half follows
            self._tls_seen = seen
        return self._tls

    async def renewed(self, refused: str) -> bool:
        """After a 401 with the token `refused`: whether there is something else to try now."""
        async with self._renewing:
            if self._access.token_file is not None:
                self._token_seen = None
            if self.token() != refused:
                return True
            if self._access.renew is None:
                return False
            before = self._access
            try:
                self._access = await before.renew()  # type: ignore[misc]  # None was looked for above
            except AllotmentError:
                return False
            self._token, self._token_seen, self._tls = self._access.token, None, None
            return self._access != before or self.token() != refused

    def _read_token(self, file: Path, seen: _Signature) -> None:
        try:
            with file.open("rb") as stream:
                token = stream.read(_TOKEN_LIMIT).decode("ascii").strip()
        except (OSError, ValueError) as error:
            if not self._token:
                message = f"the token file {file} can't be read: {error}; is the service account's volume mounted?"
                raise Unreachable(message, sent=False) from error
            return
        if token:
            self._token, self._token_seen = token, seen
        elif not self._token:
            raise Unreachable(f"the token file {file} is empty; the kubelet should have filled it", sent=False)


def _signature(file: Path) -> _Signature:
    """What changes when a file is replaced or written to."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _tls_context(access: Access) -> ssl.SSLContext:
    if access.ca is None:
        context = ssl.create_default_context()
    else:  # the machine's authorities, which would cost some MiB, are not even read
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        text = access.ca if isinstance(access.ca, bytes) else access.ca.read_bytes()
        context.load_verify_locations(cadata=text.decode("ascii"))
    # Clusters' own authorities often lack the extensions that this flag (on by default since Python 3.13) asks for;
    # Go's verifier, which they are made for, does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.certificate is not None:
        _load_pair(context, access.certificate, access.key)
    return context


def _load_pair(context: ssl.SSLContext, certificate: Pem, key: Pem | None) -> None:
    """Certificate and key in one file that has no name: the library takes paths, and a key belongs on no disk."""
    texts = [pem if isinstance(pem, bytes) else pem.read_bytes() for pem in (certificate, key) if pem is not None]
    fd = os.memfd_create("allotment-pair")
    try:
        os.write(fd, b"\n".join(texts))
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
