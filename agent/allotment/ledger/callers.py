"""The way from the writer's thread to the event loop: answers to callers, questions to memory, news to the observer."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from allotment.addressing.errors import AllotmentError, InternalError, LedgerUnavailable
from allotment.ledger.failures import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from allotment.ledger.changes import Write
    from allotment.ledger.health import LedgerObserver, LedgerState
    from allotment.ledger.state import Content

__all__ = ["Callers", "Request"]


@dataclass(slots=True, eq=False)
class Request:
    """What one caller wants written, all or none.

    `then` hears how it went before the future does, and also where nobody waits for the future any more.
    """

    writes: tuple[Write, ...]
    future: asyncio.Future[None]
    then: Callable[[AllotmentError | None], None] | None = None

    def settle(self, error: AllotmentError | None) -> None:
        """This is how it went; to be called once."""
        if self.then is not None:
            self.then(error)
        if self.future.done():  # cancelled by who waited; the disk has it anyway
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


_Outcome: TypeAlias = tuple[Request, AllotmentError | None]


class Callers:
    """Calls things on the event loop, for a thread. What is called when the loop has ended is not called.

    `content` returns what must be on disk: exactly what was acknowledged. `written` is called with each request that
    is on disk, before its future is resolved.
    """

    def __init__(
        self, *, content: Callable[[], Content], written: Callable[[Request], None], observer: LedgerObserver
    ) -> None:
        self._content = content
        self._written = written
        self._observer = observer
        self.expected = 0
        """How many requests the thread has that the loop has not heard of yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchers: list[asyncio.Future[None]] = []
        self._is_over = False
        self._died: BaseException | None = None

    # -- on the event loop ----------------------------------------------------------------------------------------

    def bind(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Work with this loop from now on; False when that was so already.

        Raises:
            InternalError: it is another loop than before.
        """
        if self._loop is None:
            self._loop = loop
            return True
        if loop is not self._loop:
            raise InternalError("the ledger belongs to another event loop")
        return False

    def expect(self, requests: Sequence[Request]) -> None:
        """The thread has these now, and will answer or refuse each of them."""
        self.expected += len(requests)

    def answer_here(self, requests: Sequence[Request], errors: Sequence[Exception | None], seconds: float) -> None:
        """As `answer`, for who is on the loop already."""
        self._resolve([(r, _told(e)) for r, e in zip(requests, errors, strict=True)], seconds)

    def watch(self) -> asyncio.Future[None]:
        """A future that is done when the writer has ended, or fails with the fault that ended it."""
        watcher = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        if self._is_over:
            self._tell_watchers(self._died)
        return watcher

    # -- from the thread ------------------------------------------------------------------------------------------

    def answer(self, requests: Sequence[Request], errors: Sequence[Exception | None], seconds: float) -> None:
        """These were in one transaction that took so long; all but those with an error are on disk."""
        self._post(self._hear, [(r, _told(e)) for r, e in zip(requests, errors, strict=True)], seconds)

    def refuse(self, requests: Iterable[Request], reason: str) -> None:
        """Nothing of these is written."""
        outcomes = [(request, LedgerUnavailable(reason)) for request in requests]
        if outcomes:
            self._post(self._hear, outcomes, None)

    def refused(self, kind: str) -> None:
        """Tell the observer that the disk refused."""
        self._post(self._observer.refused, kind)

    def changed(self, state: LedgerState, reason: str) -> None:
        """Tell the observer of another state."""
        self._post(self._observer.changed, state, reason)

    def ended(self, died: BaseException | None) -> None:
        """Tell those who watch."""
        self._post(self._tell_watchers, died)

    def ask_memory(self) -> Content:
        """What was acknowledged, including all that `answer` was called for so far.

        Raises:
            InternalError: the loop has ended, or what is asked there failed.
        """
        answered = threading.Event()
        answer: list[Content | BaseException] = []

        def ask() -> None:
            try:
                answer.append(self._content())
            except BaseException as error:  # noqa: BLE001  # raised again in the thread that asks
                answer.append(error)
            answered.set()

        # Where `then` makes in memory what is on disk, that is done already. Who awaits the future (`Ledger.commit`)
        # does it one round after its result: in the loop's queue before what is asked, which takes two steps later.
        loop = self._loop
        if loop is None or not self._post(loop.call_soon, ask):
            raise InternalError("the event loop has ended")
        while not answered.wait(1.0):
            if loop.is_closed():
                raise InternalError("the event loop has ended")
        if isinstance(answer[0], BaseException):
            raise InternalError(f"memory could not say what was acknowledged: {answer[0]!r}") from answer[0]
        return answer[0]

    # -- inside ---------------------------------------------------------------------------------------------------

    def _post(self, callback: Callable[..., object], *arguments: object) -> bool:
        if self._loop is None:
            return False
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # closed
            return False
        return True

    def _hear(self, outcomes: list[_Outcome], seconds: float | None) -> None:
        self.expected -= len(outcomes)
        self._resolve(outcomes, seconds)

    def _resolve(self, outcomes: list[_Outcome], seconds: float | None) -> None:
        for request, error in outcomes:
            if error is None:
                self._written(request)
            request.settle(error)
        if seconds is not None:
            self._observe(seconds, len(outcomes))

    def _observe(self, seconds: float, requests: int) -> None:
        """Tell the observer; what goes wrong there is the loop's to report, and nothing to the ledger."""
        try:
            self._observer.committed(seconds=seconds, requests=requests)
        except Exception as error:  # noqa: BLE001  # reported
            if self._loop is not None:
                self._loop.call_exception_handler({"message": "the ledger's observer failed", "exception": error})

    def _tell_watchers(self, died: BaseException | None) -> None:
        self._is_over, self._died = True, died
        for watcher in self._watchers:
            if watcher.done():
                continue
            if died is None:
                watcher.set_result(None)
            else:
                watcher.set_exception(InternalError(f"the ledger's writer has ended: {died!r}"))


def _told(error: Exception | None) -> AllotmentError | None:
    """What a caller is told whose change alone could not be written."""
    if error is None or isinstance(error, AllotmentError):
        return error
    told = InternalError(f"the ledger refuses a change: {describe(error)}")
    told.__cause__ = error
    return told
