"""Keeps a library that makes TLS contexts as it is imported from loading the machine's certificate authorities.

aiohttp makes two, which nobody here uses: every request brings the context that its cluster's access describes. The
authorities of a Debian are some 140 certificates, and cost 3 MiB in each.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["unread_authorities"]

_PLACES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Where OpenSSL looks, if it is told (SSL_CTX_set_default_verify_paths(3))."""


@contextmanager
def unread_authorities() -> Iterator[None]:
    """While the block lasts, a TLS context finds no authorities of the machine's. Not for a block that waits."""
    before = {name: os.environ.get(name) for name in _PLACES}
    os.environ.update(dict.fromkeys(_PLACES, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
