"""A source of objects in memory: what a test puts into it is what the agent sees, and what the agent writes is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from allotment.addressing.errors import TryAgain
from allotment.node.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from allotment.api.allocation import Allocation, AllocationStatus
    from allotment.api.network import Network

__all__ = ["MemorySource"]

_replace = msgspec.structs.replace


class MemorySource:
    """The `Source` of tests. `failing` (a reason) refuses every write; `written` counts writes by Allocation.

    A write to one of `hanging` never ends.
    """

    def __init__(self) -> None:
        self.failing = ""
        self.hanging: set[str] = set()
        self.written: dict[str, int] = {}
        self.networks: dict[str, Network] = {}
        self.allocations: dict[str, Allocation] = {}
        self.more: dict[str, Any] = {}
        self._publish: Callable[[View], None] = lambda _: None

    @property
    def place(self) -> str:
        """Nowhere but in memory."""
        return "memory"

    async def run(self, publish: Callable[[View], None], *, known: bool = False) -> None:
        """Publish what there is, and from then on whatever `publish` is called for."""
        self._publish = publish
        self.publish()
        await asyncio.get_running_loop().create_future()

    def publish(self) -> None:
        """Show the agent what there is now."""
        self._publish(self.view())

    def view(self) -> View:
        """What there is now."""
        return View(
            networks=dict(self.networks),
            allocations={item.spec.network: item for item in self.allocations.values()},
            synced=True,
            local_l2=True,
            **self.more,
        )

    async def record(
        self, seen: Allocation, *, finalizers: Sequence[str] | None = None, status: AllocationStatus | None = None
    ) -> bool:
        """Write, as an API server would: nothing to what is gone, no new finalizer on what is being deleted."""
        if self.failing:
            raise TryAgain(self.failing)
        name = seen.name
        if name in self.hanging:
            await asyncio.get_running_loop().create_future()
        item = self.allocations.get(name)
        if item is None or item.metadata.uid != seen.metadata.uid:
            return False
        meta = item.metadata
        if finalizers is not None:
            if meta.deleting and not set(finalizers) <= set(meta.finalizers):
                return False
            meta = _replace(meta, finalizers=tuple(finalizers))
        self.written[name] = self.written.get(name, 0) + 1
        if meta.deleting and not meta.finalizers:
            del self.allocations[name]
        else:
            kept = item.status if status is None else status
            self.allocations[name] = _replace(item, metadata=meta, status=kept)
        self.publish()
        return True

    async def forget(self, seen: Allocation) -> None:
        """Let an Allocation go that is being deleted."""
        if self.failing:
            raise TryAgain(self.failing)
        item = self.allocations.get(seen.name)
        if item is not None and item.metadata.deleting:
            del self.allocations[seen.name]
            self.publish()
