"""One agent per state folder.

The lock is `flock` on the folder itself, which nothing in it renames, replaces or removes (CASES C63: a lock on a file
that a commit renames is held twice, and so is one on a file that somebody tidies away). The kernel lets go of it when
the process ends, however it ends. Who has it stands in the file `agent.lock`, for people.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from allotment.addressing.errors import LedgerUnavailable, StateFolderHeld

if TYPE_CHECKING:
    from allotment.observe.clock import Clock

__all__ = ["StateLock"]


class StateLock:
    """The lock on a state folder, held from `take` to `release` or to the end of the process."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self._holder = folder / _HOLDER
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, *, node: str, clock: Clock) -> StateLock:
        """Take the lock on `folder`, which exists, and write down who has it.

        Raises:
            StateFolderHeld: another process has it; the message says which.
            LedgerUnavailable: the folder can't be used at all.
        """
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise LedgerUnavailable(f"the state folder {folder} can't be used: {error.strerror}") from error
        try:
            holder = _lock(descriptor, folder / _HOLDER)
        except OSError as error:
            os.close(descriptor)
            raise LedgerUnavailable(f"the state folder {folder} can't be locked: {error.strerror}") from error
        if holder:
            os.close(descriptor)
            raise StateFolderHeld(
                f"the state folder {folder} is in use by another agent ({holder}): stop that one, or give this one "
                "another --state-dir"
            )
        lock = cls(folder, descriptor)
        since = dt.datetime.fromtimestamp(clock.wall(), dt.UTC).isoformat(timespec="seconds")
        lock._say(json.dumps({"pid": os.getpid(), "node": node, "since": since}).encode() + b"\n")
        return lock

    def release(self) -> None:
        """Let go of it; the file stays, if it is there. A second time does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._say(b"", make=0)
            os.close(descriptor)

    def _say(self, content: bytes, *, make: int = os.O_CREAT) -> None:
        """Write down who has the lock. On a full disk it holds all the same."""
        with contextlib.suppress(OSError):
            file = os.open(self._holder, os.O_WRONLY | make | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, content)
            finally:
                os.close(file)


def _lock(descriptor: int, written: Path) -> str:
    """Lock the folder, or say who has it locked. One that has only just done so is given the time to say who it is.

    Until then the file may name an earlier one, which was killed; so may one seem to have been that is in another PID
    namespace.
    """
    holder = ""
    for _ in range(_LOOKS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder, lives = _read_holder(written)
            if lives:
                return holder
            time.sleep(_PAUSE)
        else:
            return ""
    return holder or "it has not written down who it is"


def _read_holder(written: Path) -> tuple[str, bool]:
    """Who has written itself down as the holder, empty where nobody has; and whether there is such a process here."""
    try:
        holder = json.loads(written.read_bytes()[:4096])
        lives = Path("/proc", str(int(holder["pid"]))).exists()
        return f"process {holder['pid']} of node {holder['node']}, since {holder['since']}", lives
    except (OSError, ValueError, KeyError, TypeError):
        return "", False


_HOLDER = "agent.lock"
_LOOKS = 20
_PAUSE = 0.01
