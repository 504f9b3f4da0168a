"""This node's own Node object: its labels, and how many pods its kubelet takes.

Read by one GET at the start and seldom after: nothing that is served depends on it, and a watch of Nodes would bring
a change of each kubelet's heartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import AllotmentError
from allotment.kube.backoff import Backoff
from allotment.kube.resources import NODES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import FilteringBoundLogger

    from allotment.kube.client import Client
    from allotment.kube.objects import Node
    from allotment.observe.clock import Clock

__all__ = ["OwnNode"]

_SELDOM: Final = 600.0
"""Seconds between two looks."""


class OwnNode:
    """`node` is the object as last read, None until then; `changed` is called when it says something else."""

    def __init__(
        self, client: Client, name: str, clock: Clock, log: FilteringBoundLogger, changed: Callable[[], None]
    ) -> None:
        self._client = client
        self._name = name
        self._clock = clock
        self._log = log
        self._changed = changed
        self._backoff = Backoff(clock, first=1.0, most=300.0)
        self.node: Node | None = None

    @property
    def labels(self) -> Mapping[str, str] | None:
        """Its labels; None while they aren't known."""
        return None if self.node is None else self.node.metadata.labels

    @property
    def pod_limit(self) -> int | None:
        """How many pods the kubelet takes (`status.allocatable.pods`); None where that isn't known."""
        told = "" if self.node is None else self.node.status.allocatable.get("pods", "")
        return int(told) if told.isdecimal() else None

    async def run(self) -> None:
        """Read it, now and then; never returns."""
        while True:
            try:
                found = await self._client.get(NODES, self._name)
            except AllotmentError as error:
                self._log.debug("the Node can't be read", node=self._name, error=error.message)
                await self._backoff.pause(getattr(error, "retry_after", 0.0))
                continue
            self._backoff.reset()
            before = (self.labels, self.pod_limit)
            self.node = found
            if (self.labels, self.pod_limit) != before:
                self._changed()
            await self._clock.sleep(_SELDOM)
