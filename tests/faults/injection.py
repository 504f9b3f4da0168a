"""A disk that fails on demand: builds and controls `faults.c`.

    with Faults(folder) as faults:
        process = subprocess.Popen(command, env=faults.environment())
        faults.arm(Call.SYNC, error=errno.EIO, match="-wal")
        ...
        faults.disarm()

Several processes started with the same environment share one control and one count.
"""

import contextlib
import enum
import hashlib
import mmap
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("faults.c")
_LAYOUT = struct.Struct("=IIiIQQQQ80s")  # struct control of faults.c
_SEEN = struct.Struct("=Q")
_SEEN_AT = 32
KILL = 0
"""In the place of an errno: the process is killed there."""
HOLD = -1
"""In the place of an errno: the call is held up until `disarm`, and then done. What a disk does that is slow."""


class Call(enum.IntFlag):
    """Kinds of call; the numbers are those of faults.c."""

    WRITE = 1
    SYNC = 2
    RENAME = 4
    TRUNCATE = 8
    OPEN = 16
    REMOVE = 32
    ALLOCATE = 64
    FOLDER = 128
    READ = 256


CHANGES = Call.WRITE | Call.SYNC | Call.RENAME | Call.TRUNCATE | Call.REMOVE | Call.ALLOCATE | Call.FOLDER
"""All that changes something on the disk."""


class Control:
    """The switchboard, shared with the processes whose disk fails."""

    def __init__(self, path):
        self.path = Path(path)
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, _LAYOUT.size)
        finally:
            os.close(descriptor)

    def arm(self, calls, *, first=1, times=0, error=KILL, half=False, kill=0, match=""):
        """From now on: count `calls`, and fail the `first` one (and the following, `times` in all; 0: for ever).

        With `half` a write does half of its work first. At call number `kill` the process is killed, whatever else.
        """
        self._map[: _LAYOUT.size] = _LAYOUT.pack(0, calls, error, half, first, times, 0, kill, match.encode())
        self._map[0] = 1

    def count(self, calls, *, match=""):
        """From now on: count `calls` and fail none."""
        self.arm(calls, first=2**63, match=match)

    def disarm(self):
        """From now on: fail nothing."""
        self._map[0] = 0

    @property
    def seen(self):
        """How many calls were counted since `arm` or `count`."""
        return _SEEN.unpack_from(self._map, _SEEN_AT)[0]

    def close(self):
        self._map.close()


class Faults:
    """Faults below `folder`, for processes started with `environment()`."""

    def __init__(self, folder):
        self._folder = Path(folder).resolve()

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        file = self._stack.enter_context(tempfile.NamedTemporaryFile(prefix="allotment-faults-"))
        file.write(bytes(_LAYOUT.size))
        file.flush()
        self.control = Control(file.name)
        self._stack.callback(self.control.close)
        return self

    def __exit__(self, *_):
        self._stack.close()

    def environment(self):
        """The environment of a process whose disk fails; its `Control` is at `ALLOTMENT_FAULTS_CONTROL`."""
        return {
            **os.environ,
            "LD_PRELOAD": str(library()),
            "ALLOTMENT_FAULTS_CONTROL": str(self.control.path),
            "ALLOTMENT_FAULTS_BELOW": str(self._folder),
        }


def library():
    """The library, built when its source is new."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = home / "allotment" / f"faults-{digest}" / "faults.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f"faults-{os.getpid()}.so")
        command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([*command, "-o", str(draft), str(_SOURCE), "-ldl"], check=True, capture_output=True, text=True)
        draft.rename(target)
    return target
