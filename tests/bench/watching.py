"""What an agent in a cluster costs: what it watches, what it holds, and what it does while nothing happens."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from time import CLOCK_MONOTONIC, sleep
from time import clock_gettime as clock
from typing import TYPE_CHECKING

from agents import conf
from allotment.cni.client import Client, error_of
from allotment.cri.messages import Sandbox
from allotment.testing.cri import FakeRuntime
from bench.crowd import fill
from bench.figures import Figure, Outcome
from bench.load import LoadError
from bench.served import AGENT, ServedAgent, admit, bind_pods, metrics_of, settled, watched, writes

if TYPE_CHECKING:
    from pathlib import Path

    from agents import Usage
    from bench.stage import Stage

__all__ = ["foreign", "idle"]

OWN_PODS = 110
FOREIGN_ALLOCATIONS = 5_000
FOREIGN_PODS = 50_000
SHARED = frozenset({"networks", "ipreservations", "ipamconfigs"})
"""Kinds of which a cluster has few, and every node needs all."""
_SETTLE = 5.0  # seconds after the start until memory is looked at
_FIRST_LOOKS = 65.0  # seconds: the runtime is looked at every 30, and what that takes is there from then on
_WINDOW = 180.0


def foreign(stage: Stage) -> Outcome:
    """The same agent is started with nobody else in the cluster, and with thousands of nodes' objects."""
    outcome = Outcome()
    node, server = "watcher", stage.api
    bind_pods(server, node, OWN_PODS)
    network = admit(server, "watched", node, "10.0.0.0/8", "10.0.0.0/24")
    folder = stage.folder / node
    starts = 2 if stage.quick else 5
    alone = [_started(stage, node, folder) for _ in range(starts)]
    share = 10 if stage.quick else 1
    allocations, pods = FOREIGN_ALLOCATIONS // share, FOREIGN_PODS // share
    begin = clock(CLOCK_MONOTONIC)
    fill(server, allocations=allocations, pods=pods, network=network)
    stage.say(f"made {allocations:,} Allocations and {pods:,} pods in {clock(CLOCK_MONOTONIC) - begin:.0f} s")
    among = [_started(stage, node, folder) for _ in range(starts)]
    crowd = f"{allocations:,} foreign Allocations and {pods:,} foreign pods"
    for who, several in (("alone", alone), (crowd, among)):
        outcome.reading("foreign", "sent by the API server at the start", who, "KiB").add(
            [each.received / 1024 for each in several]
        )
        outcome.reading("foreign", "resident memory", who, "MiB").add([each.resident for each in several])
    watches = among[-1].watches
    others = {kind for kind, selector in watches.items() if kind not in SHARED and f"={node}" not in selector}
    sent = [statistics.median(each.received for each in several) for several in (alone, among)]
    held = [statistics.median(each.resident for each in several) for several in (alone, among)]
    told = ", ".join(f"{kind} ({selector})" if selector else kind for kind, selector in sorted(watches.items()))
    outcome.figures += [
        Figure("foreign", "watches of more than the own node's objects", len(others), 0, "at most", "", made_of=told),
        Figure(
            "foreign",
            f"bytes sent to a starting agent, with {crowd} over none",
            sent[1] / sent[0],
            1.05,
            "at most",
            made_of=f"{sent[0] / 1024:.1f} KiB without, {sent[1] / 1024:.1f} with",
        ),
        Figure(
            "foreign",
            f"agent's resident memory, what {crowd} add",
            max(0.0, held[1] - held[0]),
            1.0,
            "at most",
            "MiB",
            made_of=f"{held[0]:.1f} MiB without, {held[1]:.1f} with",
        ),
    ]
    return outcome


@dataclass(frozen=True, slots=True)
class _Start:
    received: int
    resident: float
    watches: dict[str, str]


