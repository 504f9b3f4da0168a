"""Both ends of the socket, misbehaving: callers that stall, cut and flood, and agents that lie, stutter and die.

`HostileClient` is what the server must survive, `HostileAgent` what the shim must. Neither knows more of the
protocol than the bytes that it is told to send.
"""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from allotment.cni.frames import ACKNOWLEDGED, WITHDRAWN, RequestParser

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = [
    "Behaviour",
    "HostileAgent",
    "HostileClient",
    "Visit",
    "answers",
    "answers_early",
    "answers_unheard",
    "closes",
    "is_silent",
    "stutters",
    "withdraws",
]

_PATIENCE: Final = 30.0  # seconds after which a test that waits here has failed


class HostileClient:
    """One connection that does only what it is told to. Blocking; closed by `cut` or by leaving the context.

    Making one raises OSError where nobody listens, and BlockingIOError where the queue of callers is full.
    """

    def __init__(self, path: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(_PATIENCE)
        try:
            self._sock.connect(str(path))
        except OSError:
            self._sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()

    def send(self, data: bytes) -> bool:
        """Send it all; False if the other end closed before."""
        try:
            self._sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self, size: int) -> bytes:
        """What comes, up to `size` bytes; less only if the other end closes before."""
        data = b""
        with suppress(ConnectionResetError):
            while len(data) < size and (piece := self._sock.recv(size - len(data))):
                data += piece
        return data

    def acknowledge(self) -> bool:
        """Say that the answer was printed; False if the other end takes no acknowledgement any more."""
        return self.send(ACKNOWLEDGED)

    def cut(self) -> None:
        """Be gone."""
        self._sock.close()


class Visit:
    """What one caller did: the bytes of its request, and whether it acknowledged the answer."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.request = b""
        self.acknowledged = False

    def read_request(self) -> None:
        """Read until the request is whole, or the caller gone."""
        parser = RequestParser()
        while piece := self.sock.recv(1 << 16):
            self.request += piece
            if parser.feed(piece) is not None:
                return

    def wait_until_taken(self) -> None:
        """Return once the caller has read all that was sent."""
        pause = threading.Event()
        for _ in range(int(_PATIENCE * 1000)):
            if not int.from_bytes(fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder):
                return
            pause.wait(0.001)

    def read_end(self) -> None:
        """Read until the caller is gone."""
        with suppress(ConnectionResetError):
            while piece := self.sock.recv(1 << 16):
                self.acknowledged = self.acknowledged or piece == ACKNOWLEDGED


Behaviour = Callable[[Visit], None]
"""What the agent does to one caller; the connection is closed after it."""


def answers(frame: bytes) -> Behaviour:
    """Reads the request, sends these bytes, and waits for the caller to go."""

    def behave(visit: Visit) -> None:
        visit.read_request()
        visit.sock.sendall(frame)
        visit.sock.shutdown(socket.SHUT_WR)
        visit.read_end()

    return behave


def answers_early(frame: bytes) -> Behaviour:
    """Answers and closes without having read anything."""
    return lambda visit: visit.sock.sendall(frame)


def answers_unheard(frame: bytes, gone: threading.Event) -> Behaviour:
    """Answers, and is gone once that was taken, as an agent that is killed; sets `gone` then."""

    def behave(visit: Visit) -> None:
        visit.read_request()
        visit.sock.sendall(frame)
        visit.wait_until_taken()
        visit.sock.close()
        gone.set()

    return behave


def withdraws(frame: bytes, withdrawn: threading.Event) -> Behaviour:
    """Answers, takes that back once the caller has it, and sets `withdrawn`."""

    def behave(visit: Visit) -> None:
        visit.read_request()
        visit.sock.sendall(frame)
        visit.wait_until_taken()
        visit.sock.shutdown(socket.SHUT_RD)
        visit.sock.sendall(WITHDRAWN)
        visit.sock.close()
        withdrawn.set()

    return behave


def stutters(frame: bytes) -> Behaviour:
    """Reads the request, and answers one byte at a time, each when the one before has been taken."""

    def behave(visit: Visit) -> None:
        visit.read_request()
        pause = threading.Event()
        for at in range(len(frame)):
            visit.sock.sendall(frame[at : at + 1])
            pause.wait(0.0005)
        visit.read_end()

    return behave


def closes(visit: Visit) -> None:
    """Hangs up at once."""
    visit.sock.shutdown(socket.SHUT_RDWR)


def is_silent(visit: Visit) -> None:
    """Reads all there is, and says nothing for as long as the caller stays."""
    visit.read_end()


class HostileAgent:
    """Listens, and treats the first caller by the first behaviour and so on; the last one stays for all others.

    Without a behaviour it listens and never accepts. Callers are treated one after the other, in a thread that ends
    with the context; what they did is in `visits`.
    """

    def __init__(self, path: Path, *behaviours: Behaviour, backlog: int = 128) -> None:
        self.visits: list[Visit] = []
        self._behaviours = behaviours
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(backlog)
        self._thread = threading.Thread(target=self._run, name="hostile-agent") if behaviours else None

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            behaviour = self._behaviours[min(len(self.visits), len(self._behaviours) - 1)]
            visit = Visit(sock)
            self.visits.append(visit)
            with sock, suppress(OSError):  # a caller that is gone is the rule here
                sock.settimeout(_PATIENCE)
                behaviour(visit)
