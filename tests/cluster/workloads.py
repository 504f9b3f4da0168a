"""Pods on a cluster that Allotment is installed on: made, waited for, and compared with the ledgers of their nodes."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.access import KubectlError
from cluster.images import WEB
from cluster.installation import NAMESPACE
from nodes import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.installation import Installation
    from cluster.node import Node

__all__ = [
    "agrees",
    "all_agents_ready",
    "faults",
    "gone",
    "is_ready",
    "kill_agent",
    "namespaces",
    "pod",
    "pods",
    "ready",
    "ready_now",
    "running",
    "sandboxes",
    "sound",
]

_SETTLE = 240.0
"""Seconds that a cluster may take to come to rest: a kubelet that failed to start something waits before it retries."""


# -- made


def pod(name: str, node: str = "", **metadata: object) -> dict:
    """A Pod that serves; on this node, whatever the scheduler says."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {**_spec(), **({"nodeName": node} if node else {})},
    }


@contextlib.contextmanager
def running(
    installed: Installation, kind: str, name: str, replicas: int, *, node: str = "", **more: object
) -> Iterator[None]:
    """A workload whose pods are ready; it goes in any case, and what its pods had is given back."""
    kubectl = installed.cluster.kubectl
    spec = {**_spec(), **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {})}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    selector = {"matchLabels": {"app": name}}
    workload = {"replicas": replicas, "selector": selector, "template": template, **more}
    item = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": workload}
    kubectl("apply", "-f", "-", input=json.dumps(item))
    try:
        ready(installed, name, replicas)
        yield
    finally:
        kubectl("delete", kind.lower(), name)
    gone(installed, name)


def _spec() -> dict:
    container = {
        "name": "web",
        "image": WEB,
        "imagePullPolicy": "Never",
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1},
    }
    return {"containers": [container], "terminationGracePeriodSeconds": 0}


# -- waited for


def pods(installed: Installation, app: str) -> list[dict]:
    """The pods of an app that nobody has deleted."""
    found = installed.cluster.get("pods", "-l", f"app={app}")
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def is_ready(one: dict) -> bool:
    """Whether the API server shows a pod as ready."""
    return any(each["type"] == "Ready" and each["status"] == "True" for each in one["status"].get("conditions", ()))


def ready(installed: Installation, app: str, count: int) -> list[dict]:
    """The pods of an app, once so many of them are ready."""

    def found() -> list[dict] | None:
        found = pods(installed, app)
        return found if len(found) == count and all(map(is_ready, found)) else None

    return until(found, f"{count} pods of {app} don't get ready", limit=_SETTLE)


def ready_now(installed: Installation, app: str) -> bool:
    """Whether all containers of an app run."""
    found = pods(installed, app)
    return all(each["ready"] for one in found for each in one["status"].get("containerStatuses", ()))


def gone(installed: Installation, app: str) -> None:
    """Wait until an app's pods are gone, and what they had is given back."""
    until(lambda: not installed.cluster.get("pods", "-l", f"app={app}"), "the pods stay", limit=120)
    until(
        lambda: (
            not any(
                lease["pod"].startswith(f"default/{app}-")
                for node in installed.blocks
                for lease in installed.held(node)
            )
        ),
        "leases are left of pods that are gone",
        limit=120,
    )


def kill_agent(installed: Installation, node: str) -> None:
    """SIGKILL to the agent's process on a node; its container is started again."""
    installed.cluster.nodes[node].run("pkill", "-KILL", "-f", "[a]llotment agent")


def all_agents_ready(installed: Installation) -> bool:
    found = installed.cluster.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent")
    return len(found) == len(installed.blocks) and all(
        each["ready"] for one in found for each in one["status"].get("containerStatuses", ())
    )


# -- compared


def agrees(installed: Installation, app: str) -> None:
    """Each pod of an app has the addresses that its node's ledger has for it, and no other pod has them (I1)."""
    held = {node: _by_pod(installed.held(node)) for node in installed.blocks}
    holders: dict[str, str] = {}
    for one in pods(installed, app):
        name, node = one["metadata"]["name"], one["spec"]["nodeName"]
        assert held[node].get(f"default/{name}") == _shown(one)
        for address in _shown(one):
            assert _within(address, installed.blocks[node])
            assert address not in holders, f"{name} and {holders[address]} both have {address}"
            holders[address] = name