def _started(stage: Stage, node: str, folder: Path) -> _Start:
    """What a start of the agent came to, some seconds after it."""
    before = len(stage.api.audit(AGENT))
    with ServedAgent(stage.launcher, stage.api, node, folder, stage.run_folder / node) as agent:
        agent.start()
        settled(stage.api, f"watched.{node}")
        sleep(_SETTLE)
        resident = agent.usage().resident_kib / 1024
        received = agent.received
        agent.stop()
    return _Start(received, resident, watched(stage.api.audit(AGENT)[before:]))


def idle(stage: Stage) -> Outcome:
    """A node full of pods on which nothing happens, but that the runtime is looked at."""
    outcome = Outcome()
    node, server, run = "idler", stage.api, stage.run_folder / "idler"
    pods = bind_pods(server, node, OWN_PODS)
    admit(server, "idle", node, "10.1.0.0/16", "10.1.0.0/24")
    run.mkdir(parents=True)
    with (
        FakeRuntime(run / "cri.sock") as runtime,
        ServedAgent(stage.launcher, server, node, stage.folder / node, run, runtime=runtime.path) as agent,
    ):
        runtime.start(*map(_sandbox, pods))
        agent.start()
        for pod in pods:
            _give(agent, pod)
        settled(server, f"idle.{node}")
        metrics_of(agent)
        sleep(_FIRST_LOOKS)
        looks, before = len(runtime.asked), len(server.audit(AGENT))
        spent, begin = agent.usage().cpu_seconds, clock(CLOCK_MONOTONIC)
        sleep(_WINDOW / 3 if stage.quick else _WINDOW)
        usage, seconds = agent.usage(), clock(CLOCK_MONOTONIC) - begin
        said = writes(server.audit(AGENT)[before:])
        looks = len(runtime.asked) - looks
        connections = agent.connections
        held = len(agent.leases())
        agent.stop()
    if not looks:
        outcome.problems.append("idle: the agent did not look at the runtime")
    if held != OWN_PODS:
        outcome.problems.append(f"idle: {held} addresses are held, not {OWN_PODS}")
    resident, share = usage.resident_kib / 1024, (usage.cpu_seconds - spent) / seconds * 100
    what = f"agent's resident memory in a cluster, {OWN_PODS} pods"
    outcome.figures += [
        Figure("idle", what, resident, 70.0, "at most", "MiB", made_of="the aim is 62 MiB; " + _memory(usage)),
        Figure(
            "idle",
            "idle agent's writes to the API, a minute",
            len(said) / seconds * 60,
            1.0,
            "at most",
            "",
            made_of=f"{len(said)} in {seconds:.0f} s, over {connections} connections"
            + "".join(f"; {each.verb} {each.path}" for each in said[:3]),
        ),
        Figure(
            "idle",
            "idle agent's CPU",
            share,
            0.5,
            "at most",
            "% of a core",
            made_of=f"{usage.cpu_seconds - spent:.2f} s in {seconds:.0f} s, {looks} calls of the runtime in it",
        ),
    ]
    return outcome


def _memory(usage: Usage) -> str:
    return f"{usage.threads} threads, {usage.descriptors} descriptors"


def _container(pod: dict) -> str:
    return pod["metadata"]["uid"].replace("-", "") * 2


def _sandbox(pod: dict) -> Sandbox:
    meta = pod["metadata"]
    return Sandbox(_container(pod), name=meta["name"], namespace=meta["namespace"], uid=meta["uid"], ready=True)


def _give(agent: ServedAgent, pod: dict) -> None:
    """ADD for a pod, as its runtime would ask."""
    meta, container = pod["metadata"], _container(pod)
    arguments = {
        "K8S_POD_NAMESPACE": meta["namespace"],
        "K8S_POD_NAME": meta["name"],
        "K8S_POD_INFRA_CONTAINER_ID": container,
        "K8S_POD_UID": meta["uid"],
    }
    env = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": container,
        "CNI_NETNS": f"/run/netns/cni-{meta['uid']}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": ";".join(["IgnoreUnknown=1", *(f"{key}={value}" for key, value in arguments.items())]),
    }
    reply = Client(agent.socket, timeout=30).call(env, conf("idle"))
    if reply.exit_code:
        raise LoadError(f"an ADD failed while leases were made: {error_of(reply)}")
