"""How soon a node heeds what the API server says, and lets go of what it held."""

from __future__ import annotations

import itertools
import json
from time import CLOCK_MONOTONIC, sleep
from time import clock_gettime as clock
from typing import TYPE_CHECKING

from agents import conf, environment
from allotment.cni.client import Client, error_of
from bench.figures import Figure, Outcome, percentile
from bench.load import LoadError
from bench.served import ServedAgent, admit, settled
from kube.cluster_agent import GUARD, OURS, add_node, delete, get, patch

if TYPE_CHECKING:
    from allotment.cni.exchange import Reply
    from bench.stage import Stage

__all__ = ["drain"]

_ROUNDS = 200
_LONGEST = 30.0  # seconds that one step may take before the benchmark is given up
_LATEST = 0.5
_PAUSE = 0.002
_DRAINING = 7


def drain(stage: Stage) -> Outcome:
    """Networks with one pod each, whose Allocation is deleted; then the pod goes, and with it the finalizer.

    The first time is from asking the API server to delete to an ADD that is refused, the second from the DEL's answer
    to an API server that shows the Allocation without the node's finalizer.
    """
    outcome = Outcome()
    node = "drainer"
    refused = outcome.reading("drain", "Allocation deleted to ADD refused", "Allotment", "ms")
    freed = outcome.reading("drain", "last DEL to finalizer gone", "Allotment", "ms")
    add_node(stage.api, node)
    with ServedAgent(stage.launcher, stage.api, node, stage.folder / node, stage.run_folder / node) as agent:
        agent.start()
        for number in range(stage.size(_ROUNDS)):
            first, second = _Round(stage, agent, node, number).run()
            refused.add([first * 1e3])
            freed.add([second * 1e3])
        agent.stop()
    for reading in (refused, freed):
        worst = percentile(reading.values, 0.99) / 1e3
        made_of = f"median {reading.median:.0f} ms, {len(reading.values)} times"
        outcome.figures.append(Figure("drain", f"{reading.what}, p99", worst, _LATEST, "at most", "s", made_of))
    return outcome


class _Round:
    """One network, from its admission to its end."""

    def __init__(self, stage: Stage, agent: ServedAgent, node: str, number: int) -> None:
        self._server = stage.api
        self._client = Client(agent.socket, timeout=_LONGEST)
        self._network = f"drain-{number}"
        self._name = f"{self._network}.{node}"
        subnet = f"10.{number}.0"
        admit(self._server, self._network, node, f"{subnet}.0/24", f"{subnet}.0/26")
        settled(self._server, self._name)

    def run(self) -> tuple[float, float]:
        """The two times, in seconds."""
        self._must("ADD", "pod")
        begin = clock(CLOCK_MONOTONIC)
        delete(self._server, "allocations", self._name)
        first = self._until_refused(begin)
        self._must("DEL", "pod")
        begin = clock(CLOCK_MONOTONIC)
        second = self._until_let_go(begin)
        for plural, name in (("allocations", self._name), ("networks", self._network)):
            patch(self._server, plural, name, {"metadata": {"finalizers": []}})
        delete(self._server, "networks", self._network)
        return first, second

    def _until_refused(self, begin: float) -> float:
        """Ask for new pods until one is refused; what is given meanwhile is given back."""
        for number in itertools.count():
            reply = self._call("ADD", f"probe-{number}")
            now = clock(CLOCK_MONOTONIC)
            if reply.exit_code:
                if json.loads(reply.body)["code"] != _DRAINING:
                    raise LoadError(f"a drained network's ADD failed otherwise: {error_of(reply)}")
                return now - begin
            self._must("DEL", f"probe-{number}")
            self._wait(begin, "an ADD is not refused")
        raise AssertionError

    def _until_let_go(self, begin: float) -> float:
        while True:
            finalizers = (get(self._server, "allocations", self._name) or {})["metadata"]["finalizers"]
            now = clock(CLOCK_MONOTONIC)
            if OURS not in finalizers:
                if finalizers != [GUARD]:
                    raise LoadError(f"finalizers are left: {finalizers}")
                return now - begin
            self._wait(begin, "the finalizer does not go")

    @staticmethod
    def _wait(begin: float, otherwise: str) -> None:
        if clock(CLOCK_MONOTONIC) - begin > _LONGEST:
            raise LoadError(otherwise)
        sleep(_PAUSE)

    def _call(self, verb: str, container: str) -> Reply:
        env = environment(verb, f"{self._network}-{container}")
        return self._client.call(env, conf(self._network))

    def _must(self, verb: str, container: str) -> None:
        reply = self._call(verb, container)
        if reply.exit_code:
            raise LoadError(f"{verb} of {container} failed: {error_of(reply)}")
