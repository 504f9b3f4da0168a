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
from typing import TYPE_CHECKING

from allotment.addressing.errors import TryAgain
from allotment.addressing.lease import LeaseKind, Moment
from allotment.addressing.plan import Layer
from allotment.addressing.utilization import of_block
from allotment.api.allocation import AllocationStatus, BlockUse
from allotment.api.meta import NODE_FINALIZER
from allotment.node.conditions import Facts, condition, conditions, leases_left_in_words
from allotment.node.notices.notice import this
from allotment.node.notices.table import Happened
from allotment.node.plans import draining
from allotment.node.view import View

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.address import Prefix
    from allotment.addressing.book import LeaseBook
    from allotment.addressing.lease import Lease
    from allotment.addressing.utilization import Utilization
    from allotment.api.allocation import Allocation
    from allotment.node.block_keeper import BlockKeeper, Said
    from allotment.node.notices.notice import Subject
    from allotment.node.orphans.adoption import Conflict
    from allotment.node.view import Source
    from allotment.observe.clock import Clock

__all__ = ["AllocationKeeper", "leases_left"]

_STATUS_APART = 10.0
"""Seconds between two writes of one status, except of what others wait for."""
_RETRY = 2.0
_TOGETHER = 0.05


async def _nothing(_: Allocation) -> None:
    """Nothing is kept."""


