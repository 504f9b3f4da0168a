"""What has to be true before an address is given (I15), in order, and again whenever it turns out not to be.

The leases of an earlier boot have ended; the source has told what there is; a lost ledger's leases are made again.
Until then ADDs wait and are refused with the reason, which readiness and STATUS say too, and DELs are kept. Each step
is tried until it succeeds.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import AllotmentError, LedgerUnavailable
from allotment.addressing.lease import Cause, LeaseKind
from allotment.node.rebuilding.rebuilder import earlier_ledger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.book import LeaseBook
    from allotment.addressing.plan import NetworkPlan
    from allotment.node.attaching.attachments import Attachments
    from allotment.node.rebuilding.rebuilder import Rebuilder
    from allotment.node.start import Started
    from allotment.node.view import View
    from allotment.observe.clock import Clock
    from allotment.observe.systemd import Notifier

__all__ = ["Opening"]

_RETRY: Final = 2.0
_LATE: Final = "pods that ran before the ledger was lost are looked for in a network that is new here"


class Opening:
    """Lets the attachments serve once all is known. `place` is where objects come from, for people."""

    def __init__(
        self,
        started: Started,
        book: LeaseBook,
        attachments: Attachments,
        rebuilder: Rebuilder,
        clock: Clock,
        notifier: Notifier,
        log: FilteringBoundLogger,
        *,
        node: str,
        place: str,
        standalone: bool,
    ) -> None:
        self._started = started
        self._book = book
        self._attachments = attachments
        self._rebuilder = rebuilder
        self._clock = clock
        self._notifier = notifier
        self._log = log
        self._node = node
        self._place = place
        self._standalone = standalone
        self._opened: Callable[[], None] = lambda: None
        self._viewed = asyncio.Event()
        self._compared = False
        self._owed = asyncio.Event()  # something is to be rebuilt before anything is given
        self._reason = started.lost
        self._anew = False
        self._incomplete = False
        """Whether leases may be missing from the book while nothing is given."""
        if started.lost:
            self._anew = self._incomplete = True
            self._owed.set()
        self.waits = ""
        """Why nothing is given yet, for a person; empty once it is."""
        self._say("the agent is starting")  # before anything can ask: a lost lease is not taken for a released one

    def on_open(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever addresses are given from there on."""
        self._opened = callback

    def expect(self, plans: Iterable[NetworkPlan]) -> None:
        """These plans are about to be in force; to be called before the attachments have them.

        A network that pods ran in before the loss isn't served before they are found.
        """
        if not self.waits and self._rebuilder.can_place(plans):
            self._say(_LATE)
            self._owed.set()

    def seen(self, view: View) -> None:
        """A View is in force. The first that is read shows the Allocations as they were before this agent wrote."""
        first = not self._viewed.is_set()
        if view.synced or view.doubted:
            self._viewed.set()
        if view.synced and not view.doubted and not self._compared:
            self._compared = True
            # By itself, a host that stands alone makes Allocations that carry the finalizer from the start.
            untouched = first and bool(self._started.lost) and not self._standalone
            reason = earlier_ledger(view, self._started.ledger.ledger_id, untouched=untouched)
            if reason and not self._started.had_ledger:
                self.require(reason)

    def require(self, reason: str) -> None:
        """The ledger turns out not to be this node's only one: nothing is given before it is filled from what runs."""
        self._reason = reason
        self._anew = self._incomplete = True
        self._owed.set()
        if not self.waits:
            self._say(_rebuilding(reason))

    async def run(self) -> None:
        """Open, and from then on find what has to be found later; never returns."""
        await self._until_done("leases of an earlier boot wait to be released", self._end_earlier_boots)
        self._say(self._unread)
        await self._viewed.wait()
        await self._pay()
        self._notifier.ready(f"serving node {self._node}")
        self._log.info("serving", node=self._node, leases=sum(1 for _ in self._book.leases()))
        while True:
            await self._owed.wait()
            await self._pay()

    # -- inside ---------------------------------------------------------------------------------------------------

    @property
    def _unread(self) -> str:
        unread = f"{self._place} has not been read yet"
        lost = self._started.lost
        return f"{_rebuilding(lost)}: which blocks are this node's isn't known, since {unread}" if lost else unread

    async def _pay(self) -> None:
        """Rebuild what is owed, and serve."""
        while self._owed.is_set():
            self._owed.clear()
            anew, self._anew = self._anew, False
            what = _rebuilding(self._reason) if anew else _LATE
            await self._until_done(what, partial(self._rebuild, anew=anew))
        self._say("")

    async def _rebuild(self, *, anew: bool) -> None:
        if self._reason != self._started.lost and anew:
            self._started.lose(self._reason)
        await self._rebuilder.rebuild(anew=anew)

    async def _until_done(self, what: str, step: Callable[[], Awaitable[None]]) -> None:
        """Try a step until it succeeds, saying what is waited for."""
        self._say(what)
        while True:
            try:
                await step()
            except AllotmentError as error:
                self._say(f"{what}: {error.message}")
                self._log.error("start waits", what=what, error=error.message)
                await self._clock.sleep(_RETRY)
            else:
                return

    def _say(self, reason: str) -> None:
        self.waits = reason
        self._attachments.serve(reason, incomplete=bool(reason) and self._incomplete)
        if reason:
            self._notifier.status(reason)
        else:
            self._opened()

    async def _end_earlier_boots(self) -> None:
        """After a restart of the machine no sandbox of before exists: its leases end, one look is enough (I8)."""
        book, boot = self._book, self._clock.boot
        old = [lease for lease in book.leases() if lease.since.boot != boot and lease.owner.kind is LeaseKind.POD]
        released = await self._attachments.remove(old, Cause.BOOT, f"boot ID changed to {boot}")
        if released:
            self._log.info("released the leases of an earlier boot", leases=len(released))
        left = sum(book.at(lease.owner.network, lease.address) is lease for lease in old)
        if left:
            raise LedgerUnavailable(f"{left} leases of an earlier boot are just being worked on by requests")


def _rebuilding(reason: str) -> str:
    return f"the ledger is being rebuilt ({reason})"
