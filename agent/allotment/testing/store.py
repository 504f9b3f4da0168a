"""A ledger in memory, with the faults of a disk at the turn of a switch."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from allotment.addressing.book import BookState
from allotment.addressing.errors import InternalError, LedgerUnavailable
from allotment.addressing.lease import Forgotten, Granted, Lease, Released, Rest, Rested, Supposed
from allotment.ledger.callers import Request
from allotment.ledger.changes import DeleteObject, PutObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from allotment.addressing.address import Address
    from allotment.addressing.errors import AllotmentError
    from allotment.ledger.changes import Write

__all__ = ["MemoryStore"]


class MemoryStore:
    """What `allotment.ledger.Ledger` is to the attachments; `state` is what a crash would leave.

    Switches: `failing` (a reason) refuses everything; `stalled` keeps submissions until `finish` lets some through or
    `drop` loses them, as a crash does.
    """

    def __init__(self, state: BookState | None = None) -> None:
        self.failing = ""
        self.stalled = False
        self._waiting: deque[Request] = deque()
        state = state or BookState()
        self._leases: dict[tuple[str, Address], Lease] = {
            (lease.owner.network, lease.address): lease for lease in state.leases
        }
        self._rests: list[Rest] = list(state.rests)
        self._sequence = state.sequence
        self._objects: dict[tuple[str, str], bytes] = {}

    @property
    def waiting(self) -> int:
        """Submissions that a stalled disk keeps."""
        return len(self._waiting)

    def state(self) -> BookState:
        """What is on disk now."""
        return BookState(tuple(self._leases.values()), tuple(self._rests), self._sequence)

    def submit(
        self, changes: Sequence[Write], then: Callable[[AllotmentError | None], None] | None = None
    ) -> asyncio.Future[None]:
        """Write `changes`, now or (stalled) later."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(Request(tuple(changes), future, then))
        if not self.stalled:
            self.finish()
        return future

    def objects(self) -> dict[tuple[str, str], bytes]:
        """The objects that are on disk."""
        return dict(self._objects)

    async def put_object(self, kind: str, name: str, body: bytes) -> None:
        """Keep an object."""
        await self.submit((PutObject(kind, name, body),))

    async def delete_object(self, kind: str, name: str) -> None:
        """Keep it no longer."""
        await self.submit((DeleteObject(kind, name),))

    async def change_objects(self, put: Mapping[tuple[str, str], bytes], gone: Iterable[tuple[str, str]]) -> None:
        """All of it or nothing."""
        puts = (PutObject(*key, body) for key, body in put.items())
        await self.submit((*puts, *(DeleteObject(*key) for key in gone)))

    def fault(self) -> str:
        """Why nothing can be granted now."""
        return self.failing

    async def confirm(self) -> None:
        """What was refused is not on this disk, but a failing one can't be asked."""
        if self.failing:
            raise LedgerUnavailable(self.failing)

    def finish(self, count: int | None = None) -> None:
        """Let the oldest `count` submissions (all, if None) reach the disk, or be refused by it."""
        for _ in range(len(self._waiting) if count is None else min(count, len(self._waiting))):
            request = self._waiting.popleft()
            if self.failing:
                request.settle(LedgerUnavailable(self.failing))
                continue
            for change in request.writes:
                self._apply(change)
            request.settle(None)

    def drop(self) -> None:
        """Lose what has not reached the disk; nobody is told, as nobody is there any more."""
        self._waiting.clear()

    def _apply(self, change: Write) -> None:
        match change:
            case Granted(lease):
                key = (lease.owner.network, lease.address)
                if key in self._leases:
                    raise InternalError(f"{lease.address} is on disk for {self._leases[key].owner} already (I1)")
                self._leases[key] = lease
                self._sequence = max(self._sequence, lease.sequence)
                self._leave_rest(lease)
            case Released(lease, at, wall):
                found = self._leases.pop((lease.owner.network, lease.address), None)
                if found is None or found.sequence != lease.sequence:
                    raise InternalError(f"the lease of {lease.address} to release is not the one on disk (I7)")
                self._rests.append(Rest(lease.owner.network, lease.block, lease.address, lease.address, at, wall))
            case Rested(before, after):
                self._rests = [rest for rest in self._rests if rest not in before]
                self._rests.append(after)
            case Supposed(rest):
                if rest not in self._rests:
                    self._rests.append(rest)
            case Forgotten(network, block):
                self._rests = [rest for rest in self._rests if (rest.network, rest.block) != (network, block)]
            case PutObject(kind, name, body):
                self._objects[kind, name] = body
            case DeleteObject(kind, name):
                self._objects.pop((kind, name), None)

    def _leave_rest(self, lease: Lease) -> None:
        kept: list[Rest] = []
        for rest in self._rests:
            if rest.network != lease.owner.network or not rest.first <= lease.address <= rest.last:
                kept.append(rest)
                continue
            if rest.first < lease.address:
                kept.append(_part(rest, rest.first, lease.address + -1))
            if lease.address < rest.last:
                kept.append(_part(rest, lease.address + 1, rest.last))
        self._rests = kept


def _part(rest: Rest, first: Address, last: Address) -> Rest:
    return Rest(rest.network, rest.block, first, last, rest.released, rest.wall)
