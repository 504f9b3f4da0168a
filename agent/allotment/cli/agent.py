"""`allotment agent`: run this node's agent until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from typing import TYPE_CHECKING

import structlog

from allotment import __version__
from allotment.addressing.errors import ConfigError
from allotment.cli import Exit
from allotment.node.daemon import Agent
from allotment.node.manifests import ManifestSource
from allotment.node.settings import add_arguments, load
from allotment.node.state_folder import StateFolder
from allotment.observe import logs
from allotment.observe.clock import SystemClock, read_boot_id
from allotment.observe.metrics import Metrics
from allotment.observe.systemd import Notifier, listen_fds

if TYPE_CHECKING:
    import argparse
    import socket

    from allotment.node.settings import Settings

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
    if settings.manifests is None:
        raise ConfigError("the agent needs to know what to serve: say --manifests FOLDER (or ALLOTMENT_MANIFESTS)")
    try:
        clock = SystemClock(read_boot_id(settings.boot_id_file))
    except OSError as error:
        raise ConfigError(f"the boot ID can't be read from {settings.boot_id_file}: {error.strerror}") from error
    # Bound once: the lazy logger would look up its configuration for each line.
    manifests, log = settings.manifests, structlog.get_logger().bind()
    agent = Agent(
        settings,
        clock=clock,
        log=log,
        metrics=metrics,
        notifier=Notifier(),
        make_source=lambda: ManifestSource(manifests, StateFolder(settings.state_dir), settings.node, clock, log),
        listener=_activated(),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    # Leases live long and make no cycles: what is there for good need not be looked at by every collection to come.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    await agent.run()


def _activated() -> socket.socket | None:
    """The socket that the service manager opened for us, if it did."""
    passed = listen_fds()
    if len(passed) > 1:
        names = ", ".join(entry.name for entry in passed)
        raise ConfigError(f"the service manager passed {len(passed)} sockets ({names}); the agent serves one")
    return passed[0].socket if passed else None