class AllocationKeeper:
    """Looks at each Allocation after every change of Views or leases, and writes what is due.

    `fault` says why no lease can be put on disk (empty: they can), `conflicts` which addresses have two users (None:
    nobody knows yet); `tell` hears how drains go. Nothing is written while `waits` says why: as long as not all leases
    are known none may be taken for the last one, and no ledger for the one that knows them. `shut` has what the node
    would start from say that it no longer serves an Allocation.
    """

    def __init__(
        self,
        source: Source,
        book: LeaseBook,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        node: str,
        ledger_id: str,
        blocks: BlockKeeper,
        fault: Callable[[], str] = lambda: "",
        conflicts: Callable[[], tuple[Conflict, ...] | None] = lambda: None,
        tell: Callable[[Happened, str, Subject], None] = lambda *_: None,
        waits: Callable[[], str] = lambda: "",
        shut: Callable[[Allocation], Awaitable[None]] = _nothing,
    ) -> None:
        self._source = source
        self._book = book
        self._clock = clock
        self._log = log
        self._node = node
        self._ledger_id = ledger_id
        self._fault = fault
        self._conflicts = conflicts
        self._notify = tell
        self._told_left: dict[str, int] = {}  # by UID of what drains: so many leases were left when that was told
        self._blocks = blocks
        self._waits = waits
        self._shut = shut
        self._view = View()
        self._wake = asyncio.Event()
        self._draining = False
        self._written: dict[str, float] = {}
        self._busy: set[str] = set()
        self._missed: set[str] = set()  # busy when they were to be looked at

    def take(self, view: View) -> None:
        """A new View; it is looked at soon."""
        self._view = view
        here = {allocation.metadata.uid for allocation in view.allocations.values()}
        self._told_left = {uid: count for uid, count in self._told_left.items() if uid in here}
        self._draining = any(draining(allocation, view) for allocation in view.allocations.values())
        self._wake.set()

    def poke(self) -> None:
        """Leases changed. Costs nothing unless a drain waits for that; a status can wait for its time."""
        if self._draining:
            self._wake.set()

    def look_soon(self) -> None:
        """Something that others wait for is to be looked at now."""
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
                if self._waits():
                    continue
                view = self._view
                await self._sweep(view)
                for name, allocation in ((item.name, item) for item in view.allocations.values()):
                    if name in self._busy:
                        self._missed.add(name)
                    else:
                        self._busy.add(name)
                        group.create_task(self._attend(allocation, view))

    async def _sweep(self, view: View) -> None:
        try:
            await self._blocks.sweep(view)
        except TryAgain as error:
            self._log.warning("offers not forgotten", error=error.message)
            self._later()

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
        if reason:
            self._tell_drain(allocation, reason, left)
        said = await self._blocks.look(allocation, view, draining=bool(reason))
        await self._tell(allocation, reason, left, said)

    async def _release(self, allocation: Allocation, reason: str, *, ours: bool) -> None:
        """The last lease is gone: let the Allocation go."""
        name = allocation.name
        if ours:
            await self._shut(allocation)  # a crash must not bring back what others may be given from here on (I4)
            rest = tuple(entry for entry in allocation.metadata.finalizers if entry != NODE_FINALIZER)
            if not await self._source.record(allocation, finalizers=rest):
                return
            self._log.info("network drained", network=allocation.spec.network, allocation=name, reason=reason)
            marker = allocation.spec.type is Layer.L2
            ended = "it is only the marker" if marker else f"the last lease on node {self._node} has ended"
            self._notify(Happened.DRAINED, f"{reason}; {ended}", this(allocation))
        self._told_left.pop(allocation.metadata.uid, None)
        await self._source.forget(allocation)
        self._written.pop(name, None)

    async def _tell(self, allocation: Allocation, reason: str, left: tuple[Lease, ...], said: Said) -> None:
        name = allocation.name
        now = self._clock.seconds()
        status = self._status(allocation, reason, left, said)
        before = allocation.status
        if status == before:
            return
        urgent = (
            condition(status, "Draining") != condition(before, "Draining")
            or status.want_blocks != before.want_blocks
            or status.relinquished != before.relinquished
        )
        due = self._written.get(name, -_STATUS_APART) + _STATUS_APART
        if not urgent and now < due:
            asyncio.get_running_loop().call_later(due - now, self._wake.set)
            return
        self._written[name] = now
        if await self._source.record(allocation, status=status):
            self._log_conditions(allocation, status)
            await self._blocks.written(allocation, said)

    def _log_conditions(self, allocation: Allocation, status: AllocationStatus) -> None:
        """Have in the log what has become otherwise; how a drain goes is there already."""
        for told in status.conditions:
            before = condition(allocation.status, told.type)
            same = before is not None and (before.status, before.reason) == (told.status, told.reason)
            if told.type != "Draining" and not same:
                self._log.info(
                    "condition", allocation=allocation.name, type=told.type, status=told.status, reason=told.reason
                )

    def _status(self, allocation: Allocation, reason: str, left: tuple[Lease, ...], said: Said) -> AllocationStatus:
        network = allocation.spec.network
        now = Moment(self._clock.boot, self._clock.seconds())
        use = self._book.use(network, now)
        numbers = {prefix: of_block(use, prefix) for prefix in use.blocks}
        conflicts = self._conflicts()
        facts = Facts(
            node=self._node,
            plan=self._book.plan(network),
            available={prefix: each.available for prefix, each in numbers.items()},
            fault=self._fault(),
            draining=reason,
            left=left,
            conflicts=None if conflicts is None else tuple(each for each in conflicts if each.network == network),
            strays=self._book.strays(network),
        )
        return AllocationStatus(
            ledger_id=self._ledger_id,
            blocks=tuple(_block_use(prefix, each) for prefix, each in numbers.items()),
            want_blocks=said.want,
            relinquished=said.relinquished,
            conditions=conditions(allocation, facts, self._clock.wall()),
        )

    def _tell_drain(self, allocation: Allocation, reason: str, left: tuple[Lease, ...]) -> None:
        """Say that a drain has begun, and go on saying so each time when half of what was left has ended."""
        told = self._told_left.get(allocation.metadata.uid)
        if told is not None and (not left or 2 * len(left) > told):
            return
        self._told_left[allocation.metadata.uid] = len(left)
        if told is None and condition(allocation.status, "Draining") is not None:
            return  # it had begun before this agent was started
        what = Happened.DRAIN_STARTED if told is None else Happened.DRAIN_GOES_ON
        message = leases_left_in_words(reason, left)
        self._log.info("network drains", network=allocation.spec.network, allocation=allocation.name, waits=message)
        self._notify(what, message, this(allocation))


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
