"""This node's Allocations, kept in step with what is true: finalizer on, status told, finalizer off (I4, I5).

    no finalizer, not draining  ──▶ put it on, before the first lease
    draining, pod leases left   ──▶ say which in the condition, wait
    draining, none left         ──▶ take it off; on L2 at once, where the Allocation is only the marker

A draining network's plan refuses before this looks, and what was under way then is counted by the book, so "none
left" can't become untrue again.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from allotment.addressing.errors import TryAgain
from allotment.addressing.lease import LeaseKind, Moment
from allotment.addressing.plan import Layer
from allotment.addressing.utilization import of_block
from allotment.api.allocation import AllocationStatus, BlockUse
from allotment.api.meta import NODE_FINALIZER, Condition
from allotment.node.inquiries.describe import who
from allotment.node.plans import draining
from allotment.node.view import View

if TYPE_CHECKING:
    from collections.abc import Iterable

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.address import Prefix
    from allotment.addressing.book import LeaseBook
    from allotment.addressing.lease import Lease
    from allotment.addressing.utilization import Utilization
    from allotment.api.allocation import Allocation
    from allotment.node.view import Source
    from allotment.observe.clock import Clock

__all__ = ["AllocationKeeper", "leases_left"]

_STATUS_APART = 10.0
"""Seconds between two writes of one status, except of what others wait for."""
_NAMED = 5
"""Leases that a condition names; more are counted."""
_RETRY = 2.0
_TOGETHER = 0.05


class AllocationKeeper:
    """Looks at each Allocation after every change of Views or leases, and writes what is due."""

    def __init__(
        self, source: Source, book: LeaseBook, clock: Clock, log: FilteringBoundLogger, *, node: str, ledger_id: str
    ) -> None:
        self._source = source
        self._book = book
        self._clock = clock
        self._log = log
        self._node = node
        self._ledger_id = ledger_id
        self._view = View()
        self._wake = asyncio.Event()
        self._draining = False
        self._written: dict[str, float] = {}
        self._busy: set[str] = set()
        self._missed: set[str] = set()  # busy when they were to be looked at

    def take(self, view: View) -> None:
        """A new View; it is looked at soon."""
        self._view = view
        self._draining = any(draining(allocation, view) for allocation in view.allocations.values())
        self._wake.set()

    def poke(self) -> None:
        """Leases changed. Costs nothing unless a drain waits for that; a status can wait for its time."""
        if self._draining:
            self._wake.set()

    async def run(self) -> None:
        """Work for ever. A write that takes its time delays no other Allocation's."""
        async with asyncio.TaskGroup() as group:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STATUS_APART):
                        await self._wake.wait()
                # What comes in the same moment is looked at in one round: a burst of DELs costs one look, not one each.
                await self._clock.sleep(_TOGETHER)
                self._wake.clear()
                view = self._view
                for name, allocation in ((item.name, item) for item in view.allocations.values()):
                    if name in self._busy:
                        self._missed.add(name)
                    else:
                        self._busy.add(name)
                        group.create_task(self._attend(allocation, view))

    async def _attend(self, allocation: Allocation, view: View) -> None:
        name = allocation.name
        try:
            await self._keep(allocation, view)
        except TryAgain as error:
            self._log.warning("allocation not written", allocation=name, error=error.message)
            self._later()
        finally:
            self._busy.discard(name)
            if name in self._missed:
                self._missed.discard(name)
                self._wake.set()

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(_RETRY, self._wake.set)

    async def _keep(self, allocation: Allocation, view: View) -> None:
        name = allocation.name
        network = allocation.spec.network
        reason = draining(allocation, view)
        ours = NODE_FINALIZER in allocation.metadata.finalizers
        if not reason and not ours:
            if not view.whole or network in view.unseen:
                return
            finalizers = (*allocation.metadata.finalizers, NODE_FINALIZER)
            if await self._source.record(allocation, finalizers=finalizers):
                self._log.info("network admitted", network=network, allocation=name)
            return
        left = leases_left(self._book, network) if reason else ()
        marker = allocation.spec.type is Layer.L2
        if reason and (marker or (not left and not self._book.giving(network))):
            await self._release(allocation, reason, ours=ours)
            return
        await self._tell(allocation, reason, left)

    async def _release(self, allocation: Allocation, reason: str, *, ours: bool) -> None:
        """The last lease is gone: let the Allocation go."""
        name = allocation.name
        if ours:
            rest = tuple(entry for entry in allocation.metadata.finalizers if entry != NODE_FINALIZER)
            if not await self._source.record(allocation, finalizers=rest):
                return
            self._log.info("network drained", network=allocation.spec.network, allocation=name, reason=reason)
        await self._source.forget(allocation)
        self._written.pop(name, None)

    async def _tell(self, allocation: Allocation, reason: str, left: tuple[Lease, ...]) -> None:
        name = allocation.name
        now = self._clock.seconds()
        status = self._status(allocation, reason, left)
        if status == allocation.status:
            return
        urgent = _condition(status, "Draining") != _condition(allocation.status, "Draining")
        due = self._written.get(name, -_STATUS_APART) + _STATUS_APART
        if not urgent and now < due:
            asyncio.get_running_loop().call_later(due - now, self._wake.set)
            return
        self._written[name] = now
        await self._source.record(allocation, status=status)

    def _status(self, allocation: Allocation, reason: str, left: tuple[Lease, ...]) -> AllocationStatus:
        network = allocation.spec.network
        now = Moment(self._clock.boot, self._clock.seconds())
        use = self._book.use(network, now)
        uses = tuple(_block_use(prefix, of_block(use, prefix)) for prefix in use.blocks)
        plan = self._book.plan(network)
        refusal = plan.refusal if plan is not None else None
        conditions = [
            self._stamped(
                allocation,
                Condition(
                    type="Ready",
                    status="False" if refusal else "True",
                    reason="Refusing" if refusal else "Serving",
                    message=refusal.message if refusal else f"addresses are given on node {self._node}",
                ),
            )
        ]
        if reason:
            conditions.append(
                self._stamped(
                    allocation,
                    Condition(type="Draining", status="True", reason="LeasesLeft", message=_waits_for(reason, left)),
                )
            )
        return AllocationStatus(ledger_id=self._ledger_id, blocks=uses, conditions=tuple(conditions))

    def _stamped(self, allocation: Allocation, condition: Condition) -> Condition:
        """With the time since when it is so: kept while its status stays."""
        before = _condition(allocation.status, condition.type)
        since = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if before is not None and before.status == condition.status:
            since = before.last_transition_time
        return Condition(
            type=condition.type,
            status=condition.status,
            reason=condition.reason,
            message=condition.message,
            last_transition_time=since,
            observed_generation=allocation.metadata.generation,
        )


def leases_left(book: LeaseBook, network: str) -> tuple[Lease, ...]:
    """The pod leases that a drain of the network waits for."""
    return tuple(lease for lease in book.leases(network) if lease.owner.kind is LeaseKind.POD)


def _block_use(prefix: Prefix, numbers: Utilization) -> BlockUse:
    return BlockUse(
        cidr=str(prefix),
        capacity=str(numbers.capacity),
        in_use=str(numbers.in_use),
        reserved=str(numbers.reserved),
        cooling=str(numbers.cooling),
        available=str(numbers.available),
    )


def _waits_for(reason: str, left: Iterable[Lease]) -> str:
    owners = sorted({who(lease.owner) for lease in left})
    named = ", ".join(owners[:_NAMED]) + (f" and {len(owners) - _NAMED} more" if len(owners) > _NAMED else "")
    count = sum(1 for _ in left)
    return f"{reason}; {count} lease{'s' if count != 1 else ''} left: {named}" if count else f"{reason}; nothing left"


def _condition(status: AllocationStatus, kind: str) -> Condition | None:
    return next((entry for entry in status.conditions if entry.type == kind), None)
