"""`python -m bench`, from the folder `tests` (or `make bench`): exit code 0 when every bar is reached, else 1."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import CLOCK_MONOTONIC
from time import clock_gettime as clock
from typing import TYPE_CHECKING, Final

from bench import attach, draining, lasting, report, starting, watching
from bench.figures import Outcome
from bench.load import LoadError
from bench.machine import facts, load_average
from bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parents[2]

# In the order they are run in: `start` needs the agent for many leases before it has them all.
SCENARIOS: Final[dict[str, Callable[[Stage], Outcome]]] = {
    "size": lasting.sizes,
    "add": attach.one_caller,
    "del": attach.one_caller,
    "throughput": attach.throughput,
    "replace": lasting.replacement,
    "start": lasting.start,
    "memory": lasting.memory,
    "growth": lasting.growth,
    "pods": starting.pods,
    "drain": draining.drain,
    "idle": watching.idle,
    "foreign": watching.foreign,  # last: it fills the API server
}
GROUPS: Final = {"cluster": ("pods", "drain", "idle", "foreign")}


def main() -> int:
    """Run what was asked for, and report it."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that `with` blocks end
    _say("building what is not built yet (shim, load driver, host-local)")
    subprocess.run([sys.executable, str(ROOT / "shim" / "build.py")], check=True, stdout=sys.stderr)
    before, begin = load_average(), clock(CLOCK_MONOTONIC)
    outcome = Outcome()
    with Stage(options.folder, rounds=options.rounds, quick=options.quick) as stage:
        try:
            outcome.extend(_run(options.only, stage))
        except LoadError as error:
            _say(f"{error}\n{stage.log_ends()}")
            return 1
        about = facts(options.folder)
    outcome.figures = [figure for figure in outcome.figures if figure.scenario in options.only]
    about["load average"] = f"{before:.2f} before, {load_average():.2f} after"
    about["run"] = f"{clock(CLOCK_MONOTONIC) - begin:.0f} s, {options.rounds} rounds" + (
        ", quick" if options.quick else ""
    )
    if before > 1:
        about["beware"] = "others used this machine as well: trust ratios, and repeat before believing a miss"
    report.write(options.results, outcome, about)
    print(report.markdown(outcome, about))
    _say(f"written to {options.results}")
    return 1 if report.missed(outcome) else 0


def _run(names: list[str], stage: Stage) -> list[Outcome]:
    """Each scenario once, also where two names stand for the same one."""
    done: dict[Callable[[Stage], Outcome], Outcome] = {}
    for name, scenario in SCENARIOS.items():
        if name in names and scenario not in done:
            begin = clock(CLOCK_MONOTONIC)
            done[scenario] = scenario(stage)
            _say(f"{name}: {clock(CLOCK_MONOTONIC) - begin:.1f} s")
    return list(done.values())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    only = [os.environ.get("BENCH") or ",".join(SCENARIOS)]
    parser.add_argument(
        "only", nargs="*", default=only, help=f"of {', '.join([*SCENARIOS, *GROUPS])} (variable BENCH; all)"
    )
    rounds = int(os.environ.get("ROUNDS") or 0)
    parser.add_argument("--rounds", type=int, default=rounds, help="how often each is measured (variable ROUNDS)")
    quick = bool(os.environ.get("QUICK"))
    parser.add_argument("--quick", action="store_true", default=quick, help="fewer calls and rounds (variable QUICK)")
    folder = ROOT / "build" / "bench"
    parser.add_argument("--folder", type=Path, default=folder, help="where state folders are made: on a real disk")
    parser.add_argument("--results", type=Path, default=folder, help="where the results are written")
    options = parser.parse_args()
    options.only = _names(parser, ",".join(options.only))
    options.rounds = max(options.rounds, 1) if options.rounds else (5 if options.quick else 15)
    return options


def _names(parser: argparse.ArgumentParser, text: str) -> list[str]:
    names = [name for word in text.replace(",", " ").split() for name in GROUPS.get(word, (word,))]
    if unknown := [name for name in names if name not in SCENARIOS]:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join([*SCENARIOS, *GROUPS])}")
    return names


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
