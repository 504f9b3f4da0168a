"""The network of a cluster in namespaces: a bridge, and on it the control plane and each node with an `eth0`.

Nothing leads out of it. Node number k has 10.240.0.(10 + k) and fd00:240::(10 + k); its pods, where the reference
plugins give them addresses, have 10.244.k.0/24 and fd00:244:0:k::/64.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from namespaces import Namespaces

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["SERVICES", "Fabric", "Place", "connect", "enter"]

SERVICES = ("10.96.0.0/16", "fd00:96::/112")
"""What Services get their addresses from."""
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Place:
    """A namespace on the bridge, and its addresses there. `number` is 0 for the control plane."""

    name: str
    number: int
    netns: Path

    @property
    def address(self) -> str:
        return f"10.240.0.{10 + self.number}"

    @property
    def address6(self) -> str:
        return f"fd00:240::{10 + self.number}"

    @property
    def pods(self) -> tuple[str, str]:
        return f"10.244.{self.number}.0/24", f"fd00:244:0:{self.number}::/64"

    @property
    def within(self) -> tuple[str, ...]:
        """What goes before a command to run it here."""
        return ("nsenter", f"--net={self.netns}")

    def ip(self, commands: str) -> None:
        """Run these lines as `ip` commands."""
        subprocess.run([*self.within, "ip", "-batch", "-"], input=commands, text=True, check=True)


class Fabric:
    """The bridge and all places; a context manager that leaves no namespace behind."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._namespaces = Namespaces()
        self.folder = self._namespaces.folder
        """Where the namespaces are mounted."""
        try:
            self._bridge = Place("bridge", 0, self._namespaces.make(name="bridge"))
            self._bridge.ip("link add br0 type bridge\nlink set br0 up\n")
            self.control_plane = self._place("control-plane", 0)
            self.nodes = {name: self._place(name, number) for number, name in enumerate(nodes, start=1)}
            self._lay_routes()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._namespaces.__exit__()

    def add_flat_links(self) -> None:
        """Give each node a link `eth1`, all on one more bridge: what a flat network of pods goes over."""
        self._bridge.ip("link add br1 type bridge\nlink set br1 up\n")
        for place in self.nodes.values():
            port = f"flat{place.number}"
            self._bridge.ip(
                f"link add {port} type veth peer name eth1 netns {place.netns}\nlink set {port} master br1 up\n"
            )
            place.ip("link set eth1 up\n")

    def _place(self, name: str, number: int) -> Place:
        place = Place(name, number, self._namespaces.make(name=name))
        self._bridge.ip(
            f"link add port{number} type veth peer name eth0 netns {place.netns}\nlink set port{number} master br0 up\n"
        )
        place.ip(
            f"addr add {place.address}/24 dev eth0\n"
            f"addr add {place.address6}/64 dev eth0 nodad\n"
            "link set eth0 up\n"
            # Who is on the host network finds a Service only if some route leads to it: the address is changed after.
            f"route add {SERVICES[0]} dev eth0\n"
            f"route add {SERVICES[1]} dev eth0\n"
        )
        settings = ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.conf.all.rp_filter=0")
        subprocess.run([*place.within, "sysctl", "-qw", *settings], check=True)
        return place

    def _lay_routes(self) -> None:
        """Lead everybody to the pods that the reference plugins address; an agent's own networks lie elsewhere."""
        for place in (self.control_plane, *self.nodes.values()):
            for other in self.nodes.values():
                if other is not place:
                    v4, v6 = other.pods
                    place.ip(f"route add {v4} via {other.address}\nroute add {v6} via {other.address6}\n")


def enter(netns: Path) -> None:
    """Move this thread into a network namespace: the sockets that it makes from now on are there. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with netns.open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def connect(netns: Path, address: tuple[str, int], *, timeout: float) -> socket.socket:
    """A TCP connection made inside a network namespace, where it stays. Raises OSError."""
    found: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            enter(netns)
            found.append(socket.create_connection(address, timeout=timeout))
        except OSError as error:
            found.append(error)

    # The namespace is a thread's own, and ends with it.
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    [made] = found
    if isinstance(made, OSError):
        raise made
    return made
