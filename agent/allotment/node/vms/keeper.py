"""Ends the leases by which addresses are kept for virtual machines, once they are kept in vain (ADR 0013).

Each end names the lease that it means (I7): a machine that was started just now has taken its address over, and nothing
happens to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import AllotmentError
from allotment.addressing.lease import Cause
from allotment.kube.failures import NotFound
from allotment.kube.resources import INSTANCES, VMS
from allotment.node.vms.kept import AT_FIRST, Looks, why_not_kept
from allotment.node.vms.pods import PodMachines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from allotment.addressing.lease import Lease
    from allotment.kube.client import Client
    from allotment.kube.objects import Pod
    from allotment.node.view import View
    from allotment.node.vms.parts import VmParts
    from allotment.observe.logs import Logger

__all__ = ["VmKeeper"]

_TOGETHER: Final = 0.01
_RETRY: Final = 2.0
_RUNNING: Final = "Running"


class VmKeeper(PodMachines):
    """Also says which pods run virtual machines (`PodMachines`)."""

    def __init__(
        self,
        client: Client,
        pod: Callable[[str, str], Pod | None],
        worth_asking: Callable[[], bool],
        parts: VmParts,
        log: Logger,
    ) -> None:
        super().__init__(client, pod, worth_asking)
        self._client = client
        self._book = parts.book
        self._attachments = parts.attachments
        self._clock = parts.clock
        self._node = parts.node
        self._waits = parts.waits
        self._log = log
        self._wake = asyncio.Event()
        self._looks: dict[tuple[str, str], Looks] = {}
        self._in_step = False
        parts.metrics.read("vm_addresses_kept", self._counts)

    def take(self, view: View) -> None:
        """A new View, by which is planned already."""
        self._in_step = view.synced and not view.doubted
        self._wake.set()

    def poke(self) -> None:
        """Leases changed."""
        self._wake.set()

    async def run(self) -> None:
        """Look at each change, and at machines whose time has come; never returns."""
        pause: float | None = None
        while True:
            await self._pause(pause)
            pause = await self._round()

    # -- inside

    async def _pause(self, seconds: float | None) -> None:
        """Wait until something changes, or for so long."""
        waiting = asyncio.ensure_future(self._wake.wait())
        timer = None if seconds is None else asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait([waiting, *([timer] if timer else [])], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (waiting, timer):
                if task is not None:
                    task.cancel()
        await self._clock.sleep(_TOGETHER)  # what comes in the same moment is looked at in one round
        self._wake.clear()

    async def _round(self) -> float | None:
        """What is due now; in how many seconds the next is, None where there is nothing."""
        kept = self._book.kept()
        machines = {(lease.owner.pod_namespace, lease.owner.vm) for lease in kept}
        now = self._clock.seconds()
        self._looks = {each: self._looks.get(each) or Looks(now + AT_FIRST) for each in machines}
        if not kept:
            return None
        # Nothing ends on the word of a source that isn't read, or not believed (I15).
        if self._waits() or not self._in_step:
            return _RETRY
        busy = False
        try:
            for lease in kept:
                plan = self._book.plan(lease.owner.network)
                if why := why_not_kept(lease, plan, may_keep=self._book.may_keep(lease)):
                    busy = not await self._end([lease], why) or busy
            answers = True
            for machine, looks in list(self._looks.items()):
                if looks.due > now:
                    continue
                if answers:
                    answers = await self._look(machine)
                else:  # who doesn't answer for one isn't waited for by the others
                    looks.look(None, self._clock.seconds())
        except AllotmentError as error:  # the ledger's
            self._log.warning("kept addresses not released", error=error.message)
            return _RETRY
        pause = min(looks.due for looks in self._looks.values()) - self._clock.seconds()
        return max(0.0, min(pause, _RETRY) if busy else pause)

    async def _look(self, machine: tuple[str, str]) -> bool:
        """Look at one machine; whether there was an answer."""
        looks = self._looks[machine]
        evidence = await self._evidence(*machine)
        if looks.look(evidence, self._clock.seconds()) and evidence:
            kept = (lease for lease in self._book.kept() if (lease.owner.pod_namespace, lease.owner.vm) == machine)
            await self._end(kept, evidence)
        return evidence is not None

    async def _evidence(self, namespace: str, vm: str) -> str | None:
        """Why the machine needs nothing here any more; empty if it may, None if that can't be told."""
        try:
            try:
                await self._client.get(VMS, vm, namespace=namespace)
            except NotFound:  # of this very object: a kind that isn't served is another failure
                return f"VirtualMachine {namespace}/{vm} is gone"
            with contextlib.suppress(NotFound):
                instance = await self._client.get(INSTANCES, vm, namespace=namespace)
                where = instance.status.node_name
                if instance.status.phase == _RUNNING and where and where != self._node:
                    return f"virtual machine {namespace}/{vm} runs on node {where}"
        except AllotmentError as error:
            self._log.debug("a virtual machine can't be looked for", vm=f"{namespace}/{vm}", error=error.message)
            return None
        return ""

    async def _end(self, leases: Iterable[Lease], why: str) -> tuple[Lease, ...]:
        """End those that still are; the others have been taken over, or something is at work on them."""
        ended = await self._attachments.remove(leases, Cause.UNKEPT, why)
        for lease in ended:
            self._log.info(
                "released an address kept for a virtual machine",
                network=lease.owner.network,
                address=str(lease.address),
                vm=lease.owner.machine,
                reason=why,
            )
        return ended

    def _counts(self) -> Iterable[tuple[tuple[str, ...], float]]:
        counts: dict[str, int] = {}
        for lease in self._book.kept():
            counts[lease.owner.network] = counts.get(lease.owner.network, 0) + 1
        return tuple(((network,), float(count)) for network, count in sorted(counts.items()))
