"""Pods on a whole cluster: how soon they run with our addresses, beside host-local's, with the same `ptp`."""

from __future__ import annotations

import ipaddress
import json
from collections import defaultdict
from dataclasses import dataclass
from time import CLOCK_MONOTONIC, sleep
from time import clock_gettime as clock
from typing import TYPE_CHECKING

from bench import programs
from bench.figures import Figure, Outcome, median_ratio
from bench.load import LoadError
from cluster.cluster import Cluster
from cluster.images import WEB
from cluster.installation import NETWORK, Installation
from nodes import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.figures import Reading
    from bench.stage import Stage
    from cluster.node import Node

__all__ = ["pods"]

PODS = 60
BLOCKS = {"n1": ("10.81.0.0/24",), "n2": ("10.81.1.0/24",)}
OURS, RIVAL = "allotment", "host-local"
_CONTENDERS = {OURS: "Allotment", RIVAL: "host-local"}
_CONF = "/etc/cni/net.d/00-bench.conflist"  # the runtime takes the first by name: this goes before an installed one
_NO_SLOWER = 1.05  # what two runs of the same differ by
_SMALLER = 5.0
_LONGEST = 180.0
_PAUSE = 0.1
_WARM = 2


def pods(stage: Stage) -> Outcome:
    """PODS pods at once on two nodes, in turns with Allotment's addresses and with host-local's.

    Both are called by the same `ptp`, of the same configuration but for its `ipam`, on the same nodes, where the
    agents run all the time. What a plugin takes is written down by a small program that stands before it.
    """
    outcome = Outcome()
    taken = {who: outcome.reading("pods", f"{PODS} pods created to Running", who, "s") for who in _CONTENDERS.values()}
    whole = {who: outcome.reading("pods", "ADD of ptp and its IPAM plugin", who) for who in _CONTENDERS.values()}
    share = {who: outcome.reading("pods", "ADD of the IPAM plugin", who) for who in _CONTENDERS.values()}
    resident = outcome.reading("pods", "agent's resident memory, from its image", "Allotment", "MiB")
    with Cluster(*BLOCKS, pod_network=False) as cluster:
        Installation(cluster, stage.folder, BLOCKS)
        for node in cluster.nodes.values():
            _prepare(node)
        for number in range(2 if stage.quick else max(3, stage.rounds // 3)):
            for ipam in (OURS, RIVAL) if number % 2 == 0 else (RIVAL, OURS):
                who = _CONTENDERS[ipam]
                _choose(cluster, ipam)
                found = _round(cluster, ipam, f"{ipam}-{number}")
                taken[who].add([found.seconds])
                whole[who].add(found.adds["ptp"])
                share[who].add(found.adds[ipam])
        resident.add([_resident(node) for node in cluster.nodes.values()])
    outcome.figures += _figures(taken, whole, share)
    outcome.figures.append(Figure("pods", resident.what, max(resident.values), 70.0, "at most", "MiB"))
    return outcome


def _figures(
    taken: Mapping[str, Reading], whole: Mapping[str, Reading], share: Mapping[str, Reading]
) -> tuple[Figure, ...]:
    """The comparisons; each reading is by contender."""
    ours, rival = _CONTENDERS.values()
    seconds = ", ".join(f"{who} {reading.median:.1f} s" for who, reading in taken.items())
    parts = (f"{who} {share[who].median / 1e3:.1f} of {whole[who].median / 1e3:.1f} ms" for who in share)
    slower = median_ratio(taken[ours].rounds, taken[rival].rounds)
    smaller = median_ratio(share[rival].rounds, share[ours].rounds)
    what = f"{PODS} pods at once, created to Running, over host-local's"
    return (
        Figure("pods", what, slower, _NO_SLOWER, "at most", made_of=seconds),
        Figure(
            "pods",
            "host-local's part of these pods' ADDs over Allotment's",
            smaller,
            _SMALLER,
            "at least",
            made_of=", ".join(parts),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    seconds: float
    adds: Mapping[str, Sequence[float]]
    """Microseconds of each ADD, by plugin."""


def _prepare(node: Node) -> None:
    for plugin in ("ptp", OURS, RIVAL):
        node.run("cp", str(programs.timed()), f"/opt/cni/bin/timed-{plugin}")


def _choose(cluster: Cluster, ipam: str) -> None:
    """Have all nodes use this IPAM plugin, and wait until their runtimes do."""
    for node in cluster.nodes.values():
        node.run("sh", "-c", f"cat > {_CONF}.new && mv {_CONF}.new {_CONF}", input=_conflist(node, ipam))
    for attempt in range(20):
        warm = _round(cluster, ipam, f"warm-{ipam}-{attempt}", count=_WARM * len(BLOCKS), judged=False)
        if set(warm.adds) == {"ptp", ipam}:  # on no node another one any more
            return
    raise LoadError(f"the runtimes don't take up the configuration with {ipam}")


def _conflist(node: Node, ipam: str) -> str:
    more = {} if ipam == OURS else {"ranges": [[{"subnet": node.place.pods[0]}]]}
    settings = {"type": f"timed-{ipam}", "routes": [{"dst": "0.0.0.0/0"}], **more}
    ptp = {"type": "timed-ptp", "mtu": 1400, "ipam": settings}
    return json.dumps({"cniVersion": "1.0.0", "name": NETWORK, "plugins": [ptp]})


def _round(cluster: Cluster, ipam: str, name: str, *, count: int = PODS, judged: bool = True) -> _Found:
    """Make pods, wait until all run, and remove them with what they had."""
    nodes = list(cluster.nodes.values())
    before = {node.name: _namespaces(node) for node in nodes}
    for node in nodes:
        node.run("rm", "-rf", "/run/timed")
    items = [_pod(f"{name}-{number}", name, nodes[number % len(nodes)].name) for number in range(count)]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    begin = clock(CLOCK_MONOTONIC)
    cluster.kubectl("create", "-f", "-", input=json.dumps(listed))
    seconds = _until_running(cluster, name, count) - begin
    adds: dict[str, list[float]] = defaultdict(list)
    for node in nodes:
        for plugin, values in _written(node).items():
            adds[plugin] += values
    addresses = [one["status"]["podIP"] for one in cluster.get("pods", "-l", f"app={name}")]
    cluster.kubectl("delete", "pods", "-l", f"app={name}", "--force", "--grace-period=0", "--wait=false")
    until(lambda: not cluster.get("pods", "-l", f"app={name}"), "the pods stay", limit=_LONGEST)
    for node in nodes:
        until(lambda node=node: _namespaces(node) <= before[node.name], "namespaces stay", limit=_LONGEST)
    if judged:
        _check(cluster, ipam, addresses, adds)
    return _Found(seconds, adds)


def _check(cluster: Cluster, ipam: str, addresses: list[str], adds: Mapping[str, list[float]]) -> None:
    """A quick answer that was wrong would count for nothing."""
    wanted = BLOCKS.values() if ipam == OURS else [node.place.pods[:1] for node in cluster.nodes.values()]
    networks = [ipaddress.ip_network(cidr) for cidrs in wanted for cidr in cidrs]
    if len(set(addresses)) != PODS or not all(
        any(ipaddress.ip_address(address) in network for network in networks) for address in addresses
    ):
        raise LoadError(f"the pods have other addresses than {ipam} should have given them: {sorted(addresses)}")
    if len(adds[ipam]) < PODS:
        raise LoadError(f"{ipam} has been asked for {len(adds[ipam])} addresses, not {PODS}")


def _pod(name: str, app: str, node: str) -> dict:
    container = {"name": "web", "image": WEB, "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0},
    }


def _until_running(cluster: Cluster, app: str, count: int) -> float:
    """When the API server shows that so many pods of the app run."""
    path, end = f"/api/v1/namespaces/default/pods?labelSelector=app%3D{app}", clock(CLOCK_MONOTONIC) + _LONGEST
    while clock(CLOCK_MONOTONIC) < end:
        _, listed = cluster.api.request("GET", path)
        if sum(one["status"].get("phase") == "Running" for one in listed["items"]) == count:
            return clock(CLOCK_MONOTONIC)
        sleep(_PAUSE)
    raise LoadError(f"of {count} pods not all run after {_LONGEST:.0f} s")


def _written(node: Node) -> dict[str, list[float]]:
    """What the ADDs of each plugin took on a node, in microseconds, since that was last forgotten."""
    text = node.run("sh", "-c", "cd /run/timed 2>/dev/null && grep -H ^ADD * || true")
    found: dict[str, list[float]] = defaultdict(list)
    for line in text.splitlines():
        plugin, _, rest = line.partition(":")
        found[plugin].append(float(rest.split()[1]))
    return found


def _namespaces(node: Node) -> set[str]:
    return set(node.run("ls", "/run/netns").split())


def _resident(node: Node) -> float:
    """MiB of the node's agent."""
    pid = node.run("pgrep", "-o", "-f", "[a]llotment agent").split()[0]
    [line] = [line for line in node.run("cat", f"/proc/{pid}/status").splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024
