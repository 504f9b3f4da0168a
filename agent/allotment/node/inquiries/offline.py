"""The same answers without an agent: from the ledger on disk, read and never written.

A lease book is made of the ledger's leases and the objects kept in it, and asked as the agent would ask its own. What
only a running agent can know (what it waits for, what is in flight) is missing, and said to be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment import __version__
from allotment.addressing.book import LeaseBook
from allotment.addressing.lease import Moment
from allotment.ledger.reader import LedgerReader
from allotment.node.inquiries.inquiry import Inquiry
from allotment.node.inquiries.kept import count_kept
from allotment.node.inquiries.ledger_look import closed_ledger
from allotment.node.inquiries.reports import SourceReport, StatusReport, time_of
from allotment.node.offers import closed_blocks
from allotment.node.plans import network_plans
from allotment.node.view import View
from allotment.node.view_cache import kept_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allotment.ledger.history import HistoryRow, RowsQuery
    from allotment.node.settings import Settings
    from allotment.observe.clock import Clock

__all__ = ["Offline"]


class Offline:
    """What the ledger in a state folder says, at the moment this was made; a context manager."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Read it.

        Raises:
            LedgerUnavailable, LedgerDamaged, LedgerTooNew: it can't be read; the message says why.
        """
        self._settings = settings
        self._clock = clock
        self._reader = LedgerReader(settings.state_dir)
        try:
            content = self._reader.content()
            self.ledger_id = content.ledger_id
            self.state = content.book
            self.view = kept_view(content.objects) or View()
            now = Moment(clock.boot, clock.seconds())
            book = LeaseBook(settings.node)
            book.load(content.book.leases, content.book.rests, sequence=content.book.sequence, now=now)
            self.plans = network_plans(self.view, settings.node, closed_blocks(content.objects))
            book.apply(self.plans, now)
        except BaseException:
            self._reader.close()
            raise
        self.inquiry = Inquiry(book, self, lambda: self.view, clock)

    def close(self) -> None:
        """Give the ledger back."""
        self._reader.close()

    async def history(self, query: RowsQuery) -> Sequence[HistoryRow]:
        """Ended leases, as `Ledger.history` gives them."""
        return self._reader.history(query)

    def problems(self) -> list[str]:
        """All that a thorough look finds wrong with the file; empty when it says what was written."""
        return self._reader.problems()

    def status(self, down: str) -> StatusReport:
        """How the node was left; `down` says why the agent doesn't answer."""
        return StatusReport(
            node=self._settings.node,
            version=__version__,
            running=False,
            ledger=closed_ledger(self._settings.state_dir, self.ledger_id),
            source=SourceReport(kind="ledger", place=str(self._settings.state_dir), synced=False),
            spool=count_kept(self._settings.spool_dir),
            networks=self.inquiry.networks(),
            leases=len(self.state.leases),
            resting=sum(rest.last.value - rest.first.value + 1 for rest in self.state.rests),
            asked=time_of(self._clock.wall()),
            down=down,
        )
