"""The test cluster for people: `python -m cluster up [NODE…]`, `python -m cluster down`.

`up` leaves a process behind that holds the cluster, and a folder with a command for each thing to look at: `kubectl`,
and one named after each node, which runs what it is given in the node. `down` ends that process, which takes
everything along; where it was killed before, `down` removes what it could not.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from cluster.cluster import Cluster, remove_leavings
from keeping import BuildError, cache
from nodes import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_START = 120.0
_END = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--no-pod-network", action="store_true", help="leave the nodes without a CNI configuration")
    parser.add_argument("verb", choices=["up", "down", "hold"], help="`hold` is `up` that stays, until it is ended")
    parser.add_argument("node", nargs="*", help="the nodes' names (n1 and n2, if none is given)")
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("cluster: it takes root to make network namespaces")
    folder = cache() / "cluster"
    try:
        if given.verb == "down":
            _down(folder)
        elif given.verb == "hold":
            _hold(folder, given.node, pod_network=not given.no_pod_network)
        else:
            _up(folder, sys.argv[1:])
    except BuildError as error:
        sys.exit(f"cluster: {error}")


def _up(folder: Path, arguments: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with _held(folder) as free:
        if not free:
            sys.exit(f"cluster: there is one; its commands are in {folder}, and `make cluster-down` ends it")
    _clear(folder)
    Cluster.prepare()  # which may take minutes, and says so where it is seen
    arguments[arguments.index("up")] = "hold"
    log = folder / "log"
    with log.open("wb") as output:
        holder = subprocess.Popen(
            [sys.executable, "-m", "cluster", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    ready = folder / "ready"
    until(lambda: ready.exists() or holder.poll() is not None, "the cluster is not up", limit=_START)
    if holder.poll() is not None:
        sys.exit(f"cluster: {log.read_text()}")
    print(f"The cluster is up, until `make cluster-down`. Its kubectl: {folder}/kubectl; a shell in each node:")
    for path in sorted(folder.iterdir()):
        if os.access(path, os.X_OK) and path.name != "kubectl":
            print(f"  {path} bash")


def _hold(folder: Path, nodes: list[str], *, pod_network: bool) -> None:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    with _held(folder) as free:
        assert free, f"another process holds {folder}"
        (folder / "pid").write_text(str(os.getpid()))
        with Cluster(*nodes, pod_network=pod_network, leavings=folder / "leavings") as cluster:
            _write_commands(folder, cluster)
            (folder / "ready").touch()
            ended.wait()
        _clear(folder)


def _down(folder: Path) -> None:
    if not folder.exists():
        return
    with _held(folder) as free:
        if not free:
            os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
    until(lambda: _is_free(folder), "the cluster does not end", limit=_END)
    _clear(folder)
    shutil.rmtree(folder)


def _clear(folder: Path) -> None:
    """Remove all but the lock and the log, and what a holder that was killed has left on the machine."""
    remove_leavings(folder / "leavings")
    for path in folder.iterdir():
        if path.name not in ("lock", "log"):
            path.unlink()


def _write_commands(folder: Path, cluster: Cluster) -> None:
    commands = {
        "kubectl": cluster.api.kubectl_command(),
        **{name: node.command() for name, node in cluster.nodes.items()},
    }
    for name, words in commands.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        path.chmod(0o755)


def _is_free(folder: Path) -> bool:
    with _held(folder) as free:
        return free


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Whether nobody else holds the cluster; if so, we do."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


if __name__ == "__main__":
    main()
