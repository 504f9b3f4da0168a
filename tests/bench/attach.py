"""The scenarios of one call and of many: ADD and DEL by one caller, and throughput with several."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING

from bench.figures import Figure, Outcome, median_ratio
from bench.load import measure
from bench.stage import HELD

if TYPE_CHECKING:
    from pathlib import Path

    from bench.figures import Reading
    from bench.load import Measured
    from bench.stage import Stage

__all__ = ["one_caller", "throughput"]

CALLERS = (8, 32)
VERBS = ("ADD", "DEL")
_EIGHTH = 1 / 8
_TWICE = 2.0
_TEN_TIMES = 10.0
_RATE = 2000.0


def one_caller(stage: Stage) -> Outcome:
    """ADD and DEL with HELD leases: ours, host-local's and the floor's, one after the other in every round.

    Each operation is an ADD and the DEL of the same container, so that the number of leases stays where it is.
    """
    outcome = Outcome()
    ours = {verb: outcome.reading(verb.lower(), f"{verb}, {HELD} leases, 1 caller", "Allotment") for verb in VERBS}
    theirs = {verb: outcome.reading(verb.lower(), f"{verb}, {HELD} leases, 1 caller", "host-local") for verb in VERBS}
    status = outcome.reading("add", "STATUS, 1 caller", "Allotment")
    floor = outcome.reading("add", "fork, exec, exit", "do-nothing binary")
    sync = outcome.reading("add", "fdatasync of 4 KiB", "disk")
    for _ in range(stage.rounds):
        count = stage.size(40)
        mine = measure(stage.ours.plugin, VERBS, count, first=stage.numbers(count))
        floor.add(measure(stage.nothing, ["NOTHING"], count).latencies["NOTHING"])
        few = stage.size(12)
        rival = measure(stage.rival, VERBS, few, first=stage.numbers(few))
        status.add(measure(stage.ours.plugin, ["STATUS"], count).latencies["STATUS"])
        # Between two calls of one caller the disk has nothing to do for as long, and takes longer for it.
        sync.add(stage.sync(count, pace=status.rounds[-1]))
        for verb in VERBS:
            ours[verb].add(mine.latencies[verb])
            theirs[verb].add(rival.latencies[verb])
    least = [a + b for a, b in zip(floor.rounds, sync.rounds, strict=True)]
    for verb in VERBS:
        made_of = _parts(ours[verb].median, floor.median, sync.median, status.median)
        name = verb.lower()
        outcome.figures += [
            Figure(
                name,
                f"{verb} over host-local's",
                median_ratio(ours[verb].rounds, theirs[verb].rounds),
                _EIGHTH,
                "at most",
                made_of=made_of,
            ),
            Figure(
                name,
                f"{verb} over fork, exec and one fdatasync",
                median_ratio(ours[verb].rounds, least),
                _TWICE,
                "at most",
                made_of=made_of,
            ),
        ]
    return outcome


def _parts(whole: float, floor: float, sync: float, status: float) -> str:
    """STATUS is all of a call but the lease and the disk, which splits what is above the floor in two."""
    return (
        f"{whole:.0f} µs = {floor:.0f} process + {status - floor:.0f} shim, socket and event loop"
        f" + {sync:.0f} fdatasync + {whole - status - sync:.0f} deciding and writing it down"
    )


def throughput(stage: Stage) -> Outcome:
    """Calls per second with several callers, ADDs first and then the DELs of the same containers."""
    outcome = Outcome()
    for callers in CALLERS:
        _throughput(stage, callers, outcome)
    return outcome


def _throughput(stage: Stage, callers: int, outcome: Outcome) -> None:
    rates: dict[tuple[str, str], Reading] = {}
    times: dict[tuple[str, str], Reading] = {}
    contenders = {"Allotment": (stage.ours.plugin, stage.size(640)), "host-local": (stage.rival, stage.size(96))}
    for who in contenders:
        for verb in VERBS:
            what = f"{verb}, {callers} callers"
            rates[who, verb] = outcome.reading("throughput", what, who, "/s")
            times[who, verb] = outcome.reading("throughput", what, who)
    floor = outcome.reading("throughput", f"fork, exec, exit, {callers} callers", "do-nothing binary", "/s")
    spent: list[tuple[float, float, float]] = []
    answers = stage.folder / f"answers-{callers}"
    for _ in range(max(3, stage.rounds // 3)):
        for who, (plugin, count) in contenders.items():
            first = stage.numbers(count)
            for verb in VERBS:
                before = stage.ours.usage().cpu_seconds
                to = answers if (who, verb) == ("Allotment", "ADD") else None
                done = measure(plugin, [verb], count, first=first, callers=callers, answers=to)
                rates[who, verb].add([done.rate])
                times[who, verb].add(done.latencies[verb])
                if to is not None:
                    spent.append(_cpu(done, (stage.ours.usage().cpu_seconds - before) * 1e6))
                    outcome.problems += _wrong(to, count)
        many = stage.size(640)
        floor.add([measure(stage.nothing, ["NOTHING"], many, callers=callers).rate])
    made_of = _spent(spent)
    # A machine that can't start 4,000 processes a second can't be asked for 2,000 calls: as for one caller, half.
    needed = min(_RATE, floor.median / 2)
    for verb in VERBS:
        mine, theirs = rates["Allotment", verb], rates["host-local", verb]
        what = f"{verb}s a second, {callers} callers"
        ratio = median_ratio(mine.rounds, theirs.rounds)
        outcome.figures += [
            Figure("throughput", f"{what}, over host-local's", ratio, _TEN_TIMES, "at least", made_of=made_of),
            Figure("throughput", what, mine.median, needed, "at least", "/s", made_of),
        ]


def _cpu(done: Measured, agent: float) -> tuple[float, float, float]:
    return agent / done.calls, done.plugin_cpu / done.calls, done.driver_cpu / done.calls


def _spent(rounds: list[tuple[float, float, float]]) -> str:
    agent, plugin, driver = (statistics.median(part) for part in zip(*rounds, strict=True))
    return f"CPU time per ADD: {agent:.0f} µs agent + {plugin:.0f} µs shim process + {driver:.0f} µs starting it"


def _wrong(answers: Path, count: int) -> list[str]:
    """What is wrong with `count` answers that were all held at once: each must be another address (I1)."""
    given = [json.loads(line)["ips"][0]["address"] for line in answers.read_text().splitlines()]
    answers.unlink()
    if len(given) == count == len(set(given)):
        return []
    return [f"throughput: {count} ADDs answered with {len(given)} results and {len(set(given))} different addresses"]
