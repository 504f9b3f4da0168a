"""The machine that was measured on: what has to stand beside every figure."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
from pathlib import Path

__all__ = ["facts", "file_system", "load_average"]

_NO_DISK = {"tmpfs", "ramfs", "overlay", "devtmpfs"}


def file_system(folder: Path) -> tuple[str, str]:
    """The type of the file system that holds `folder`, and its device.

    Raises:
        ValueError: it has no disk below it (or it can't be known), so that an fdatasync would cost nothing.
    """
    wanted = folder.stat().st_dev
    found = ("unknown", "unknown")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        major, minor = left.split()[2].split(":")
        if os.makedev(int(major), int(minor)) == wanted:
            kind, device = right.split()[:2]
            found = (kind, device)
    if found[0] in _NO_DISK:
        raise ValueError(f"{folder} lies on {found[0]}, not on a disk; name another folder with --folder")
    return found


def load_average() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]


def facts(folder: Path) -> dict[str, str]:
    """One line for each."""
    kind, device = file_system(folder)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{int(memory[1]) / 2**20:.1f} GiB" if memory else "unknown",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "state folder": f"{kind} on {device}",
        "Python": f"{platform.python_version()}, SQLite {sqlite3.sqlite_version}",
    }


def _processor() -> str:
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
