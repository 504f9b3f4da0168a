"""An agent in cluster mode on a real API server alone, as the scenarios of clusters measure it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qs, urlsplit

from bench.crowd import PODS, pod
from bench.load import LoadError
from kube.cluster_agent import ACCOUNT, NAMESPACE, ClusterAgent, add_node, allocation, create, get, network
from kube.line import Line
from nodes import until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agents import Launcher
    from cluster.access import Audited
    from cluster.control_plane import ApiServer

__all__ = ["AGENT", "ServedAgent", "admit", "bind_pods", "metrics_of", "watched", "writes"]

AGENT = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
"""The agents' user."""
_INSTALLED = (
    "-c",
    "import sys; sys.modules['rich'] = None; from allotment.cli import main; sys.exit(main(sys.argv[1:]))",
)
"""Runs the command without what tools of development bring along and a library loads when it is there."""
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class ServedAgent(ClusterAgent):
    """The agent of a node, started by exec; what the API server sends it is counted (`received`).

    `runtime` is the container runtime's socket, if it is to ask one. It serves HTTP, as an installed one does.
    """

    def __init__(
        self, launcher: Launcher, server: ApiServer, node: str, folder: Path, run: Path, *, runtime: Path | None = None
    ) -> None:
        run.mkdir(parents=True, exist_ok=True)
        flags = ["--http", "127.0.0.1:0", "--runtime-socket", "off" if runtime is None else runtime]
        super().__init__(launcher, server, node, folder=folder, run=run, runner=_INSTALLED, flags=flags)
        self._server = server
        self._ends = contextlib.ExitStack()
        self._line = Line(server.address, server.port)

    def __enter__(self) -> Self:
        self._ends.enter_context(self._line)
        token = self._server.bound_token(NAMESPACE, ACCOUNT, node=self._node)
        self.kubeconfig = self._server.write_kubeconfig(f"bench-{self._node}", token, url=self._line.url)
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._ends.close()

    def start(self, **options: object) -> None:
        """Start it, and wait until it is ready.

        Raises:
            LoadError: it ended, or isn't ready in time.
        """
        try:
            super().start(**options)
        except AssertionError as error:
            raise LoadError(str(error)) from error

    @property
    def received(self) -> int:
        """Bytes, with TLS, that the API server has sent it."""
        return self._line.answered

    @property
    def connections(self) -> int:
        """How many connections to the API server it has."""
        return self._line.connections


def admit(server: ApiServer, name: str, node: str, cidr: str, block: str) -> dict:
    """A network with a block of the node, as the controller makes them; the network."""
    made = create(server, network(name, cidr))
    create(server, allocation(made, node, block))
    return made


def bind_pods(server: ApiServer, node: str, count: int) -> list[dict]:
    """A Node, and pods that are bound to it, as the API server shows them."""
    add_node(server, node)
    found = []
    for number in range(count):
        status, item = server.request("POST", PODS, pod(f"{node}-{number}", node))
        if status != 201:
            raise LoadError(f"a pod could not be made: {item}")
        found.append(item)
    return found


def settled(server: ApiServer, allocation_name: str) -> None:
    """Wait until the node's finalizer is on and its status is told."""
    until(
        lambda: (get(server, "allocations", allocation_name) or {}).get("status", {}).get("blocks"),
        f"{allocation_name} gets no status",
    )


def watched(requests: Iterable[Audited]) -> dict[str, str]:
    """The kinds (plural) that are watched by these requests, and the field selector of each."""
    found = {}
    for request in requests:
        if request.verb == "watch":
            parts = urlsplit(request.path)
            found[parts.path.rsplit("/", 1)[1]] = parse_qs(parts.query).get("fieldSelector", [""])[0]
    return found


def writes(requests: Iterable[Audited]) -> list[Audited]:
    """Those of them that change something, or try to."""
    return [request for request in requests if request.verb in _WRITES]


def metrics_of(agent: ServedAgent) -> str:
    """What the agent's /metrics tells."""
    lines = [line for line in agent.log_file.read_text().splitlines() if '"serving http"' in line]
    port = json.loads(lines[-1])["port"]
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    if not re.search(r"^allotment_", text, re.MULTILINE):
        raise LoadError(f"the agent's metrics are not to be had: {text[:200]}")
    return text
