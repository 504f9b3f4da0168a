"""One aiohttp session with the limits that the network needs.

aiohttp waits for ever by default, and so would a request whose peer has gone without a word. Here every call has a
total timeout; a watch may be quiet for `idle` seconds (bookmarks come every minute); and the kernel is told to give a
silent peer up: keepalive after 10 s, each 5 s, three times, and TCP_USER_TIMEOUT of 20 s for what isn't acknowledged.
Proxy variables and ~/.netrc are not looked at: a proxy stands in the kubeconfig or nowhere.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlencode

from yarl import URL

from allotment import __version__
from allotment.kube.authorities import unread_authorities
from allotment.kube.credentials import Credentials
from allotment.kube.failures import Silent, Unreachable, failure_of

with unread_authorities():
    import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from allotment.kube.access import Access
    from allotment.kube.failures import Ask

__all__ = ["IDLE_SECONDS", "Answer", "Session"]

IDLE_SECONDS: Final = 75.0
"""Longest silence on a watch: bookmarks were seen every 59.4 to 61.0 s."""
_POOL_SECONDS: Final = 75.0
_CONNECTIONS: Final = 256
_BODY_LIMIT: Final = 64 << 20
_USER_TIMEOUT_MS: Final = 20_000
_TIMED_OUT: Final = f"TimeoutError({errno.ETIMEDOUT}, "

Query = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Session:
    """Requests to one API server; an async context manager. `timeout` is a call's, in seconds."""

    def __init__(self, access: Access, *, user_agent: str, timeout: float, idle: float = IDLE_SECONDS) -> None:
        self._credentials = Credentials(access)
        self._agent = f"{user_agent}/{__version__}"
        self._timeout = timeout
        self._idle = idle
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_POOL_SECONDS, socket_factory=_socket),
            headers={"User-Agent": self._agent, "Accept": "application/json", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            read_bufsize=1 << 18,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def exchange(
        self, ask: Ask, method: str, path: str, *, query: Query | None = None, body: bytes = b"", content_type: str = ""
    ) -> Answer:
        """Send a request and read the whole answer, whatever its status.

        Raises:
            Unreachable: there was no (whole) answer within the timeout.
        """
        # The server is told when we stop waiting, so that it doesn't do later what we no longer count on.
        query = [*(query or []), ("timeout", f"{max(self._timeout - 1, 1):.0f}s")]
        timeout = aiohttp.ClientTimeout(total=self._timeout, sock_connect=self._timeout / 2)
        async with self._request(ask, method, path, query, body, content_type, timeout) as response:
            parts, size = [], 0
            async for part in response.content.iter_any():
                size += len(part)
                if size > _BODY_LIMIT:
                    raise Unreachable(f"{ask}: the answer is longer than {_BODY_LIMIT >> 20} MiB; it is not read")
                parts.append(part)
            return Answer(response.status, response.headers, b"".join(parts))

    @asynccontextmanager
    async def stream(self, ask: Ask, path: str, query: Query) -> AsyncIterator[AsyncIterator[bytes]]:
        """A GET whose answer comes bit by bit, for ever.

        Raises:
            ApiFailure: it was refused (`failure_of`), or the line broke; `Silent` where nothing came for too long.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=self._idle)
        async with self._request(ask, "GET", path, query, b"", "", timeout) as response:
            if response.status != 200:
                body = await response.content.read(1 << 16)
                raise failure_of(ask, response.status, body, response.headers)
            yield response.content.iter_any()

    @asynccontextmanager
    async def _request(
        self,
        ask: Ask,
        method: str,
        path: str,
        query: Query,
        body: bytes,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer's head is here; what goes wrong until the block ends is said as a failure of ours."""
        try:
            response = await self._answered(method, path, query, body, content_type, timeout)
            try:
                yield response
            finally:
                response.release()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            message = f"{ask}: the API server {self._credentials.server} can't be reached: {_said(error)}"
            raise Unreachable(f"{message}; it is tried again", sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            kind = Silent if _is_silence(error) else Unreachable
            message = f"{ask}: the API server {self._credentials.server} gave no (whole) answer: {_said(error)}"
            raise kind(f"{message}; it is tried again") from error

    async def _answered(
        self, method: str, path: str, query: Query, body: bytes, content_type: str, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """The answer, once more after a 401 if there are other credentials to try by then."""
        token = self._credentials.token()
        response = await self._send(method, path, query, body, content_type, timeout, token)
        if response.status == 401 and await self._credentials.renewed(token):
            response.release()
            token = self._credentials.token()
            response = await self._send(method, path, query, body, content_type, timeout, token)
        return response

    async def _send(
        self,
        method: str,
        path: str,
        query: Query,
        body: bytes,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
        token: str,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("a Session is used inside its async with block")
        access = self._credentials.access
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if content_type:
            headers["Content-Type"] = content_type
        suffix = f"?{urlencode(query)}" if query else ""
        # A watch's head has no timeout of its own in aiohttp but the silence that is allowed later on.
        async with asyncio.timeout(2 * self._timeout if timeout.total is None else None):
            return await self._session.request(
                method,
                URL(f"{access.server}{path}{suffix}", encoded=True),
                data=body or None,
                headers=headers,
                timeout=timeout,
                ssl=self._credentials.tls() or True,
                server_hostname=access.server_name or None,
                proxy=access.proxy or None,
                allow_redirects=False,
            )


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A TCP socket that notices within 25 s that nobody is there any more (measured: 16.8 s)."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    return made


def _is_silence(error: Exception) -> bool:
    """Whether it was a timeout: ours, or the kernel's (ETIMEDOUT).

    Of the kernel's error aiohttp keeps the number, or, where an answer was under way, the text alone.
    """
    number = getattr(error, "errno", None)
    return isinstance(error, TimeoutError) or number == errno.ETIMEDOUT or _TIMED_OUT in str(error)


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
