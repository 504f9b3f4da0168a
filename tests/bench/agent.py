"""The real agent, standalone, as a process of its own: started, filled, replaced, looked at."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import CLOCK_MONOTONIC
from time import clock_gettime_ns as clock
from typing import Self

import msgspec

from allotment.cni.client import AsyncClient, Client, error_of
from allotment.node.reports import UtilizationReport
from bench import programs
from bench.load import LoadError, Plugin, measure

__all__ = ["NETWORK", "SUBNET", "Agent", "Usage", "call_environment", "shim"]

NETWORK = "bench"
SUBNET = "10.128.0.0/14"  # 262,141 addresses: 60,000 leases fit, and so does what the loads take and give back
_PATIENCE = 60.0  # seconds for the agent to be ready, or gone
_FILLERS = 48  # ADDs in flight while leases are made; their latency is not measured

_MANIFEST = f"""\
apiVersion: allotment.dev/v1alpha1
kind: Network
metadata:
  name: {NETWORK}
spec:
  type: L3
  cooldownSeconds: 0
  subnets:
    - cidr: {SUBNET}
      hostPrefixLength: 24
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the kernel says of the agent's process."""

    rss_mib: float
    cpu_us: float
    threads: int
    descriptors: int


def shim(architecture: str) -> Path:
    """The plugin's binary, as it is installed."""
    import allotment

    return Path(allotment.__file__).parent / "_shim" / f"allotment-{architecture}"


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


class Agent:
    """One agent with a state folder below `folder`; `run` is a folder for sockets, whose paths must be short."""

    def __init__(
        self,
        name: str,
        folder: Path,
        run: Path,
        namespace: str,
        *,
        runner: tuple[str, ...] = ("-m", "allotment.cli"),
    ) -> None:
        self.name = name
        self._folder = folder / name
        self._run = run / name
        self._runner = runner  # Python's arguments that make it run the command
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: socket.socket | None = None
        self.socket = self._run / "cni.sock"
        self.leases = 0  # that `fill` made
        for made in (self._folder / "manifests", self._folder / "state", self._folder / "none", self._run):
            made.mkdir(parents=True)
        (self._folder / "manifests" / "network.yaml").write_text(_MANIFEST)
        conf = {"cniVersion": "1.1.0", "name": NETWORK, "type": "ptp", "ipam": {"type": "allotment"}}
        (self._folder / "conf.json").write_text(json.dumps(conf))
        self._environment = call_environment(f"{name}-@N@", namespace)
        self._notifier = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._notifier.bind(str(self._run / "notify"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self._process.kill()
            self._process.wait()
        self._notifier.close()
        if self._listener is not None:
            self._listener.close()

    @property
    def plugin(self) -> Plugin:
        """The shim, set up to call this agent."""
        import platform

        env = {**self._environment, "ALLOTMENT_SOCKET": str(self.socket)}
        return Plugin("Allotment", shim(platform.machine()), self._folder / "conf.json", env)

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    def listen(self) -> None:
        """Open the listening socket here, as a service manager would, and hand it to every agent started later."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.bind(str(self.socket))
        self._listener.listen(4096)

    def start(self) -> float:
        """Start the process and wait until it says that it is ready. Returns the seconds that took.

        Raises:
            LoadError: it ended, or wasn't ready in time; the message holds the end of its log.
        """
        command = [str(programs.launch())]
        keep: tuple[int, ...] = ()
        if self._listener is not None:
            command += ["--listen", str(self._listener.fileno())]
            keep = (self._listener.fileno(),)
        command += ["--", sys.executable, *self._runner, "agent", *self._flags()]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # that was for us
        env |= {"NOTIFY_SOCKET": str(self._run / "notify")}
        begin = clock(CLOCK_MONOTONIC)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, pass_fds=keep
            )
        self._await_ready()
        return (clock(CLOCK_MONOTONIC) - begin) / 1e9

    def stop(self) -> float:
        """SIGTERM, and wait for the end. Returns the seconds that took.

        Raises:
            LoadError: it had to be killed, or ended with another code than 0.
        """
        assert self._process is not None
        begin = clock(CLOCK_MONOTONIC)
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise LoadError(f"the agent {self.name} doesn't end after SIGTERM\n{self.log_end()}") from error
        if code:
            raise LoadError(f"the agent {self.name} ended with {code} after SIGTERM\n{self.log_end()}")
        return (clock(CLOCK_MONOTONIC) - begin) / 1e9

    def check(self) -> None:
        """One STATUS through the shim. Raises LoadError when it is not answered with success."""
        measure(self.plugin, ["STATUS"], 1)

    def fill(self, total: int) -> None:
        """Make leases, straight over the socket, until there are `total`; numbers 0 to total - 1 are theirs."""
        if total > self.leases:
            asyncio.run(self._fill(range(self.leases, total)))
            self.leases = total

    def usage(self) -> Usage:
        """Memory, CPU time used so far, threads and descriptors."""
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if ":" in line
        )
        ticks = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return Usage(
            rss_mib=int(status["VmRSS"].split()[0]) / 1024,
            cpu_us=(int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK") * 1e6,
            threads=int(status["Threads"]),
            descriptors=len(list(Path(f"/proc/{self.pid}/fd").iterdir())),
        )

    def held(self) -> int:
        """Addresses in use, as the agent itself says."""
        answer = Client(self.socket).query("utilization")
        return sum(int(use.in_use) for use in msgspec.json.decode(answer, type=UtilizationReport).networks)

    def log_end(self) -> str:
        """The last lines of its log."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-15:])

    @property
    def _log(self) -> Path:
        return self._folder / "agent.log"

    def _flags(self) -> list[str]:
        return [
            *("--manifests", str(self._folder / "manifests"), "--state-dir", str(self._folder / "state")),
            *("--socket", str(self.socket), "--node", "bench-node", "--http", "off"),
            # Nothing of this machine's own pods may come in, should a ledger have to be rebuilt.
            *("--netns-dir", str(self._folder / "none"), "--cni-cache-dir", str(self._folder / "none")),
        ]

    def _await_ready(self) -> None:
        assert self._process is not None
        limit = clock(CLOCK_MONOTONIC) + int(_PATIENCE * 1e9)
        self._notifier.settimeout(0.25)
        while clock(CLOCK_MONOTONIC) < limit:
            try:
                if b"READY=1" in self._notifier.recv(4096).split(b"\n"):
                    return
            except TimeoutError:
                if self._process.poll() is not None:
                    raise LoadError(
                        f"the agent {self.name} ended with {self._process.returncode}\n{self.log_end()}"
                    ) from None
        raise LoadError(f"the agent {self.name} is not ready after {_PATIENCE:.0f} s\n{self.log_end()}")

    async def _fill(self, numbers: range) -> None:
        client = AsyncClient(self.socket)
        body = (self._folder / "conf.json").read_bytes()
        waiting = iter(numbers)

        async def take_turns() -> None:
            for number in waiting:
                env = {name: value.replace("@N@", str(number)) for name, value in self._environment.items()}
                reply = await client.call({**env, "CNI_COMMAND": "ADD"}, body)
                if reply.exit_code:
                    raise LoadError(f"ADD {number} failed while leases were made: {error_of(reply)}")

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_FILLERS, len(numbers))):
                group.create_task(take_turns())
