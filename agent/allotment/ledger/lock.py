"""One agent per state folder.

The lock is `flock` on a file that is never renamed, replaced or removed (CASES C63: a lock on a file that a commit
renames is held twice). The kernel lets go of it when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING

from allotment.addressing.errors import LedgerUnavailable, StateFolderHeld

if TYPE_CHECKING:
    from pathlib import Path

    from allotment.observe.clock import Clock

__all__ = ["StateLock"]


class StateLock:
    """The lock on a state folder, held from `take` to `release` or to the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, *, node: str, clock: Clock) -> StateLock:
        """Take the lock on `folder`, which exists, and write down who has it.

        Raises:
            StateFolderHeld: another process has it; the message says which.
            LedgerUnavailable: the folder can't be used at all.
        """
        path = folder / "agent.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerUnavailable(f"the state folder {folder} can't be used: {error.strerror}") from error
        try:
            holder = _lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise LedgerUnavailable(f"the state folder {folder} can't be locked: {error.strerror}") from error
        if holder:
            os.close(descriptor)
            raise StateFolderHeld(
                f"the state folder {folder} is in use by another agent ({holder}): stop that one, or give this one "
                "another --state-dir"
            )
        since = dt.datetime.fromtimestamp(clock.wall(), dt.UTC).isoformat(timespec="seconds")
        content = json.dumps({"pid": os.getpid(), "node": node, "since": since}).encode() + b"\n"
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content, 0)
        return cls(descriptor)

    def release(self) -> None:
        """Let go of it; the file stays. A second time does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)


def _lock(descriptor: int) -> str:
    """Lock the file, or say who has it locked. One that has only just done so is given the time to say who it is."""
    for _ in range(_LOOKS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(descriptor)
            if holder:
                return holder
            time.sleep(_PAUSE)
        else:
            return ""
    return "it has not written down who it is"


def _read_holder(descriptor: int) -> str:
    """Who has written itself down as the holder; empty where nobody has."""
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {holder['pid']} of node {holder['node']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


_LOOKS = 20
_PAUSE = 0.01
