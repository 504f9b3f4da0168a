"""Time. The only module that asks the machine what time it is (ruff's banned-api holds this).

Durations are measured on CLOCK_BOOTTIME, which neither jumps with the wall clock nor stands still in suspend, and
belong to one boot, named by the kernel's boot ID (I13). Wall time is for people alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Protocol

__all__ = ["BOOT_ID_PATH", "Clock", "SystemClock", "read_boot_id"]

BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """What the daemon asks for the time; `allotment.testing.clock.ManualClock` is the other implementation."""

    @property
    def boot(self) -> str:
        """The boot ID that `seconds` belongs to."""
        ...

    def seconds(self) -> float:
        """Seconds on the clock that never jumps."""
        ...

    def wall(self) -> float:
        """Unix time, for people."""
        ...

    def started(self, pid: int) -> float | None:
        """The time of `seconds` at which a process was started, or a little before; None where it can't be seen."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def __init__(self, boot: str) -> None:
        self._boot = boot

    @property
    def boot(self) -> str:
        """The boot ID that `seconds` belongs to."""
        return self._boot

    def seconds(self) -> float:
        """Seconds of CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Unix time, for people."""
        return time.time()  # noqa: TID251  # the one place

    def started(self, pid: int) -> float | None:
        """The start of a process by the kernel's own record (proc_pid_stat(5), field 22), cut off to its ticks."""
        try:
            fields = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
            return int(fields[19]) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return None

    async def sleep(self, seconds: float) -> None:
        """Wait that long on the event loop's clock."""
        await asyncio.sleep(seconds)  # noqa: TID251  # the one place


def read_boot_id(path: Path = BOOT_ID_PATH) -> str:
    """The kernel's random ID of this boot.

    Raises:
        OSError: the file can't be read; without it no lease can be told from one of an earlier boot.
    """
    return path.read_text(encoding="ascii").strip()
