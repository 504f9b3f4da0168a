"""What tests build or fetch once: folders in the cache, named after all that went into them.

Several processes may ask at the same time; one of them makes it, the others wait. Standard library alone: this runs
before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["BuildError", "cache", "kept", "latest_kept", "one_at_a_time", "run", "say"]

_UNUSED_SECONDS = 24 * 3600.0


class BuildError(RuntimeError):
    """Something that the tests need can't be built or installed here; the message says what to do."""


def kept(name: str, digest: str, make: Callable[[Path], None]) -> Path:
    """The folder `name-<digest>` in the cache, which `make` fills when it is not there yet; one at a time."""
    folders = cache()
    with one_at_a_time(folders / f"{name}.lock"):
        folder = folders / f"{name}-{digest}"
        if not folder.exists():
            # A folder of another name takes the right one when it is complete.
            with tempfile.TemporaryDirectory(dir=folders, prefix=f"{name}-part-") as part:
                whole = Path(part) / "whole"
                whole.mkdir()
                make(whole)
                whole.rename(folder)
            say(f"built {folder}")
    return folder


def latest_kept(name: str, digest: str, make: Callable[[Path], None]) -> Path:
    """As `kept`, for what is big: folders of other digests that nobody asked for in a day are removed.

    Not at once: another checkout, or the same one at another commit, may be using them at this moment.
    """
    with one_at_a_time(cache() / f"{name}-use.lock"):
        folder = kept(name, digest, make)
        os.utime(folder)
        now = folder.stat().st_mtime
        for old in cache().glob(f"{name}-*"):
            if old.is_dir() and old.stat().st_mtime < now - _UNUSED_SECONDS:
                shutil.rmtree(old)
    return folder


def cache() -> Path:
    """The folder of all that the tests build or fetch once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "allotment"


def run(command: list[str], environment: dict[str, str], folder: Path | None = None) -> None:
    """Run a command with its output on stderr. Raises BuildError when it fails."""
    ended = subprocess.run(command, cwd=folder, env=environment, stdout=sys.stderr, check=False)
    if ended.returncode != 0:
        raise BuildError(f"failed: {' '.join(command)}")


def say(text: str) -> None:
    """Tell whoever waits what the waiting is for."""
    print(f"build: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