def sound(installed: Installation) -> None:
    """Wait until the nodes are at rest and everything fits; else fail by saying what does not.

    Every pod is ready under its ledger's addresses (I2, I14), no address is given twice (I1) or from elsewhere than the
    node's blocks (I4), and there is a lease for each sandbox and network namespace, and none besides (I5, I8). The
    agent's own doctor finds nothing either.
    """
    wrong: list[str] = []

    def well() -> bool:
        try:
            wrong[:] = faults(installed) or _doctors(installed)
        except (KubectlError, subprocess.CalledProcessError, ValueError) as error:
            # Somebody is just being started again; the doctor's findings come as a failure, too.
            wrong[:] = [str(error), getattr(error, "stdout", "") or ""]
        return not wrong

    try:
        until(well, limit=_SETTLE)
    except AssertionError:
        raise AssertionError("\n".join(wrong)) from None


def faults(installed: Installation) -> list[str]:
    """What does not fit now, of all that `sound` asks for but the doctor; for a person."""
    wrong = [f"{node} is not ready" for node in installed.blocks if not installed.cluster.ready(node)]
    if not all_agents_ready(installed):
        wrong.append("an agent is not ready")
    shown = {}
    for one in installed.cluster.get("pods", "-n", "default"):
        name = f"default/{one['metadata']['name']}"
        shown.setdefault(one["spec"].get("nodeName", ""), {})[name] = _shown(one)
        if not is_ready(one) or "deletionTimestamp" in one["metadata"]:
            wrong.append(f"{name} is not ready")
    holders: dict[str, str] = {}
    for node, blocks in installed.blocks.items():
        leases = installed.held(node)
        for lease in leases:
            address, who = lease["address"], f"{lease['pod']} on {node}"
            if address in holders:
                wrong.append(f"{holders[address]} and {who} both have {address}")
            holders[address] = who
            if not _within(address, blocks):
                wrong.append(f"{who} has {address}, which is in none of {blocks}")
        machine = installed.cluster.nodes[node]
        for what, leased, found in (
            ("pods", _by_pod(leases), shown.get(node, {})),
            ("sandboxes", {lease["container"] for lease in leases}, sandboxes(machine)),
            ("namespaces", {Path(lease["netns"]).name for lease in leases}, namespaces(machine)),
        ):
            if leased != found:
                wrong.append(f"{what} of {node}: the ledger has {leased}, there are {found}")
    return wrong


def _doctors(installed: Installation) -> list[str]:
    said = {node: installed.ask(node, "doctor") for node in installed.blocks}
    return [f"{node}: {text}" for node, text in said.items() if "nothing wrong" not in text]


def _by_pod(leases: list[dict]) -> dict[str, frozenset[str]]:
    found = defaultdict(set)
    for lease in leases:
        found[lease["pod"]].add(lease["address"])
    return {name: frozenset(addresses) for name, addresses in found.items()}


def _shown(one: dict) -> frozenset[str]:
    """The addresses that the API server shows for a pod."""
    return frozenset(str(ipaddress.ip_address(each["ip"])) for each in one["status"].get("podIPs", ()))


def _within(address: str, blocks: tuple[str, ...]) -> bool:
    return any(ipaddress.ip_address(address) in ipaddress.ip_network(block) for block in blocks)


# -- in a node


def namespaces(node: Node) -> set[str]:
    """The names of the pods' network namespaces in a node."""
    return set(node.run("ls", "/run/netns").split())


def sandboxes(node: Node) -> set[str]:
    """The IDs of the sandboxes that run in a node, those of pods on its own network apart."""
    chosen = f'labels."io.cri-containerd.kind"==sandbox,labels."io.kubernetes.pod.namespace"!={NAMESPACE}'
    return set(node.containers(chosen))
