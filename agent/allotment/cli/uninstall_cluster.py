"""`allotment uninstall cluster`: which cluster it is, and what became of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from allotment.cli import Exit
from allotment.kube.access import find_access
from allotment.kube.client import Client
from allotment.kube.removal import Removal

if TYPE_CHECKING:
    from pathlib import Path

    from allotment.observe.clock import Clock

__all__ = ["run"]


def run(kubeconfig: Path | None, clock: Clock, *, yes: bool, force: bool, wait: float) -> Exit:
    """Show what is there, or remove it. Raises as `Removal.run`, and ConfigError where there is no cluster."""
    return asyncio.run(_run(kubeconfig, clock, yes=yes, force=force, wait=wait))


async def _run(kubeconfig: Path | None, clock: Clock, *, yes: bool, force: bool, wait: float) -> Exit:
    access = await find_access(kubeconfig)
    async with Client(access, clock, user_agent="allotment-uninstall") as client:
        removal = Removal(client, lambda line: print(line, flush=True))
        if yes:
            await removal.run(force=force, wait=wait)
            print(f"nothing of ours is left in the cluster at {access.server}")
        elif await removal.show():
            print(f"nothing was removed from the cluster at {access.server}; --yes removes it")
        else:
            print(f"there is nothing of ours in the cluster at {access.server}")
    return Exit.OK
