"""What the scenarios share: folders, a network namespace, and the contenders, each made when first asked for."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from agents import Launcher
from bench import programs
from bench.agent import Agent
from bench.load import Plugin, sync_times
from bench.machine import file_system
from bench.rival import host_local
from cluster.control_plane import ApiServer
from cluster.fixtures import CRDS
from kube.cluster_agent import install

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Stage"]

HELD = 250
"""Leases that a busy node holds: 250 pods is what a kubelet is commonly raised to."""


class Stage:
    """Everything that runs or lies on disk for a benchmark; gone when the `with` block ends, however it ends."""

    def __init__(self, folder: Path, *, rounds: int = 1, quick: bool = False) -> None:
        self.rounds = rounds
        self.quick = quick
        self._home = folder
        self._ends = ExitStack()
        self._agents: list[Agent] = []
        self._numbers = 1_000_000  # operations are numbered above the leases that are held

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            self._home.mkdir(parents=True, exist_ok=True)
            file_system(self._home)  # refuses what is no disk
            self.folder = Path(tempfile.mkdtemp(dir=self._home, prefix="state-"))
            ends.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._run = Path(tempfile.mkdtemp(prefix="allotment-"))  # a socket's path has at most 107 bytes
            ends.callback(shutil.rmtree, self._run, ignore_errors=True)
            self.namespace = self._hold_namespace(ends)
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # that is for us
            self._launcher = ends.enter_context(Launcher(environment))
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.__exit__(kind, error, trace)

    def numbers(self, count: int) -> int:
        """The first of `count` operation numbers that nobody had yet."""
        first = self._numbers
        self._numbers += count
        return first

    def size(self, count: int) -> int:
        """A number of calls, smaller in quick mode."""
        return max(1, count // 4) if self.quick else count

    def agent(self, name: str, **options: Any) -> Agent:
        """A new agent, not started, that is killed with the stage."""
        agent = self._ends.enter_context(Agent(self._launcher, name, self.folder, self._run, self.namespace, **options))
        self._agents.append(agent)
        return agent

    def log_ends(self) -> str:
        """The last lines of every agent's log, for when something failed."""
        return "\n".join(f"log of the agent {agent.name}:\n{agent.log()}" for agent in self._agents)

    @functools.cached_property
    def ours(self) -> Agent:
        """A running agent with HELD leases."""
        agent = self.agent("small")
        agent.start()
        agent.check()
        agent.fill(HELD)
        return agent

    @functools.cached_property
    def large(self) -> Agent:
        """An agent that is there to hold many leases; not started, and filled by the scenarios as they need it."""
        return self.agent("large")

    @property
    def launcher(self) -> Launcher:
        """Starts agents."""
        return self._launcher

    @property
    def run_folder(self) -> Path:
        """Where sockets are made."""
        return self._run

    @functools.cached_property
    def api(self) -> ApiServer:
        """A real API server with our kinds and what `kubectl apply -k daemonset` installs but for the pods."""
        server = self._ends.enter_context(ApiServer())
        server.apply_crds(list(CRDS.glob("*.yaml")))
        install(server)
        return server

    @staticmethod
    def say(text: str) -> None:
        """Tell whoever waits what goes on."""
        print(f"bench: {text}", file=sys.stderr, flush=True)

    @functools.cached_property
    def rival(self) -> Plugin:
        """host-local with HELD leases."""
        return host_local("host-local", self.folder, self.namespace, HELD)

    @functools.cached_property
    def nothing(self) -> Plugin:
        """The static binary that does nothing."""
        conf = self.folder / "nothing.json"
        conf.write_text("{}")
        return Plugin("do-nothing binary", programs.nothing(), conf)

    def sync(self, count: int, *, pace: float) -> list[float]:
        """fdatasync of 4 KiB on the state folder's disk, `count` times, with a pause before each; microseconds."""
        return sync_times(self.folder / "sync", count, pace=pace)

    def _hold_namespace(self, ends: ExitStack) -> str:
        """A network namespace of our own for CNI_NETNS: host-local refuses one that is not there."""
        holder = subprocess.Popen([str(programs.namespace())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ends.callback(holder.wait)
        ends.callback(holder.kill)
        assert holder.stdout is not None
        path = holder.stdout.readline().strip()
        if not path:
            raise RuntimeError("no network namespace can be made here (neither as root nor in a user namespace)")
        return path
