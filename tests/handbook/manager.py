"""A service manager for the stage: as much of systemd as the units in systemd/ and our pages ask of it.

It opens the socket and keeps it, starts the agent when it is told to or when somebody connects, hands the socket
over (LISTEN_FDS), waits for READY=1, starts an agent that died again, and ends one with SIGTERM. `systemctl.py` asks
it at /run/manager.sock. Standard library alone.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import select
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

UNITS = Path("/etc/systemd/system")
LOG = Path("/run/allotment.log")
_NOTIFY = "/run/manager.notify"
_START_SECONDS = 60.0


def unit(name: str) -> configparser.ConfigParser:
    """A unit's file."""
    read = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    read.optionxform = str
    read.read_string((UNITS / name).read_text())
    return read


class Manager:
    """The two units, and what is true of them."""

    def __init__(self) -> None:
        self.listener: socket.socket | None = None
        self.agent: subprocess.Popen[bytes] | None = None
        self.wanted = False
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(_NOTIFY)

    def start_socket(self) -> str:
        if self.listener is None:
            path = Path(unit("allotment.socket")["Socket"]["ListenStream"])
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.unlink(missing_ok=True)
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.listener.bind(str(path))
            path.chmod(0o600)
            self.listener.listen(int(unit("allotment.socket")["Socket"]["Backlog"]))
        return ""

    def stop_socket(self) -> str:
        self.stop_service()
        if self.listener is not None:
            self.listener.close()
            self.listener = None
            if unit("allotment.socket")["Socket"]["RemoveOnStop"] == "yes":
                Path(unit("allotment.socket")["Socket"]["ListenStream"]).unlink(missing_ok=True)
        return ""

    def start_service(self, *, wait: bool = True) -> str:
        self.start_socket()
        self.wanted = True
        if self.agent is not None and self.agent.poll() is None:
            return ""
        service = unit("allotment.service")["Service"]
        environment = {"PATH": os.environ["PATH"], "NOTIFY_SOCKET": _NOTIFY, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "cni"}
        environment |= dict([service["Environment"].split("=", 1)])
        with contextlib.suppress(FileNotFoundError):
            lines = Path(service["EnvironmentFile"].lstrip("-")).read_text().splitlines()
            environment |= dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        assert self.listener is not None
        passed = self.listener.fileno()
        # The socket has to be descriptor 3, and LISTEN_PID the process's own number, which is known only in it.
        hand_over = f'exec 3<&{passed} {passed}<&-; LISTEN_PID=$$ exec "$@"'
        with LOG.open("ab") as log:
            self.agent = subprocess.Popen(
                ["/bin/sh", "-c", hand_over, "agent", *shlex.split(service["ExecStart"])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[passed],
            )
        return self._await_ready() if wait else ""

    def _await_ready(self) -> str:
        end = time.clock_gettime(time.CLOCK_BOOTTIME) + _START_SECONDS
        while time.clock_gettime(time.CLOCK_BOOTTIME) < end:
            if select.select([self.notify], [], [], 0.1)[0] and b"READY=1" in self.notify.recv(4096).split(b"\n"):
                return ""
            if self.agent is not None and self.agent.poll() is not None:
                return "Job for allotment.service failed because the control process exited with error code."
        return "Job for allotment.service timed out."

    def stop_service(self) -> str:
        self.wanted = False
        if self.agent is not None:
            self.agent.send_signal(signal.SIGTERM)
            self.agent.wait()
            self.agent = None
        return ""

    def look(self) -> None:
        """Start again what died, and what somebody asks for at the socket."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.notify.recv(4096, socket.MSG_DONTWAIT)
        if self.agent is not None and self.agent.poll() is not None:
            self.agent = None
            if self.wanted:
                time.sleep(0.1)
                self.start_service(wait=False)
        if self.agent is None and self.listener is not None and select.select([self.listener], [], [], 0)[0]:
            self.start_service(wait=False)

    def do(self, words: list[str]) -> str:
        """One `systemctl` command; what it says is a failure, but for `show`, which says the agent's process."""
        verb = words[0] if words else ""
        if verb == "show":
            return str(self.agent.pid if self.agent is not None else 0)
        now = "--now" in words
        names = [word for word in words[1:] if not word.startswith("-")]
        names = [name if "." in name else f"{name}.service" for name in names]
        if verb == "daemon-reload" or (verb == "enable" and not now):
            return ""
        if verb == "kill" and self.agent is not None:
            self.agent.send_signal(signal.SIGKILL)
            return ""
        actions = {
            "start": ("start_socket", "start_service"),
            "enable": ("start_socket", "start_service"),
            "stop": ("stop_socket", "stop_service"),
            "disable": ("stop_socket", "stop_service"),
        }
        said = []
        for name in names:
            if verb == "restart":
                self.stop_service()
                said.append(self.start_service())
                continue
            said.append(getattr(self, actions[verb][name == "allotment.service"])())
        return "".join(said)


def serve() -> None:
    """For ever."""
    manager = Manager()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind("/run/manager.part")
        server.listen()
        Path("/run/manager.part").rename("/run/manager.sock")
        while True:
            if select.select([server], [], [], 0.1)[0]:
                connection, _ = server.accept()
                with connection:
                    connection.sendall(manager.do(shlex.split(connection.recv(4096).decode())).encode())
            else:
                manager.look()


if __name__ == "__main__":
    serve()
