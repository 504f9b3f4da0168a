"""What a service manager is told and hands over: sd_notify(3), the watchdog, and sd_listen_fds(3).

Both protocols are a few environment variables, one datagram socket and inherited file descriptors, so no library is
needed. The variables are taken out of the environment on first sight: a child must not believe they are meant for it.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

__all__ = ["ActivatedSocket", "Notifier", "listen_fds"]

_FIRST_FD: Final = 3  # SD_LISTEN_FDS_START
_SEND_TIMEOUT: Final = 0.5  # seconds; the manager's queue is full only when the manager itself is stuck


class Notifier:
    """Tells the service manager how the agent is. Without one, everything here does nothing.

    A message that can't be delivered is lost, on purpose: the agent serves pods, with or without a manager that
    listens. Should READY or WATCHDOG get lost, the manager acts by its own timeouts.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ, *, pid: int | None = None) -> None:
        self._address = _address(environ.pop("NOTIFY_SOCKET", ""))
        micros = environ.pop("WATCHDOG_USEC", "")
        meant_for = environ.pop("WATCHDOG_PID", "")
        mine = not meant_for or meant_for == str(os.getpid() if pid is None else pid)
        usable = bool(self._address) and mine and micros.isascii() and micros.isdigit() and int(micros) > 0
        self.watchdog_seconds: float | None = int(micros) / 1e6 if usable else None
        """The longest time without a sign of life that the manager accepts; None when it doesn't watch."""

    @property
    def listening(self) -> bool:
        """Whether there is a manager to tell."""
        return bool(self._address)

    def ready(self, status: str = "") -> bool:
        """Start-up is done: requests are served. Returns whether the manager was told."""
        return self._send("READY=1", *_status(status))

    def status(self, text: str) -> bool:
        """One line for `systemctl status`. Returns whether the manager was told."""
        return self._send(*_status(text))

    def stopping(self, status: str = "") -> bool:
        """The end begins. Returns whether the manager was told."""
        return self._send("STOPPING=1", *_status(status))

    def alive(self) -> bool:
        """One sign of life for the watchdog. Returns whether the manager was told."""
        return self._send("WATCHDOG=1")

    async def keep_alive(
        self, sleep: Callable[[float], Awaitable[None]], healthy: Callable[[], bool] = lambda: True
    ) -> None:
        """Give signs of life for ever, three to an interval, while `healthy` says so; at once done without a watchdog.

        Runs on the event loop, so that a loop that stands still is noticed: that is what the watchdog is for.
        """
        if self.watchdog_seconds is None:
            return
        while True:
            if healthy():
                self.alive()
            await sleep(self.watchdog_seconds / 3)

    def _send(self, *lines: str) -> bool:
        if not self._address:
            return False
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(_SEND_TIMEOUT)
            sock.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
            return True
        return False


def _address(text: str) -> str:
    """A NOTIFY_SOCKET as the kernel wants it: `@name` is an abstract socket, anything but a path is not for us."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else ""


def _status(text: str) -> tuple[str, ...]:
    # A line break would end the field and let the rest be read as a field of its own.
    return (f"STATUS={' '.join(text.splitlines())}",) if text else ()


@dataclass(frozen=True, slots=True)
class ActivatedSocket:
    """A listening socket that the manager opened for us; `name` is the unit's FileDescriptorName."""

    name: str
    socket: socket.socket


def listen_fds(
    environ: MutableMapping[str, str] = os.environ, *, pid: int | None = None, first: int = _FIRST_FD
) -> tuple[ActivatedSocket, ...]:
    """The sockets this process was started with, in the manager's order; () when it wasn't socket-activated.

    They are closed on exec from here on, and the environment no longer mentions them. `first` is the first
    descriptor that was passed; only a test has another one than the protocol's 3.

    Raises:
        OSError: a descriptor that was announced isn't an open socket.
    """
    meant_for, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "")
    if meant_for != str(os.getpid() if pid is None else pid) or not (count.isascii() and count.isdigit()):
        return ()
    wanted = names.split(":") if names else []
    found: list[ActivatedSocket] = []
    for index in range(int(count)):
        fd = first + index
        try:
            os.set_inheritable(fd, False)  # noqa: FBT003  # the library's own signature
            sock = socket.socket(fileno=fd)
        except OSError as error:
            raise OSError(
                error.errno, f"descriptor {fd} passed by the service manager is no socket: {error.strerror}"
            ) from error
        found.append(ActivatedSocket(wanted[index] if index < len(wanted) else "unknown", sock))
    return tuple(found)
