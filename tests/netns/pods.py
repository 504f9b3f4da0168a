"""A node whose pods are network namespaces, for tests with real plugins: what they are called with and what they do."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from agents import shim_binary
from namespaces import Namespaces
from nodes import Node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents import Launcher
    from allotment.node.inquiries.reports import LeaseReport

__all__ = ["PodNode", "connects", "run"]


class PodNode(Node):
    """A node with a network namespace of its own, which commands are run in (`within`), and our plugin in `bin`."""

    def __init__(self, launcher: Launcher, manifests: dict[str, str]) -> None:
        with contextlib.ExitStack() as ends:
            self._namespaces = ends.enter_context(Namespaces())
            super().__init__(launcher, manifests)
            ends.callback(super().__exit__)
            self.bin = self.folder / "bin"
            self.bin.mkdir()
            shutil.copy(shim_binary(), self.bin / "allotment")
            self.environment = {"ALLOTMENT_SOCKET": str(self.socket)}
            self.netns = self.add_namespace()
            self._ends = ends.pop_all()

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @property
    def within(self) -> tuple[str, ...]:
        """Put before a command to run it in this node's network namespace."""
        return ("nsenter", f"--net={self.netns}")

    def add_namespace(self) -> str:
        """Make a network namespace, whose loopback is up, and return its path."""
        path = str(self._namespaces.make())
        # Nobody else is there to have the same IPv6 address: don't wait two seconds for each to be sure of that.
        for scope in ("all", "default"):
            run("nsenter", f"--net={path}", "sh", "-c", f"echo 0 >/proc/sys/net/ipv6/conf/{scope}/accept_dad")
        return path

    def leased(self) -> dict[str, LeaseReport]:
        """What the agent holds, by address."""
        return {lease.address: lease for lease in self.leases()}


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
