"""What the machine itself says of a lease's owner: whether its network namespace is gone.

A path that can't be looked at proves nothing, and neither does one in a folder that isn't there: this may not be the
host's view of its files (I8). Paths below /proc name a process, whose number another may have by now, or which a
container with processes of its own doesn't see: they prove nothing either.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["namespace_gone", "namespaces_gone"]

_NOTHING_PROVEN = None


def namespace_gone(path: str) -> bool | None:
    """Whether no network namespace is mounted at `path` any more; None when nothing is proven either way."""
    if not path.startswith("/") or path.startswith("/proc/"):
        return _NOTHING_PROVEN
    place = Path(path)
    try:
        folder = place.parent.stat()
    except OSError:
        return _NOTHING_PROVEN
    if not stat.S_ISDIR(folder.st_mode):
        return _NOTHING_PROVEN
    try:
        found = place.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return _NOTHING_PROVEN
    # A mounted namespace lies on a file system of its own; a file on the folder's is what an unmount leaves.
    return found.st_dev == folder.st_dev


def namespaces_gone(paths: Iterable[str]) -> dict[str, bool | None]:
    """`namespace_gone` of each; it looks at the disk."""
    return {path: namespace_gone(path) for path in paths}
