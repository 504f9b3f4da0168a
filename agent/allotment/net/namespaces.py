"""What is inside other network namespaces: their interfaces' addresses, read without leaving our own.

A short-lived thread enters the namespace, opens a netlink socket there and ends; the socket stays bound to that
namespace and is read from the event loop. Nothing forks, and no thread of the process is left in a strange namespace.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allotment.addressing.address import Address, parse_address
from allotment.addressing.errors import InternalError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["InterfaceAddress", "addresses_in", "identity", "namespaces_below"]

_CLONE_NEWNET = 0x40000000
_NETLINK_ROUTE = 0
_LINK_LOCAL_SCOPE = 253
_HOST_SCOPE = 254


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address on one interface of a namespace; link-local and loopback ones are left out."""

    interface: str
    address: Address
    length: int


def namespaces_below(folder: Path) -> tuple[Path, ...]:
    """The namespaces that are mounted in `folder`, such as /run/netns; a missing folder holds none.

    Raises:
        InternalError: the folder is there but can't be read, which must not be taken for an empty one (I8).
    """
    try:
        return tuple(sorted(path for path in folder.iterdir() if identity(path) is not None))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InternalError(f"cannot list the network namespaces in {folder}: {error.strerror}") from error


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a mounted network namespace; None when there is none (a plain file left behind is none)."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if _is_nsfs(path) else None


async def addresses_in(path: Path) -> tuple[InterfaceAddress, ...]:
    """The global addresses in the namespace at `path`, by interface.

    Raises:
        InternalError: the namespace can't be entered or doesn't answer.
    """
    # Here, and not above: 7 MiB that an agent which looks into no namespace need not hold.
    from pyroute2 import AsyncIPRoute  # noqa: PLC0415, TID251  # net is the one user
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415, TID251  # as above

    netlink = _socket_in(path)
    try:
        async with AsyncIPRoute(use_socket=netlink) as route:
            names = {link["index"]: link.get("ifname") async for link in await route.link("dump")}
            found = [
                InterfaceAddress(names.get(entry["index"]) or "", parse_address(text), entry["prefixlen"])
                async for entry in await route.addr("dump")
                if entry["scope"] not in (_LINK_LOCAL_SCOPE, _HOST_SCOPE)
                and (text := entry.get("local") or entry.get("address"))
            ]
    except (OSError, NetlinkError) as error:
        raise InternalError(f"cannot read the addresses in the network namespace {path}: {error}") from error
    finally:
        netlink.close()
    return tuple(sorted(found, key=lambda item: (item.interface, item.address)))


def _is_nsfs(path: Path) -> bool:
    """Whether the file lies on nsfs, where the kernel mounts namespaces."""
    class_of = ctypes.create_string_buffer(256)
    if _LIBC.statfs(os.fsencode(path), class_of) != 0:
        return False
    return int.from_bytes(class_of.raw[:8], "little") == _NSFS_MAGIC


def _socket_in(path: Path) -> socket.socket:
    made: list[socket.socket] = []
    failed: list[BaseException] = []

    def enter() -> None:
        try:
            with path.open("rb") as handle:
                _setns(handle.fileno())
            made.append(socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_ROUTE))
        except BaseException as error:  # noqa: BLE001  # it is raised again below, in the caller's thread
            failed.append(error)

    # A thread of its own, never a pooled one: it ends inside the namespace it entered.
    thread = threading.Thread(target=enter, name="allotment-netns")
    thread.start()
    thread.join()
    if failed:
        error = failed[0]
        if isinstance(error, OSError) and error.errno == errno.EPERM:
            raise InternalError(f"cannot enter the network namespace {path}: it needs CAP_SYS_ADMIN") from error
        raise InternalError(f"cannot enter the network namespace {path}: {error}") from error
    return made[0]


def _setns(descriptor: int) -> None:
    if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_NSFS_MAGIC = 0x6E736673  # linux/magic.h
_LIBC = ctypes.CDLL(None, use_errno=True)
