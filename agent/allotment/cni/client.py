"""The caller's end of the socket, for the CLI and for tests: what the shim does, from Python.

`Client` blocks, `AsyncClient` does not. Both ask once and do not retry: whoever uses the CLI is better told at once
that the agent is away.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from allotment.addressing.errors import (
    AddressUnavailable,
    AllotmentError,
    CheckFailed,
    ConfigError,
    DecodeError,
    EnvironmentInvalid,
    Exhausted,
    InternalError,
    NotServing,
    TryAgain,
    VersionError,
)
from allotment.cni.frames import ACKNOWLEDGED, WITHDRAWN, ReplyParser, encode_call, encode_query

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from allotment.cni.exchange import Reply

__all__ = ["AsyncClient", "Client", "error_of"]

_PIECE: Final = 1 << 18
_CLOSED: Final = (BrokenPipeError, ConnectionResetError)
_ERRORS: Final = {
    kind.code: kind
    for kind in (
        VersionError,
        EnvironmentInvalid,
        DecodeError,
        ConfigError,
        TryAgain,
        NotServing,
        InternalError,
        Exhausted,
        AddressUnavailable,
        CheckFailed,
    )
}


class _Answer(msgspec.Struct):
    code: int = InternalError.code
    msg: str = ""
    details: str = ""


def error_of(reply: Reply) -> AllotmentError:
    """The error that a reply with an exit code other than 0 tells of."""
    try:
        told = msgspec.json.decode(reply.body, type=_Answer)
    except msgspec.DecodeError as error:
        return DecodeError(f"the agent answered with an error that cannot be read: {error}")
    return _ERRORS.get(told.code, InternalError)(told.msg, told.details)


class Client:
    """Asks an agent, one connection for each question. Safe to be used by several threads."""

    def __init__(self, path: Path, *, timeout: float = 20.0) -> None:
        self._path = path
        self._timeout = timeout  # seconds that each single wait may take

    def call(self, env: Mapping[str, str], body: bytes) -> Reply:
        """Make a CNI call, and acknowledge the answer.

        Raises:
            TryAgain: the agent is away, closed the connection or did not answer in time.
            DecodeError: its answer is no reply frame, or the call does not fit in a frame.
        """
        return self._exchange(encode_call(env, body))

    def query(self, name: str, arguments: bytes = b"{}") -> bytes:
        """Ask a question of the CLI; arguments and answer are JSON.

        Raises:
            AllotmentError: as `call` does, or what the agent answers.
        """
        reply = self._exchange(encode_query(name, arguments))
        if reply.exit_code:
            raise error_of(reply)
        return reply.body

    def _exchange(self, frame: bytes) -> Reply:
        parser = ReplyParser()
        with _told(self._path), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(self._timeout)
            sock.connect(str(self._path))
            with suppress(*_CLOSED):  # it may have said why before it closed
                sock.sendall(frame)
            while True:
                piece = sock.recv(min(parser.wanted, _PIECE))
                if not piece:
                    raise _cut(self._path, parser)
                if (reply := parser.feed(piece)) is not None:
                    try:
                        sock.sendall(ACKNOWLEDGED)
                    except _CLOSED as error:
                        with suppress(*_CLOSED):
                            _check_withdrawn(sock.recv(1), error)
                    return reply


class AsyncClient:
    """`Client` for a running event loop; `timeout` bounds an exchange as a whole."""

    def __init__(self, path: Path, *, timeout: float = 20.0) -> None:
        self._path = path
        self._timeout = timeout

    async def call(self, env: Mapping[str, str], body: bytes) -> Reply:
        """As `Client.call`; cancelling it hangs up."""
        return await self._exchange(encode_call(env, body))

    async def query(self, name: str, arguments: bytes = b"{}") -> bytes:
        """As `Client.query`."""
        reply = await self._exchange(encode_query(name, arguments))
        if reply.exit_code:
            raise error_of(reply)
        return reply.body

    async def _exchange(self, frame: bytes) -> Reply:
        loop = asyncio.get_running_loop()
        parser = ReplyParser()
        with _told(self._path), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(0.0)
            async with asyncio.timeout(self._timeout):
                await loop.sock_connect(sock, str(self._path))
                with suppress(*_CLOSED):  # it may have said why before it closed
                    await loop.sock_sendall(sock, frame)
                while True:
                    piece = await loop.sock_recv(sock, min(parser.wanted, _PIECE))
                    if not piece:
                        raise _cut(self._path, parser)
                    if (reply := parser.feed(piece)) is not None:
                        try:
                            await loop.sock_sendall(sock, ACKNOWLEDGED)
                        except _CLOSED as error:
                            with suppress(*_CLOSED):
                                _check_withdrawn(await loop.sock_recv(sock, 1), error)
                        return reply


def _check_withdrawn(last: bytes, cause: OSError) -> None:
    """Nothing, where the agent died after its answer: that is on its disk and holds."""
    if last == WITHDRAWN:
        raise TryAgain("the agent has taken its answer back: it was not acknowledged in time; try again") from cause


def _cut(path: Path, parser: ReplyParser) -> AllotmentError:
    if not parser.held:
        return TryAgain(f"the agent at {path} closed the connection without an answer: it may be restarting; try again")
    return DecodeError(f"the answer of the agent at {path} is cut off after {parser.held} bytes")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Errors of the socket as ours."""
    try:
        yield
    except TimeoutError as error:
        raise TryAgain(f"the agent at {path} does not answer in time; its log may say why") from error
    except FileNotFoundError as error:
        raise TryAgain(f"no agent at {path}: there is no such socket; is it running, with this path?") from error
    except ConnectionRefusedError as error:
        raise TryAgain(f"no agent listens at {path}; is it running?") from error
    except PermissionError as error:
        raise ConfigError(f"{path} may not be used by this user; ask as root") from error
    except OSError as error:
        raise TryAgain(f"the agent at {path} cannot be asked: {error.strerror}; try again") from error
