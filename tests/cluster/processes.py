"""Processes of others, with a log each, that end when we do, however that is."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from pathlib import Path

from nodes import until

__all__ = ["Port", "Program", "until_true"]


class Program:
    """A process that was started with its output in a log.

    The kernel kills it when the thread that started it ends (PR_SET_PDEATHSIG): start it from one that lasts. `within`
    goes before the command, such as `nsenter --net=…`; it must become the command by exec.
    """

    def __init__(
        self, name: str, command: list, *, log: Path, within: tuple[str, ...] = (), environment: dict | None = None
    ):
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *within, *(str(word) for word in command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C is for the test alone, which then cleans up
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: int) -> None:
        """A signal; nothing happens if it has ended."""
        self._process.send_signal(number)

    def halt(self) -> None:
        """Stop all its threads where they are (SIGSTOP), until SIGCONT."""
        self.send(signal.SIGSTOP)
        threads = Path(f"/proc/{self.pid}/task")
        until(
            lambda: all(path.read_text().rpartition(")")[2].split()[0] == "T" for path in threads.glob("*/stat")),
            f"{self.name} goes on",
        )

    def end(self, number: int = signal.SIGTERM, *, limit: float = 10.0) -> None:
        """Send a signal and wait; what then still runs after `limit` seconds is killed."""
        self.send(number)
        self.send(signal.SIGCONT)
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait(limit)

    def tail(self, size: int = 3000) -> str:
        """The end of what it said."""
        return self.log.read_bytes()[-size:].decode(errors="replace")


class Port:
    """A TCP port of 127.0.0.1 that nobody else gets, whether or not somebody listens on it at the time.

    We hold it, but don't listen; a server listens on it with SO_REUSEPORT.
    """

    def __init__(self, address: str = "127.0.0.1"):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind((address, 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


def until_true(probe, otherwise: str, *, of: tuple[Program, ...] = (), limit: float = 60.0):
    """Ask until the answer is a true one, and return that; fail at once when one of the programs has ended.

    An OSError counts as no answer: nobody may listen yet.
    """

    def asked():
        for program in of:
            assert program.running, f"{program.name} has ended: {program.tail()}"
        with contextlib.suppress(OSError):
            return probe()
        return None

    return until(asked, otherwise, limit=limit)
