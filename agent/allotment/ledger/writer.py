"""The writer: group commit. What becomes of a full or failing disk is `Disk`'s.

All requests that wait are written in one transaction with one fdatasync; their futures are resolved by one callback
on the event loop. Nothing polls: the thread sleeps in its queue, with a timeout only while the disk is in trouble.

While the disk is quick, what one round of the loop brings is written in that round, without the thread: waking it and
being woken by it costs more than such a disk does (measured: 0.28 ms of an ADD's 1.07). `_hand` is held by whoever
writes. A disk that takes longer, many requests at once, and all trouble are the thread's, so the loop never stands
still for longer than a quick commit that turned slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from allotment.addressing.errors import InternalError, LedgerUnavailable
from allotment.ledger.callers import Callers, Request
from allotment.ledger.changes import gives
from allotment.ledger.checkpointer import Checkpointer
from allotment.ledger.failures import Trouble, describe, trouble_of
from allotment.ledger.health import LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from allotment.addressing.errors import AllotmentError
    from allotment.ledger.changes import Write
    from allotment.ledger.database import Database
    from allotment.ledger.disk import Disk
    from allotment.observe.clock import Clock

__all__ = ["Writer"]

_BATCH: Final = 512
_QUICK: Final = 0.002
"""Seconds that commits may take, on the moving average, for the loop to do them itself."""
_FEW: Final = 64
_PACE: Final = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class _Failed:
    """Somebody else than the writer met an error of the disk on this file."""

    database: Database
    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class _Unwritten:
    """The loop could not write these, and has rolled back."""

    requests: list[Request]
    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class _Fault:
    """A fault of ours, met on the loop while these were in hand; the thread ends with it, and tells everybody."""

    requests: list[Request]
    error: Exception


class _Stop:
    """The last item of the queue."""


_Item: TypeAlias = Request | _Failed | _Unwritten | _Fault | _Stop


class Writer:
    """Owns the thread that writes, and what waits for it."""

    def __init__(self, disk: Disk, callers: Callers, *, clock: Clock) -> None:
        self.last_commit = (0.0, 0)
        self.died: BaseException | None = None
        self.alone: Callable[[], bool] = lambda: False
        """Whether nobody else is about to submit: nothing is won by gathering then, and a round of the loop lost."""
        self._disk = disk
        self._callers = callers
        self._clock = clock
        self._gathered: list[Request] = []
        self._hand = threading.Lock()
        self._average = 0.0
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._closing = False
        self._in_hand: list[Request] = []
        self._checkpointer = Checkpointer(self.fail, disk.folder)

    # -- called on the event loop ---------------------------------------------------------------------------------

    def submit(
        self, writes: Sequence[Write], then: Callable[[AllotmentError | None], None] | None = None
    ) -> asyncio.Future[None]:
        """Have `writes` written; see `Ledger.submit`."""
        loop = self._started()
        future = loop.create_future()
        request = Request(tuple(writes), future, then)
        if self.died is not None:
            request.settle(InternalError(f"the ledger's writer has ended: {self.died!r}; restart the agent"))
        elif self._closing:
            request.settle(LedgerUnavailable("the ledger is closed: the agent is stopping"))
        elif self._disk.state is LedgerState.FAILED:
            request.settle(LedgerUnavailable(self._disk.reason))
        elif not writes:
            request.settle(None)
        else:
            self._gathered.append(request)
            if len(self._gathered) == 1:
                if self.alone():
                    self._write_gathered()
                else:
                    loop.call_soon(self._write_gathered)
        return future

    def _write_gathered(self) -> None:
        """Write what this round of the loop brought, here if that is quick, else have it written by the thread."""
        requests, self._gathered = self._gathered, []
        if not requests:
            return
        if self._is_quick(requests) and self._hand.acquire(blocking=False):
            try:
                if self._is_well():  # looked at again: the thread may have met trouble before it let go
                    self._write_here(requests)
                    return
            except Exception as error:  # noqa: BLE001  # raised again in the thread
                self._callers.expect(requests)
                self._queue.put(_Fault(requests, error))
                return
            finally:
                self._hand.release()
        self._callers.expect(requests)
        for request in requests:
            self._queue.put(request)
        if self._ended.is_set():
            self._refuse_rest()

    def _is_quick(self, requests: list[Request]) -> bool:
        """Whether the loop may write these itself.

        Not while the thread has requests that are not answered: theirs came first, and a rest that is coalesced and
        the grant of an address in it must reach the disk in the order they were decided in. Not while the log has
        grown long either, which only the thread sees to.
        """
        return (
            len(requests) <= _FEW
            and self._average < _QUICK
            and self._callers.expected == 0
            and self._queue.empty()
            and not self._checkpointer.is_behind
            and self._is_well()
        )

    def _is_well(self) -> bool:
        return self.died is None and self._disk.is_well

    def _write_here(self, requests: list[Request]) -> None:
        began = self._clock.seconds()
        try:
            results = self._disk.database.transact([request.writes for request in requests])
        except Exception as error:  # noqa: BLE001  # the thread tells them apart
            self._pace(began)
            self._callers.expect(requests)
            self._queue.put(_Unwritten(requests, error))
            return
        self._callers.answer_here(requests, results, self._committed(requests, began))

    def fail(self, database: Database, error: Exception) -> None:
        """Report, from any thread, an error of the disk that was met on `database`."""
        database.abandon()
        self._queue.put(_Failed(database, error))

    async def close(self) -> None:
        """Write what waits, then end the threads and close the file (a file that failed is left as it is)."""
        loop = self._started()
        self._closing = True
        self._write_gathered()
        self._queue.put(_Stop())
        await loop.run_in_executor(None, self._ended.wait)

    async def watch(self) -> None:
        """See `Ledger.watch`."""
        self._started()
        await self._callers.watch()

    def _started(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._callers.bind(loop):
            self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
            self._thread.start()
        return loop

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            going = True
            while going:
                items = self._take()
                with self._hand:
                    going = self._turn(items)
            self._end()
        except BaseException as error:  # noqa: BLE001  # a fault of ours: nobody may wait for this thread for ever
            self.died = error
            self._disk.database.abandon()
            self._callers.refuse(self._in_hand, f"the ledger's writer has ended: {error!r}")
            self._refuse_rest()
            self._callers.changed(LedgerState.FAILED, f"the ledger's writer has ended: {error!r}")
        finally:
            self._checkpointer.stop()
            self._ended.set()
            self._refuse_rest()  # what came in until a moment ago; what comes now sees that nobody will take it
            self._callers.ended(self.died)

    def _turn(self, items: list[_Item]) -> bool:
        """Do what is waiting, or what is due. False when told to stop."""
        requests = self._in_hand = []
        going = True
        for item in items:
            match item:
                case Request():
                    requests.append(item)
                case _Unwritten(unwritten, error):
                    self._not_written(unwritten, error, again=True)
                case _Failed(database, error):
                    if database is self._disk.database and self._disk.state is not LedgerState.FAILED:
                        self._disk.failed(error)
                case _Fault(unanswered, error):
                    requests += unanswered
                    raise error
                case _Stop():
                    going = False
        if self._disk.state is LedgerState.FAILED and self._disk.is_due:
            self._disk.replace()
        if requests:
            self._write(requests)
        if self._disk.state is LedgerState.FULL and self._disk.is_due:
            self._disk.try_ballast()
        return going

    def _take(self) -> list[_Item]:
        """Everything that waits, up to a batch; sleeps until there is something, or something is due."""
        try:
            items = [self._queue.get(timeout=self._disk.pause)]
        except queue.Empty:
            self._disk.make_due()
            return []
        with contextlib.suppress(queue.Empty):
            while len(items) < _BATCH and not isinstance(items[-1], _Stop):
                items.append(self._queue.get_nowait())
        return items

    def _write(self, requests: list[Request]) -> None:
        disk = self._disk
        if disk.state is LedgerState.FULL and any(gives(request.writes) for request in requests):
            disk.try_ballast()
        if disk.state is LedgerState.FAILED:
            self._callers.refuse(requests, disk.reason)
        elif disk.state is LedgerState.FULL:
            self._write_what_gives_back(requests, disk.reason)
        else:
            self._attempt(requests)

    def _write_what_gives_back(self, requests: list[Request], reason: str, *, again: bool = True) -> None:
        self._callers.refuse([request for request in requests if gives(request.writes)], reason)
        self._attempt([request for request in requests if not gives(request.writes)], again=again)

    def _attempt(self, requests: list[Request], *, again: bool = True) -> None:
        """Write these; `again` says whether another attempt may follow once room was made on a full disk."""
        if not requests:
            return
        began = self._clock.seconds()
        try:
            results = self._disk.database.transact([request.writes for request in requests])
        except Exception as error:  # noqa: BLE001  # told apart by code, below
            self._not_written(requests, error, again=again)
            return
        self._callers.answer(requests, results, self._committed(requests, began))
        if self._checkpointer.is_behind:
            self._help_checkpointer()

    def _committed(self, requests: list[Request], began: float) -> float:
        """These are on disk; how long it took."""
        seconds = self._pace(began)
        self.last_commit = (seconds, len(requests))
        self._checkpointer.wake(self._disk.database, sum(len(request.writes) for request in requests))
        return seconds

    def _pace(self, began: float) -> float:
        """How long the disk took since then; it counts for who writes next."""
        seconds = self._clock.seconds() - began
        self._average += _PACE * (seconds - self._average)
        return seconds

    def _help_checkpointer(self) -> None:
        try:
            self._checkpointer.help(self._disk.database)
        except Exception as error:  # noqa: BLE001  # told apart by code; all but a failing disk can wait
            if trouble_of(error, self._disk.folder) is Trouble.DISK:
                self._disk.failed(error)

    def _not_written(self, requests: list[Request], error: Exception, *, again: bool) -> None:
        match self._disk.refused(error):
            case Trouble.FULL:
                reason = self._disk.filled()
                if again:
                    self._help_checkpointer()  # so that the log starts over in the room it has
                if self._disk.database.abandoned or not again:
                    self._callers.refuse(requests, reason)
                else:
                    self._write_what_gives_back(requests, reason, again=False)
            case Trouble.BUSY | Trouble.CALLER:
                self._callers.refuse(
                    requests, f"the ledger {self._disk.database_file} can't be written now: {describe(error)}"
                )
            case Trouble.DISK:
                # What was in flight is refused before memory is asked what was acknowledged, and not before nobody
                # trusts the file any more.
                self._disk.database.abandon()
                self._callers.refuse(requests, self._disk.failed_reason(error))
                self._disk.failed(error)

    # -- the end --------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Leave a file that holds all that was acknowledged; when the disk fails now, in a new one."""
        self._checkpointer.stop()
        self._disk.leave()
        self._refuse_rest()

    def _refuse_rest(self) -> None:
        rest: list[Request] = []
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if isinstance(item, Request):
                    rest.append(item)
                elif isinstance(item, _Unwritten | _Fault):
                    rest += item.requests
        self._callers.refuse(rest, "the agent is stopping")
