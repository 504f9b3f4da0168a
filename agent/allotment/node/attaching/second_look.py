"""The second look of a DEL: what else its pod may have left behind, under other containers of its own.

A DEL releases what its container held. Other leases of the same pod, by its UID, that are older than the DEL may be of
a sandbox whose own DEL was lost; or of the pod's new sandbox, which nothing may touch. Which it is, the DEL can't know,
so the runtime is asked, and the namespace looked at, after the DEL has its answer: nobody waits for that, and a runtime
that hangs delays no pod's end. One that can't be asked leaves it to the search for orphans.

A lease is released when the runtime no longer knows its sandbox and its namespace is gone. While a sandbox is being
made the runtime doesn't know it either, but its namespace is there; where that can't be looked at, a lease is taken for
one in the making for as long as that may take.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from allotment.addressing.errors import AllotmentError
from allotment.addressing.lease import Cause, LeaseKind, Moment
from allotment.node.orphans.evidence import namespaces_gone
from allotment.node.orphans.verdicts import IN_THE_MAKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.book import LeaseBook
    from allotment.addressing.lease import Lease
    from allotment.cni.request import CniRequest
    from allotment.cri.runtime import Runtime
    from allotment.node.attaching.attachments import Attachments
    from allotment.observe.clock import Clock

__all__ = ["SecondLook", "left_behind"]

_ROUND = 256
"""Leases that one round asks the runtime about, at most."""


def left_behind(
    leases: Iterable[Lease], known: Container[str], gone: Mapping[str, bool | None], now: Moment
) -> tuple[Lease, ...]:
    """Those whose sandbox is provably gone. Pure.

    `known` are the containers that the runtime knows; `gone` says of a namespace whether it is gone, None if that
    can't be told.
    """
    found = []
    for lease in leases:
        age = now.since(lease.since)
        proven = gone.get(lease.netns)
        if proven is None:
            proven = age is not None and age >= IN_THE_MAKING
        if proven and lease.owner.container_id not in known:
            found.append(lease)
    return tuple(found)


class SecondLook:
    """Looks once for each DEL that left something open. `runtime` finds the runtime anew each time."""

    def __init__(
        self,
        book: LeaseBook,
        attachments: Attachments,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        runtime: Callable[[], Runtime],
    ) -> None:
        self._book = book
        self._attachments = attachments
        self._clock = clock
        self._log = log
        self._runtime = runtime
        self._open: dict[int, tuple[Lease, str]] = {}  # by sequence, with what the DEL is called
        self._wake = asyncio.Event()
        self._looking = False

    def consider(self, request: CniRequest, came: Moment, detail: str) -> None:
        """A DEL, which is called `detail` and came then, is done. Nearly always it leaves nothing."""
        if not request.pod_uid:
            return
        for lease in self._book.of_workload(request.network, f"{request.pod_namespace}.{request.pod_name}"):
            owner, age = lease.owner, came.since(lease.since)
            if (
                owner.pod_uid == request.pod_uid  # never another pod of this name
                and owner.container_id != request.container_id
                and owner.kind is LeaseKind.POD
                and (age is None or age > 0)
            ):
                self._open.setdefault(lease.sequence, (lease, detail))
                self._wake.set()

    @property
    def busy(self) -> bool:
        """Whether something is open or is being looked at."""
        return bool(self._open) or self._looking

    async def run(self) -> None:
        """Look whenever something is open, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._open:
                numbers = list(self._open)[:_ROUND]
                doubtful = [self._open.pop(number) for number in numbers]
                self._looking = True
                try:
                    await self._look(doubtful)
                except AllotmentError as error:
                    self._log.warning(
                        "what a DEL left open is left to the search for orphans",
                        leases=len(doubtful),
                        reason=error.message,
                    )
                finally:
                    self._looking = False

    async def _look(self, doubtful: Sequence[tuple[Lease, str]]) -> None:
        leases = [lease for lease, _ in doubtful]
        known = await self._runtime().statuses({lease.owner.container_id for lease in leases})
        # After the runtime: a sandbox that it doesn't know yet had its namespace before.
        gone = await asyncio.to_thread(namespaces_gone, {lease.netns for lease in leases})
        now = Moment(self._clock.boot, self._clock.seconds())
        over = {lease.sequence for lease in left_behind(leases, known, gone, now)}
        by_request: dict[str, list[Lease]] = {}
        for lease, detail in doubtful:
            if lease.sequence in over:
                by_request.setdefault(detail, []).append(lease)
        for detail, several in by_request.items():
            why = f"{detail}: a DEL of the same pod; the runtime doesn't know this one's sandbox any more"
            for lease in await self._attachments.remove(several, Cause.WORKLOAD, why):
                self._log.info(
                    "released what another container of the pod had left",
                    request=detail,
                    network=lease.owner.network,
                    address=str(lease.address),
                    container=lease.owner.container_id,
                    pod=f"{lease.owner.pod_namespace}/{lease.owner.pod_name}",
                )
