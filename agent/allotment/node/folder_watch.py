"""A doorbell on a folder: rings when something in it changes, also when the folder itself is replaced (inotify).

It only says that something may have changed; whoever is woken looks for himself. What inotify can't see (a change
behind a symlink, a mount over the folder, a network file system) is found by looking again now and then.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["FolderWatch"]

# <sys/inotify.h>; numbers of the kernel's ABI.
_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _IGNORED, _ONLYDIR = 0x400, 0x800, 0x8000, 0x1000000
_NAMES = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_INSIDE = _NAMES | _MODIFY | _ATTRIB | _CLOSE_WRITE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_ABOVE = _NAMES | _ONLYDIR
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


class FolderWatch:
    """Calls `ring` on the event loop when the folder may have changed; a context manager, used on that loop."""

    def __init__(self, folder: Path, ring: Callable[[], None]) -> None:
        """Nothing is watched before the context is entered and `renew` was called."""
        self._folder = folder
        self._ring = ring
        self._descriptor = -1
        self._inside = -1
        self._above = -1
        self._awaited = b""  # the name that is looked for in the folder above

    def __enter__(self) -> Self:
        """Open the inotify instance. Raises OSError where there are too many (fs.inotify.max_user_instances)."""
        descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            raise _error("inotify_init1")
        self._descriptor = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._readable)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = self._inside = self._above = -1

    def renew(self) -> str:
        """Watch what is at the folder's path now; call it before each look, so that no change falls in between.

        Returns why it can't be watched, or nothing. A folder that is not there is waited for in the nearest one
        above it that is.
        """
        self._inside, trouble = self._moved(self._inside, self._folder, _INSIDE)
        below = self._folder.absolute()
        while True:
            self._awaited = os.fsencode(below.name)
            self._above, absent = self._moved(self._above, below.parent, _ABOVE)
            if not absent or below.parent == below:
                break
            below = below.parent
        return trouble if self._folder.is_dir() else ""

    def _moved(self, watch: int, folder: Path, mask: int) -> tuple[int, str]:
        """Put a watch on a folder, and take away the one before if that was on something else."""
        new = _libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask)
        trouble = "" if new >= 0 else str(_error(f"inotify_add_watch of {folder}"))
        if watch >= 0 and watch != new:
            _libc.inotify_rm_watch(self._descriptor, watch)  # fails where it went with its folder
        return new, trouble

    def _readable(self) -> None:
        rings = False
        while True:
            try:
                data = os.read(self._descriptor, _BUFFER)
            except BlockingIOError:
                break
            except InterruptedError:
                continue
            rings = self._matters(data) or rings
        if rings:
            self._ring()

    def _matters(self, data: bytes) -> bool:
        """Whether one of the events is about the folder. What happens to its neighbours is not."""
        at = 0
        matters = False
        while at < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, at)
            subject = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
            at += _EVENT.size + length
            if watch == self._inside or watch < 0:  # below 0: the queue overflowed, anything may have happened
                matters = True
            elif watch == self._above and not mask & _IGNORED:
                matters = matters or subject == self._awaited
        return matters


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    if number in {errno.ENOSPC, errno.EMFILE}:
        hint = "raise fs.inotify.max_user_watches or fs.inotify.max_user_instances"
        return OSError(number, f"{call}: {os.strerror(number)} ({hint})")
    return OSError(number, f"{call}: {os.strerror(number)}")
