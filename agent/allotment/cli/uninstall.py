"""`allotment uninstall`: take all that is ours from a node, or from a cluster, or show what that would be."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import TryAgain
from allotment.cli import Exit
from allotment.cli.informant import PLACES
from allotment.cli.install import BIN_DIR, CONF_DIR, seconds_to_wait
from allotment.node.settings import add_arguments, load
from allotment.observe.clock import SystemClock, read_boot_id

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["configure", "run"]

_PAUSE_SECONDS: Final = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `uninstall`."""
    parser.description = (
        "Remove all that is ours: from this node (plugin, configuration, ledger, spool\n"
        "and socket), or from a cluster (agents, policies, objects with our finalizers,\n"
        "kinds, roles and the namespace allotment-system).\n\n"
        "A node's agent has to be stopped, and while pods have addresses of its ledger\n"
        "nothing is removed: they can't be ended properly without the plugin. From a\n"
        "cluster agents and controller go first; the rest only once their pods are gone."
    )
    parser.add_argument("what", choices=("node", "cluster"), help="what to remove it from")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="only show it; this is what happens without --yes")
    mode.add_argument("--yes", action="store_true", help="remove it")
    parser.add_argument(
        "--force",
        action="store_true",
        help="node: also while pods have addresses; cluster: also while pods of ours are not gone, as on a dead node",
    )
    parser.add_argument(
        "--wait",
        type=seconds_to_wait,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for what stands in the way (default: 60)",
    )
    parser.add_argument(
        "--bin-dir",
        type=Path,
        default=BIN_DIR,
        metavar="DIR",
        help=f"node: where the plugin is (default: {BIN_DIR})",
    )
    parser.add_argument(
        "--conf-dir",
        type=Path,
        default=CONF_DIR,
        metavar="DIR",
        help=f"node: where configurations are (default: {CONF_DIR})",
    )
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="cluster: the file that names it; without it, the one that this runs in"
    )
    add_arguments(parser, PLACES)


def run(arguments: argparse.Namespace) -> Exit:
    """Show, or remove.

    Raises:
        TryAgain: something stands in the way, and did until the wait was over.
        AllotmentError: what can't be read, removed or reached.
    """
    settings = load(arguments)
    clock = SystemClock(read_boot_id(settings.boot_id_file))
    if arguments.what == "cluster":
        from allotment.cli import uninstall_cluster  # noqa: PLC0415  # the API client: for a cluster alone

        return uninstall_cluster.run(
            settings.kubeconfig, clock, yes=arguments.yes, force=arguments.force, wait=arguments.wait
        )
    from allotment.cli.uninstall_node import Node  # noqa: PLC0415  # SQLite and the book: for a node alone

    node = Node(settings, clock, arguments.bin_dir, arguments.conf_dir)
    if not arguments.yes:
        return node.show()
    _patiently(lambda: node.remove(force=arguments.force), clock, arguments.wait)
    return Exit.OK if node.clean else Exit.PROBLEM


def _patiently(do: Callable[[], None], clock: SystemClock, wait: float) -> None:
    """Try until it is done or the wait is over; say each thing that stands in the way once."""
    end = clock.seconds() + wait
    told = ""
    while True:
        try:
            return do()
        except TryAgain as problem:
            left = end - clock.seconds()
            if left <= 0:
                raise
            if problem.message != told:
                told = problem.message
                sys.stdout.flush()  # what has gone by now, also where a pod's log takes it
                print(f"waiting up to {left:.0f} s: {told}", file=sys.stderr)
            time.sleep(min(_PAUSE_SECONDS, left))
