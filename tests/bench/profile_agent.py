"""`python -m bench.profile_agent`, from the folder `tests`: where the agent's time goes under load.

Runs the agent under a profiler (see profiled.py) with HELD leases, loads it with ADD and DEL through the shim, and
prints the hot spots. `--how calls` counts calls with cProfile; the default samples, which distorts less.
"""

from __future__ import annotations

import argparse
import json
import pstats
import sys
from pathlib import Path
from typing import Any

from bench.__main__ import ROOT
from bench.load import measure
from bench.stage import HELD, Stage


def main() -> None:
    """Profile and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile_agent", description=__doc__)
    parser.add_argument("--how", choices=("samples", "calls"), default="samples")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--count", type=int, default=3000, help="ADDs, and as many DELs")
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--leases", type=int, default=HELD)
    options = parser.parse_args()
    with Stage(ROOT / "build" / "bench") as stage:
        out = stage.folder / "profile"
        agent = stage.agent("profiled", runner=(str(Path(__file__).with_name("profiled.py")), options.how, str(out)))
        agent.start()
        agent.fill(options.leases)
        before = agent.usage().cpu_seconds
        done = measure(
            agent.plugin, ["ADD", "DEL"], options.count, first=stage.numbers(options.count), callers=options.callers
        )
        cpu = (agent.usage().cpu_seconds - before) / done.calls * 1e6
        agent.stop()
        print(f"{done.calls:,} calls, {done.rate:,.0f}/s, {cpu:.0f} µs of CPU time each (with the profiler's own)\n")
        if options.how == "calls":
            for order in ("tottime", "cumulative"):
                pstats.Stats(str(out), stream=sys.stdout).sort_stats(order).print_stats(options.top)
        else:
            _print(json.loads(out.read_text()), options.top)


def _print(seen: dict[str, Any], top: int) -> None:
    for name, title in (("alone", "the line itself"), ("within", "the function and what it calls")):
        print(f"{title}, share of {seen['samples']:,} samples:")
        ordered = sorted(seen[name].items(), key=lambda entry: -entry[1])
        for place, count in ordered[:top]:
            print(f"{count / seen['samples']:7.1%}  {place}")
        print()


if __name__ == "__main__":
    main()
