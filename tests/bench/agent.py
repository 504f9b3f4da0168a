"""The agent that is measured: filled, loaded and replaced, with what is special to a benchmark."""

from __future__ import annotations

import asyncio
import socket
from time import CLOCK_MONOTONIC
from time import clock_gettime as clock
from typing import TYPE_CHECKING

import agents
from agents import conf, network, shim_binary
from allotment.cni.client import AsyncClient, error_of
from bench.load import LoadError, Plugin, measure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agents import Launcher

__all__ = ["NETWORK", "SUBNET", "Agent", "call_environment"]

NETWORK = "bench"
SUBNET = "10.128.0.0/14"  # 262,141 addresses: 60,000 leases fit, and so does what the loads take and give back
_FILLERS = 48  # ADDs in flight while leases are made; their latency is not measured


def call_environment(container: str, namespace: str) -> dict[str, str]:
    """The variables that a kubelet's runtime sets, but CNI_COMMAND; `container` and the pod's name hold "@N@"."""
    pod = f"K8S_POD_NAMESPACE=bench;K8S_POD_NAME={container};K8S_POD_INFRA_CONTAINER_ID={container}"
    return {
        "CNI_CONTAINERID": container,
        "CNI_NETNS": namespace,
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": f"IgnoreUnknown=1;{pod};K8S_POD_UID=6f1b9a52-0000-4000-8000-@N@",
    }


class Agent(agents.Agent):
    """One agent, started by exec as a person does it, with all that it keeps below `folder`, its sockets below `run`.

    `runner` is what makes a Python run the command, if not the usual.
    """

    def __init__(
        self,
        launcher: Launcher,
        name: str,
        folder: Path,
        run: Path,
        namespace: str,
        *,
        runner: tuple[str, ...] | None = None,
    ) -> None:
        manifests = {"network.yaml": network(NETWORK, v4=SUBNET, v6="", cooldown=0, block=24)}
        super().__init__(launcher, manifests=manifests, folder=folder / name, run=run / name, fresh=True, runner=runner)
        self.name = name
        self.filled = 0
        """How many leases `fill` has made."""
        self._listener: socket.socket | None = None
        self._conf = self.folder / "conf.json"
        self._conf.write_bytes(conf(NETWORK))
        self._call = call_environment(f"{name}-@N@", namespace)

    @property
    def plugin(self) -> Plugin:
        """The shim, set up to call this agent."""
        return Plugin("Allotment", shim_binary(), self._conf, {**self._call, "ALLOTMENT_SOCKET": str(self.socket)})

    def listen(self) -> None:
        """Open the listening socket here, as a service manager would, and hand it to every agent started later."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.bind(str(self.socket))
        self._listener.listen(4096)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._listener is not None:
            self._listener.close()

    def start(self) -> float:
        """Start the process and wait until it says that it is ready. Returns the seconds that took.

        Raises:
            LoadError: it ended, or wasn't ready in time; the message holds the end of its log.
        """
        return _timed(lambda: super(Agent, self).start(listener=self._listener))

    def stop(self) -> float:
        """SIGTERM, and wait for the end. Returns the seconds that took.

        Raises:
            LoadError: it didn't end, or with another code than 0.
        """
        return _timed(super().stop)

    def check(self) -> None:
        """One STATUS through the shim. Raises LoadError when it is not answered with success."""
        measure(self.plugin, ["STATUS"], 1)

    def fill(self, total: int) -> None:
        """Make leases, straight over the socket, until there are `total`; numbers 0 to total - 1 are theirs."""
        if total > self.filled:
            asyncio.run(self._fill(range(self.filled, total)))
            self.filled = total

    async def _fill(self, numbers: range) -> None:
        client = AsyncClient(self.socket)
        body = self._conf.read_bytes()
        waiting = iter(numbers)

        async def take_turns() -> None:
            for number in waiting:
                env = {name: value.replace("@N@", str(number)) for name, value in self._call.items()}
                reply = await client.call({**env, "CNI_COMMAND": "ADD"}, body)
                if reply.exit_code:
                    raise LoadError(f"ADD {number} failed while leases were made: {error_of(reply)}")

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_FILLERS, len(numbers))):
                group.create_task(take_turns())


def _timed(step: Callable[[], None]) -> float:
    """The seconds that it takes."""
    begin = clock(CLOCK_MONOTONIC)
    try:
        step()
    except AssertionError as error:
        raise LoadError(str(error)) from error
    return clock(CLOCK_MONOTONIC) - begin
