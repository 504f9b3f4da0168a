"""Running spawn.c: one plugin, many calls, every latency."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from bench import programs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Background", "LoadError", "Measured", "Plugin", "measure", "sync_times"]

_LONGEST = 90  # seconds for one batch of calls; the slowest takes a tenth of it


class LoadError(Exception):
    """The load driver itself failed, or a call failed where none may."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A CNI plugin as a runtime would call it. "@N@" in `conf` and `env` becomes the operation's number."""

    name: str
    binary: Path
    conf: Path
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a batch of calls took. Latencies in microseconds from fork to exit, in no particular order."""

    latencies: Mapping[str, Sequence[float]]  # verb → of the calls that succeeded
    seconds: float
    failures: int
    first_failure: str
    plugin_cpu: float  # microseconds of CPU time of all plugin processes together
    driver_cpu: float

    @property
    def calls(self) -> int:
        """Calls that succeeded."""
        return sum(len(values) for values in self.latencies.values())

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds


def _command(plugin: Plugin, verbs: Sequence[str], callers: int, answers: Path | None) -> list[str]:
    command = [str(programs.spawn()), "load", "--callers", str(callers), "--verbs", ",".join(verbs)]
    command += ["--stdin", str(plugin.conf)]
    for name, value in plugin.env.items():
        command += ["--env", f"{name}={value}"]
    if answers is not None:
        command += ["--answers", str(answers)]
    return command


def _measured(output: bytes) -> Measured:
    told: dict[str, Any] = json.loads(output)
    return Measured(
        latencies={verb: [value / 1e3 for value in values] for verb, values in told["latency_ns"].items()},
        seconds=told["wall_ns"] / 1e9,
        failures=told["failures"],
        first_failure=told["first_failure"],
        plugin_cpu=told["plugin_cpu_ns"] / 1e3,
        driver_cpu=told["driver_cpu_ns"] / 1e3,
    )


def measure(
    plugin: Plugin,
    verbs: Sequence[str],
    count: int,
    *,
    first: int = 0,
    callers: int = 1,
    answers: Path | None = None,
    may_fail: bool = False,
) -> Measured:
    """Run `count` operations, numbered from `first`, each of them all `verbs` in turn, by `callers` at once.

    Raises:
        LoadError: a call failed and none may (a benchmark of failures is worth nothing), or the driver did.
    """
    command = _command(plugin, verbs, callers, answers)
    command += ["--count", str(count), "--first", str(first), "--", str(plugin.binary)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=_LONGEST)
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"{plugin.name}: {count} of {'+'.join(verbs)} are not done after {_LONGEST} s") from error
    if done.returncode:
        raise LoadError(f"the load driver ended with {done.returncode}: {' '.join(command)}")
    result = _measured(done.stdout)
    if result.failures and not may_fail:
        raise LoadError(f"{plugin.name}: {result.failures} calls failed; the first: {result.first_failure}")
    return result


class Background:
    """Load that goes on beside what the `with` block does, and ends with it; then `result` is there."""

    def __init__(self, plugin: Plugin, verbs: Sequence[str], *, first: int, callers: int) -> None:
        self._command = [
            *_command(plugin, verbs, callers, None),
            *("--until-eof", "--first", str(first), "--", str(plugin.binary)),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.result: Measured | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        assert self._process is not None
        try:
            output, _ = self._process.communicate(timeout=_LONGEST if kind is None else 30)
        finally:
            self._process.kill()
            self._process.wait()
        if self._process.returncode == 0:
            self.result = _measured(output)
        elif kind is None:
            raise LoadError(f"the load driver ended with {self._process.returncode}")


def sync_times(path: Path, count: int, *, pace: float = 0.0) -> list[float]:
    """What an fdatasync of 4 KiB at `path` takes, in microseconds, `count` times. The file is removed again.

    `pace` is how long the disk is left alone before each, in microseconds.
    """
    command = [str(programs.spawn()), "sync", "--count", str(count), "--pace", str(int(pace * 1e3)), str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    path.unlink()
    return [value / 1e3 for value in json.loads(done.stdout)["latency_ns"]["SYNC"]]
