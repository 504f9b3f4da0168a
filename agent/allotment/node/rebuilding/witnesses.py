"""Asks all who may know what runs here. Whoever can't be asked stops the rebuild: he is never taken for nobody (I8)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from allotment.addressing.errors import InternalError, TryAgain
from allotment.node.namespaces import see_namespaces
from allotment.node.orphans.evidence import namespace_gone
from allotment.node.orphans.verdicts import Pods, Unreadable
from allotment.node.rebuilding.cni_cache import read_cni_cache
from allotment.node.rebuilding.evidence import Evidence, RunningPod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from allotment.cri.messages import Sandbox
    from allotment.cri.runtime import Runtime
    from allotment.node.settings import Settings
    from allotment.observe.clock import Clock

__all__ = ["NodePods", "Witnesses"]

_PODS_COME: Final = 5.0
"""Seconds within which the API server's pods are expected, once it has told of networks."""
_LOOK: Final = 0.05


class NodePods(Protocol):
    """Who knows the pods that are bound to this node, where there is a cluster to ask."""

    def pods(self) -> Pods | Unreadable:
        """All of them, by UID, or why that isn't known now."""
        ...

    def running(self) -> tuple[RunningPod, ...] | Unreadable:
        """Those that may have an address of ours."""
        ...


class Witnesses:
    """libcni's cache, the network namespaces, the runtime (None: there is none to ask) and the API server's pods.

    `runtime` finds the runtime anew each time.
    """

    def __init__(
        self, settings: Settings, clock: Clock, *, runtime: Callable[[], Runtime] | None, pods: NodePods | None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._runtime = runtime
        self._pods = pods

    async def hear(self, *, insist: bool, api_answers: bool) -> Evidence:
        """Ask all of them.

        The API server's word is nice to have: it isn't waited for while it doesn't answer. Neither is a runtime of
        which there is no trace, unless `insist` says that there was a ledger before.

        Raises:
            AllotmentError: somebody can't be asked now.
        """
        unheard: list[str] = []
        pods = await self._running_pods(unheard, _PODS_COME if api_answers else 0.0)
        sandboxes = await self._sandboxes(unheard, insist=insist)
        cached = await asyncio.to_thread(read_cni_cache, self._settings.cni_cache_dir)
        told = {path for path in (*(each.netns for each in cached), *(each.netns for each in sandboxes)) if path}
        namespaces, unread = await see_namespaces(self._settings.netns_dir, told)
        if unread:
            raise InternalError("; ".join(unread))
        there = {path for namespace in namespaces for path in namespace.paths}
        gone = await asyncio.to_thread(_gone, told - there, self._settings.netns_dir)
        return Evidence(cached, sandboxes, pods, namespaces, gone, tuple(unheard))

    async def _sandboxes(self, unheard: list[str], *, insist: bool) -> tuple[Sandbox, ...]:
        if self._runtime is None:
            return ()
        try:
            runtime = self._runtime()
        except TryAgain as error:
            if insist:
                raise
            unheard.append(error.message)
            return ()
        listed = await runtime.sandboxes()
        return tuple((await runtime.statuses(each.id for each in listed)).values()) if listed else ()

    async def _running_pods(self, unheard: list[str], patience: float) -> tuple[RunningPod, ...]:
        if self._pods is None:
            return ()
        until = self._clock.seconds() + patience
        while isinstance(found := self._pods.running(), Unreadable) and self._clock.seconds() < until:
            await self._clock.sleep(_LOOK)
        if isinstance(found, Unreadable):
            unheard.append(found.why)
            return ()
        return found


def _gone(paths: Iterable[str], folders: Iterable[Path]) -> frozenset[str]:
    """Those of which something proves that they are gone.

    A folder where namespaces are to be looked for holds none when it is missing; a process's (/proc) is gone once it
    can't be seen.
    """
    missing = {str(folder) for folder in folders if not folder.exists()}
    return frozenset(
        path
        for path in paths
        if namespace_gone(path)
        or path.rpartition("/")[0] in missing
        or (path.startswith("/proc/") and not Path(path).exists())
    )
