"""The scenarios about what the agent is over time: many leases, memory, starting, being replaced, and size."""

from __future__ import annotations

import statistics
import subprocess
import sys
from time import CLOCK_MONOTONIC, sleep
from time import clock_gettime as clock
from typing import TYPE_CHECKING

from agents import shim_binary
from bench.figures import Figure, Outcome, median_ratio
from bench.load import Background, measure
from bench.rival import host_local
from bench.stage import HELD

if TYPE_CHECKING:
    from bench.agent import Agent
    from bench.stage import Stage

__all__ = ["growth", "memory", "replacement", "sizes", "start"]

MANY = 60_000
SOME = 10_000
RIVAL_MANY = 2_500  # host-local reads every lease's file for each call: with 60,000 one would take a second
REPLACEMENTS = 20
ARCHITECTURES = ("x86_64", "aarch64")
_LOAD_CALLERS = 4
_UNDER_LOAD = 0.3  # seconds of load between two replacements
_SETTLE = 1.0  # seconds until memory is looked at: the last batch's housekeeping is done


def sizes(stage: Stage) -> Outcome:
    """The shim's size, for both architectures."""
    del stage
    outcome = Outcome()
    for architecture in ARCHITECTURES:
        size = shim_binary(architecture).stat().st_size / 1024
        outcome.figures.append(Figure("size", f"shim for {architecture}", size, 64.0, "at most", "KiB"))
    return outcome


def memory(stage: Stage) -> Outcome:
    """Resident memory of the agent's process with HELD leases (a fresh agent) and with MANY (it gave all of them)."""
    outcome = Outcome()
    few = stage.agent("fresh")
    few.start()
    few.fill(HELD)
    bare = _bare_memory()
    for agent, leases, bar in ((few, HELD, 60.0), (_large(stage, MANY), MANY, 140.0)):
        sleep(_SETTLE)
        usage = agent.usage()
        what = f"agent's resident memory, {leases:,} leases"
        made_of = f"{bare:.0f} MiB of it a Python that has imported the agent and does nothing"
        outcome.figures.append(Figure("memory", what, usage.resident_kib / 1024, bar, "at most", "MiB", made_of))
    few.stop()
    return outcome


def _bare_memory() -> float:
    """MiB of a process that has loaded the agent's code and does nothing."""
    code = "import allotment.node.daemon; print(*[l for l in open('/proc/self/status') if l.startswith('VmRSS')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[1]) / 1024


def start(stage: Stage) -> Outcome:
    """From starting the process to its READY, with a ledger of SOME leases."""
    outcome = Outcome()
    taken = outcome.reading("start", f"start to ready, {SOME:,} leases", "Allotment", "ms")
    alone = outcome.reading("start", "start, import the agent, end", "Python", "ms")
    agent = _large(stage, SOME)
    for _ in range(3 if stage.quick else 7):
        agent.stop()
        taken.add([agent.start() * 1e3])
        agent.check()
        begin = clock(CLOCK_MONOTONIC)
        subprocess.run([sys.executable, "-c", "import allotment.node.daemon"], check=True)
        alone.add([(clock(CLOCK_MONOTONIC) - begin) * 1e3])
    made_of = f"{alone.median:.0f} ms of it a Python that imports the agent and ends"
    outcome.figures.append(
        Figure("start", f"start to ready, {agent.filled:,} leases", taken.median / 1e3, 1.5, "at most", "s", made_of)
    )
    return outcome


def growth(stage: Stage) -> Outcome:
    """ADD and DEL with MANY leases beside the same with HELD, two agents side by side; host-local for comparison."""
    outcome = Outcome()
    large = _large(stage, MANY)
    agents = {HELD: stage.ours.plugin, MANY: large.plugin}
    rivals = {
        HELD: stage.rival,
        RIVAL_MANY: host_local("host-local-many", stage.folder, stage.namespace, RIVAL_MANY),
    }
    verbs = ("ADD", "DEL")
    readings = {
        (who, leases, verb): outcome.reading("growth", f"{verb}, {leases:,} leases, 1 caller", who)
        for who, plugins in (("Allotment", agents), ("host-local", rivals))
        for leases in plugins
        for verb in verbs
    }
    for _ in range(stage.rounds):
        for who, plugins, count in (("Allotment", agents, stage.size(60)), ("host-local", rivals, stage.size(8))):
            for leases, plugin in plugins.items():
                done = measure(plugin, verbs, count, first=stage.numbers(count))
                for verb in verbs:
                    readings[who, leases, verb].add(done.latencies[verb])
    for verb in verbs:
        value = median_ratio(readings["Allotment", MANY, verb].rounds, readings["Allotment", HELD, verb].rounds)
        rival = median_ratio(readings["host-local", RIVAL_MANY, verb].rounds, readings["host-local", HELD, verb].rounds)
        made_of = f"host-local's {verb} grows {rival:.1f}x from {HELD} to {RIVAL_MANY:,} leases"
        what = f"{verb} with {MANY:,} leases over {verb} with {HELD}"
        outcome.figures.append(Figure("growth", what, value, 1.3, "at most", made_of=made_of))
    return outcome


def replacement(stage: Stage) -> Outcome:
    """The agent is replaced under load, once with the shim waiting for the socket, once with a socket that stays."""
    outcome = Outcome()
    for name, kept in (("the shim waits", False), ("socket activation", True)):
        agent = stage.agent("kept" if kept else "gone")
        if kept:
            agent.listen()
        agent.start()
        agent.fill(HELD)
        _replace(stage, agent, name, outcome)
        agent.stop()
    return outcome


def _replace(stage: Stage, agent: Agent, name: str, outcome: Outcome) -> None:
    away = outcome.reading("replace", f"SIGTERM to ready, {name}", "Allotment", "ms")
    verbs = ("ADD", "DEL")
    times = {verb: outcome.reading("replace", f"{verb} meanwhile, {name}", "Allotment") for verb in verbs}
    count = stage.size(REPLACEMENTS)
    with Background(agent.plugin, verbs, first=stage.numbers(1_000_000), callers=_LOAD_CALLERS) as load:
        for _ in range(count):
            sleep(_UNDER_LOAD)
            away.add([(agent.stop() + agent.start()) * 1e3])
        sleep(_UNDER_LOAD)
    done = load.result
    assert done is not None
    for verb in verbs:
        times[verb].add(done.latencies[verb])
    if done.failures:
        outcome.problems.append(f"replace, {name}: the first that failed: {done.first_failure}")
    if spooled := _spooled(agent):
        outcome.problems.append(f"replace, {name}: {spooled} DELs are still in the spool")
    if (held := len(agent.leases())) != HELD:
        outcome.problems.append(f"replace, {name}: {held} addresses are in use afterwards, not {HELD}")
    slowest = max(max(done.latencies[verb]) for verb in verbs) / 1e3
    made_of = (
        f"{done.calls:,} calls; the slowest took {slowest:,.0f} ms; away for {statistics.median(away.rounds):.0f} ms"
    )
    what = f"failed ADDs and DELs, {count} replacements, {name}"
    outcome.figures.append(Figure("replace", what, done.failures, 0, "at most", "", made_of))


def _spooled(agent: Agent) -> int:
    return len(list(agent.spool.iterdir())) if agent.spool.is_dir() else 0


def _large(stage: Stage, leases: int) -> Agent:
    """The agent for many leases, with `leases` of them at least."""
    if not stage.large.running:
        stage.large.start()
    stage.large.fill(leases)
    return stage.large
