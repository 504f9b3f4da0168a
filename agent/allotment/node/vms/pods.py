"""Which of this node's pods run virtual machines: from the watch, or (for a pod that it hasn't shown yet) by asking."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import AllotmentError
from allotment.kube.resources import PODS
from allotment.node.pod_uids import is_meant
from allotment.node.vms.naming import vm_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from allotment.kube.client import Client
    from allotment.kube.objects import Pod

__all__ = ["PodMachines"]

_LIMIT: Final = 0.5
"""Seconds that an ADD waits for the answer: an L3 network serves without the API server, too (I12)."""


class PodMachines:
    """See `Machines`. `pod` looks for one that the watch has shown; `worth_asking` says whether others may run VMs."""

    def __init__(self, client: Client, pod: Callable[[str, str], Pod | None], worth_asking: Callable[[], bool]) -> None:
        self._client = client
        self._pod = pod
        self._worth_asking = worth_asking

    def seen(self, namespace: str, name: str, uid: str) -> str | None:
        """See `Machines.seen`."""
        pod = self._pod(namespace, name)
        return None if pod is None or not is_meant(pod, uid) else vm_of(pod)

    async def ask(self, namespace: str, name: str, uid: str) -> str:
        """See `Machines.ask`."""
        if not self._worth_asking():
            return ""
        with contextlib.suppress(TimeoutError, AllotmentError):
            async with asyncio.timeout(_LIMIT):
                pod = await self._client.get(PODS, name, namespace=namespace)
            return vm_of(pod) if is_meant(pod, uid) else ""
        return ""
