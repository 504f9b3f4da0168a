"""A node with pods for tests: network namespaces, and the real agent in standalone mode with the real shim."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

import allotment
from allotment.cni.client import Client
from allotment.node.reports import LeasesReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allotment.node.reports import LeaseReport

__all__ = ["Node"]

_READY_SECONDS = 30.0
_ALLOTMENT = (sys.executable, "-m", "allotment.cli")
_numbers = itertools.count()


class Node:
    """A node of its own: a network namespace with an agent; everything goes when it is left."""

    def __init__(self, manifests: dict[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="allot-"))  # short: a socket's path has at most 107 bytes
        self._cleanup = contextlib.ExitStack()
        self._cleanup.callback(shutil.rmtree, self.folder)
        self._agent: subprocess.Popen[bytes] | None = None
        self.socket = self.folder / "cni.sock"
        self.bin = self.folder / "bin"
        self.plugin = self.bin / "allotment"
        for name in ("manifests", "state", "none", "bin"):
            (self.folder / name).mkdir()
        for name, text in manifests.items():
            (self.folder / "manifests" / name).write_text(text)
        shutil.copy(Path(allotment.__file__).parent / "_shim" / f"allotment-{platform.machine()}", self.plugin)
        self.plugin.chmod(0o755)
        self.environment = {"ALLOTMENT_SOCKET": str(self.socket)}

    def __enter__(self) -> Self:
        try:
            self._cleanup.callback(self._end)
            self.netns = self.add_namespace()
            self.start()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def within(self) -> tuple[str, ...]:
        """Put before a command to run it in this node's network namespace."""
        return ("nsenter", f"--net={self.netns}")

    def add_namespace(self) -> str:
        """Make a network namespace, whose loopback is up, and return its path."""
        name = f"allot-{os.getpid()}-{next(_numbers)}"
        run("ip", "netns", "add", name)
        self._cleanup.callback(run, "ip", "netns", "delete", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        path = f"/run/netns/{name}"
        # Nobody else is there to have the same IPv6 address: don't wait two seconds for each to be sure of that.
        for scope in ("all", "default"):
            run("nsenter", f"--net={path}", "sh", "-c", f"echo 0 >/proc/sys/net/ipv6/conf/{scope}/accept_dad")
        return path

    def start(self) -> None:
        """Start the agent and wait until it says that it serves."""
        command = [*_ALLOTMENT, "agent", "--node", "n1", "--http", "off", "--socket", str(self.socket)]
        for flag, name in {
            "--manifests": "manifests",
            "--state-dir": "state",
            "--netns-dir": "none",
            "--cni-cache-dir": "none",
        }.items():
            command += [flag, str(self.folder / name)]
        notify = self.folder / "notify"
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
            notify.unlink(missing_ok=True)
            listener.bind(str(notify))
            listener.settimeout(_READY_SECONDS)
            with (self.folder / "agent.log").open("ab") as log:
                environment = {**os.environ, "NOTIFY_SOCKET": str(notify)}
                self._agent = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                )
            try:
                while b"READY=1" not in listener.recv(4096).split(b"\n"):
                    pass
            except TimeoutError:
                raise AssertionError(f"the agent is not ready:\n{self.log()}") from None

    def kill(self) -> None:
        """SIGKILL."""
        assert self._agent is not None
        self._agent.kill()
        self._agent.wait()
        self._agent = None

    def log(self) -> str:
        """The end of the agent's log."""
        return (self.folder / "agent.log").read_text()[-4000:]

    def leases(self) -> dict[str, LeaseReport]:
        """What the agent holds, by address."""
        report = msgspec.json.decode(Client(self.socket).query("leases"), type=LeasesReport)
        assert not report.more
        return {lease.address: lease for lease in report.leases}

    def _end(self) -> None:
        if self._agent is not None:
            self._agent.send_signal(signal.SIGTERM)
            code = self._agent.wait(30)
            assert code == 0, f"the agent ended with {code}:\n{self.log()}"


def run(*command: str, timeout: float = 60.0) -> str:
    """Run a command that must succeed; returns its standard output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


def connects(from_netns: str, to_netns: str, address: str) -> bool:
    """Whether TCP gets from one namespace to an address in another."""
    server = _python(to_netns, _SERVER, [address])
    try:
        assert server.stdout is not None
        port = server.stdout.readline().decode().strip()
        assert port, "the server did not start"
        client = _python(from_netns, _CLIENT, [address, port])
        out, _ = client.communicate(timeout=30)
        return out.strip() == b"hello"
    finally:
        server.kill()
        server.communicate()


_SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 0), family=family) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        server.accept()[0].sendall(b"hello")
"""
_CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as client:
    print(client.recv(5).decode())
"""


def _python(netns: str, program: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = ["nsenter", f"--net={netns}", sys.executable, "-I", "-S", "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
