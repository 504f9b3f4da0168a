"""Runs `allotment` under a profiler: `python profiled.py samples|calls OUT agent …`; for profile_agent.py.

`samples` looks, up to a thousand times per second of CPU time, at what the event loop's thread is doing: cheap, so
that the proportions are true. What C code costs is put down to the Python line that called it, and what other threads
use to the loop's wait in `select`. `calls` is cProfile, in every thread: it counts each call, and makes small
functions look more expensive than they are.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

_INTERVAL = 0.001  # seconds of CPU time of the process; the kernel's tick may make it 0.004
_LOOP = "asyncio/base_events.py BaseEventLoop.run_forever"


def main() -> int:
    """Run the command; what was seen is written to OUT when it has ended."""
    how, out, *arguments = sys.argv[1:]
    sys.path.pop(0)  # the folder of this file: its modules are not the command's business
    run = _samples if how == "samples" else _calls
    return run(Path(out), arguments)


def _samples(out: Path, arguments: list[str]) -> int:
    from allotment.cli import main as allotment

    alone: Counter[str] = Counter()
    within: Counter[str] = Counter()

    def look(_: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        line, stack = f"{_place(frame)}:{frame.f_lineno}", {_place(frame)}
        while (frame := frame.f_back) is not None:
            stack.add(_place(frame))
        if _LOOP in stack:  # what comes before is the start: imports, mostly
            alone[line] += 1
            within.update(stack)

    signal.signal(signal.SIGPROF, look)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL, _INTERVAL)
    try:
        return allotment(arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write_text(json.dumps({"samples": alone.total(), "alone": dict(alone), "within": dict(within)}))


def _place(frame: FrameType) -> str:
    return f"{_short(frame.f_code.co_filename)} {frame.f_code.co_qualname}"


def _short(path: str) -> str:
    for root in ("/agent/", "/site-packages/", f"/python{sys.version_info[0]}.{sys.version_info[1]}/"):
        if root in path:
            return path.rsplit(root, 1)[1]
    return path


def _calls(out: Path, arguments: list[str]) -> int:
    from allotment.cli import main as allotment

    profiles: list[cProfile.Profile] = []

    def begin(*_: Any) -> None:
        """The first event in a new thread: its own profiler takes over from here."""
        profile = cProfile.Profile()
        profiles.append(profile)
        profile.enable()

    if sys.version_info < (3, 12):  # since then there is one profiler for the whole process, and the loop has it
        threading.setprofile(begin)
    own = cProfile.Profile()
    try:
        return own.runcall(allotment, arguments)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]  # None is how it is switched off
        total = pstats.Stats(own)
        for profile in profiles:
            total.add(profile)
        total.dump_stats(out)


if __name__ == "__main__":
    sys.exit(main())
