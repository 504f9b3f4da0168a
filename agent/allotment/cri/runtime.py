"""The container runtime, asked over its unix socket: `kubernetes/cri-api`, RuntimeService v1 (containerd, CRI-O).

Each question has a time limit and opens a connection of its own: the runtime may be restarted at any time, and what
isn't kept can't be stale. An answer that can't be had, or read, is an error and never an empty one (I8).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import ConfigError, DecodeError, TryAgain
from allotment.cri.http2 import Line
from allotment.cri.messages import (
    LIST,
    NO_FILTER,
    STATUS,
    VERSION,
    decode_list,
    decode_status,
    decode_version,
    encode_status_request,
    encode_version_request,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from allotment.cri.http2 import Answer
    from allotment.cri.messages import RuntimeVersion, Sandbox

__all__ = ["TIMEOUT", "Runtime", "find_runtime"]

TIMEOUT: Final = 10.0
"""Seconds that one call may take; a list of hundreds of sandboxes takes some milliseconds."""
_CHUNK: Final = 1 << 16
_NOT_FOUND: Final = 5  # gRPC's status codes
_UNIMPLEMENTED: Final = 12


class Runtime:
    """One runtime at one socket. Nothing is connected until something is asked.

    What every question may raise:
        TryAgain: nobody listens at the socket, no answer came in time, or the runtime refuses now.
        ConfigError: we may not use the socket, or what listens there doesn't speak the CRI v1.
        DecodeError: the answer can't be read.
    """

    def __init__(self, socket: Path, *, timeout: float = TIMEOUT) -> None:
        self.socket = socket
        self._timeout = timeout

    async def version(self) -> RuntimeVersion:
        """Which runtime this is."""
        async with self._connected() as connection:
            return decode_version(await connection.ask(VERSION, encode_version_request()))

    async def sandboxes(self) -> tuple[Sandbox, ...]:
        """All sandboxes there are, ready or not, without `netns`, `ips` and `host_network`."""
        async with self._connected() as connection:
            return decode_list(await connection.ask(LIST, NO_FILTER))

    async def statuses(self, ids: Iterable[str]) -> dict[str, Sandbox]:
        """These sandboxes with all that is known of them, by ID; those that are gone are not in it."""
        found: dict[str, Sandbox] = {}
        async with self._connected() as connection:
            for identity in ids:
                answer = await connection.call(STATUS, encode_status_request(identity))
                if answer.status != _NOT_FOUND:
                    found[identity] = decode_status(connection.message_of(answer))
        return found

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Connection]:
        """A connection for some questions, one after the other."""
        try:
            async with asyncio.timeout(self._timeout):
                reader, writer = await asyncio.open_unix_connection(str(self.socket))
        except TimeoutError:
            raise TryAgain(
                f"the container runtime's socket {self.socket} takes no connection; see whether the runtime hangs"
            ) from None
        except PermissionError as error:
            raise ConfigError(
                f"the container runtime's socket {self.socket} can't be used: {error.strerror}; the agent needs root"
            ) from error
        except OSError as error:
            raise TryAgain(
                f"no container runtime listens at {self.socket}: {error.strerror}; see that it runs, or say which "
                "socket it has with --runtime-socket"
            ) from error
        try:
            yield _Connection(self.socket, self._timeout, reader, writer)
        except DecodeError as error:
            raise DecodeError(
                f"what the container runtime at {self.socket} answers can't be read: {error.message}; see that this "
                "is the socket of containerd or CRI-O"
            ) from error
        finally:
            writer.transport.abort()  # nothing is left to be said, and nobody to wait for


def find_runtime(places: Sequence[Path]) -> Runtime:
    """The runtime at the one of these sockets that there is; of several, at the one where somebody listens.

    A runtime that was stopped, as when a node changes to another, leaves its socket behind.

    Raises:
        TryAgain: none is there.
        ConfigError: there are several, and each could be the one that starts the pods.
    """
    there = [place for place in places if place.is_socket()] if len(places) > 1 else list(places)
    if len(there) > 1:
        there = [place for place in there if _is_listened_to(place)] or there[:1]
    if len(there) > 1:
        names = " and ".join(map(str, there))
        raise ConfigError(f"several container runtimes have sockets here, {names}: say which with --runtime-socket")
    if not there:
        names = " nor ".join(map(str, places))
        raise TryAgain(f"no container runtime has a socket here, neither {names}: say where with --runtime-socket")
    return Runtime(there[0])


def _is_listened_to(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as caller:
        return caller.connect_ex(str(place)) in (0, errno.EAGAIN, errno.EACCES)  # busy, or not for us, it is there


class _Connection:
    """One connection, with the errors that a person can act on."""

    def __init__(
        self, socket: Path, timeout: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._socket = socket
        self._timeout = timeout
        self._reader = reader
        self._writer = writer
        self._line = Line()

    async def ask(self, path: str, message: bytes) -> bytes:
        """The message that a successful call comes back with."""
        return self.message_of(await self.call(path, message))

    async def call(self, path: str, message: bytes) -> Answer:
        """One call, whatever the runtime says to it."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._call(path, message)
        except TimeoutError:
            raise TryAgain(
                f"the container runtime at {self._socket} gave no answer within {self._timeout:g} s; see whether it "
                "hangs"
            ) from None
        except OSError as error:
            raise TryAgain(f"the container runtime at {self._socket} went away: {error.strerror}") from error
        except (TryAgain, ConfigError) as error:
            raise type(error)(f"the container runtime at {self._socket} gave no answer: {error.message}") from error

    async def _call(self, path: str, message: bytes) -> Answer:
        self._line.begin(path, message)
        while True:
            self._writer.write(self._line.take())
            if (answer := self._line.answer) is not None:
                return answer
            data = await self._reader.read(_CHUNK)
            if not data:
                raise TryAgain("it closed the connection before it had answered")
            self._line.receive(data)

    def message_of(self, answer: Answer) -> bytes:
        """The message, if the call succeeded."""
        if answer.status == _UNIMPLEMENTED:
            raise ConfigError(
                f"the container runtime at {self._socket} doesn't speak the CRI v1 ({answer.message}): containerd "
                "does since 1.6, with its CRI plugin on, and CRI-O since 1.23"
            )
        if answer.status:
            raise TryAgain(
                f"the container runtime at {self._socket} refuses, with gRPC status {answer.status}: {answer.message}"
            )
        return answer.body
