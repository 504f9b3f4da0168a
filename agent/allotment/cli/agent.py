"""`allotment agent`: run this node's agent until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from typing import TYPE_CHECKING

import structlog

from allotment import __version__
from allotment.addressing.errors import ConfigError
from allotment.cli import Exit
from allotment.node.daemon import Agent
from allotment.node.settings import add_arguments, load
from allotment.observe import logs
from allotment.observe.clock import SystemClock, read_boot_id
from allotment.observe.metrics import Metrics
from allotment.observe.systemd import Notifier, listen_fds

if TYPE_CHECKING:
    import argparse
    import socket
    from collections.abc import Callable

    from allotment.node.cluster import ClusterSource
    from allotment.node.settings import Settings
    from allotment.node.view import Source
    from allotment.observe.clock import Clock
    from allotment.observe.logs import Logger

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags: one for each setting."""
    add_arguments(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Run the agent. A failure to start, or to go on, is an error of the tree and ends the process non-zero."""
    settings = load(arguments)
    metrics = Metrics(__version__)
    dropped = metrics.count("log_lines_dropped_total")
    logs.configure(settings.log_format, settings.log_level, on_drop=dropped.inc)
    os.umask(0o077)  # what we write is nobody else's to read
    asyncio.run(_serve(settings, metrics))
    return Exit.OK


async def _serve(settings: Settings, metrics: Metrics) -> None:
    try:
        clock = SystemClock(read_boot_id(settings.boot_id_file))
    except OSError as error:
        raise ConfigError(f"the boot ID can't be read from {settings.boot_id_file}: {error.strerror}") from error
    log = structlog.get_logger().bind()  # once: the lazy logger would look up its configuration for each line
    async with contextlib.AsyncExitStack() as stack:
        make_source, cluster = await _source(settings, clock, log, stack, metrics)
        agent = Agent(
            settings,
            clock=clock,
            log=log,
            metrics=metrics,
            notifier=Notifier(),
            make_source=make_source,
            listener=_activated(),
            pods=cluster,
            events=cluster.tell if cluster is not None else None,
            make_claims=cluster.claim_desk if cluster is not None else None,
            make_vms=cluster.vm_keeper if cluster is not None else None,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, agent.stop)
        # Leases live long and make no cycles: what is there for good need not be looked at by each collection to come.
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        await agent.run()


async def _source(
    settings: Settings, clock: Clock, log: Logger, stack: contextlib.AsyncExitStack, metrics: Metrics
) -> tuple[Callable[[], Source], ClusterSource | None]:
    """What makes the source, of a folder or of a cluster, and the latter once more.

    Each kind of agent loads what it needs alone: only a cluster's the API client, only the other what reads manifests.
    """
    if (folder := settings.manifests) is not None:
        if settings.kubeconfig is not None:
            raise ConfigError("--manifests and --kubeconfig exclude each other: objects come from one place")
        from allotment.node.manifests.source import ManifestSource  # noqa: PLC0415  # 2 MiB that a cluster's needs not
        from allotment.node.manifests.state_folder import StateFolder  # noqa: PLC0415  # as above

        return lambda: ManifestSource(folder, StateFolder(settings.state_dir), settings.node, clock, log), None
    from allotment.node import cluster  # noqa: PLC0415  # memory that an agent without a cluster need not hold

    def listed(kind: str) -> None:
        metrics.count("source_lists_total", kind).inc()

    dropped = metrics.count("event_notes_dropped_total")
    source = await cluster.connected(
        settings.kubeconfig, settings.node, clock, log, stack, on_drop=dropped.inc, on_list=listed
    )
    return lambda: source, source


def _activated() -> socket.socket | None:
    """The socket that the service manager opened for us, if it did."""
    passed = listen_fds()
    if len(passed) > 1:
        names = ", ".join(entry.name for entry in passed)
        raise ConfigError(f"the service manager passed {len(passed)} sockets ({names}); the agent serves one")
    return passed[0].socket if passed else None
