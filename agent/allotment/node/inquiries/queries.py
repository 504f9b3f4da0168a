"""`Queries`: what the running agent answers to the CLI, over the same socket as the CNI.

All but `gc` and `orphans` only look. Answers come from memory, and the history from the ledger's file; nothing here
can make an ADD wait for longer than it takes to encode one answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from allotment import __version__
from allotment.addressing.address import parse_address
from allotment.addressing.errors import ConfigError
from allotment.addressing.lease import Cause
from allotment.cni.frames import LIMIT
from allotment.node.inquiries.describe import lease_report, problem_reports
from allotment.node.inquiries.inquiry import Inquiry
from allotment.node.inquiries.kept import count_kept
from allotment.node.inquiries.ledger_look import last_write
from allotment.node.inquiries.listings import Listings
from allotment.node.inquiries.reports import (
    ExplainQuery,
    GcItem,
    GcKept,
    GcQuery,
    GcReport,
    HistoryQuery,
    LeasesQuery,
    LeasesReport,
    LedgerReport,
    OrphansReport,
    SourceReport,
    StatusQuery,
    StatusReport,
    UtilizationQuery,
    decode_question,
    encode,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from allotment.addressing.book import LeaseBook
    from allotment.addressing.lease import Lease
    from allotment.ledger.ledger import Ledger
    from allotment.node.attaching.attachments import Attachments
    from allotment.node.orphans.search import OrphanSearch
    from allotment.node.settings import Settings
    from allotment.node.spool import Spool
    from allotment.node.view import View
    from allotment.observe.clock import Clock

__all__ = ["ROOM", "Queries"]

ROOM = LIMIT - (LIMIT >> 2)
"""Bytes of leases in one answer; the longest lease there can be still fits behind them in a frame."""
_MOST_FREED = 5000


class Queries:
    """The questions that this agent can be asked. `place` is where its source is, for a person."""

    def __init__(
        self,
        *,
        book: LeaseBook,
        ledger: Ledger,
        view: Callable[[], View],
        attachments: Attachments,
        spool: Spool,
        settings: Settings,
        place: str,
        clock: Clock,
        not_ready: Callable[[], str],
        orphans: OrphanSearch | None = None,
        in_flight: Callable[[], int] = lambda: 0,
        role: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._book = book
        self._ledger = ledger
        self._view = view
        self._attachments = attachments
        self._spool = spool
        self._settings = settings
        self._place = place
        self._clock = clock
        self._not_ready = not_ready
        self._orphans = orphans
        self._in_flight = in_flight
        self._started = (clock.wall(), clock.seconds())
        self._inquiry = Inquiry(book, ledger, view, clock, role=role)
        self._listings: Listings[Lease] = Listings(clock, ROOM, lambda lease: len(encode(lease_report(lease))) + 1)

    def table(self) -> Mapping[str, Callable[[bytes], Awaitable[bytes]]]:
        """Each question by its name; arguments and answers are the JSON of `allotment.node.inquiries.reports`."""
        return {
            "status": self._status,
            "leases": self._leases,
            "explain": self._explain,
            "history": self._history,
            "utilization": self._utilization,
            "gc": self._gc,
            "orphans": self._search,
        }

    def count_in_flight(self, count: Callable[[], int]) -> None:
        """Have `count` say how many CNI calls are being worked on.

        The server, which knows, is made after the handler that answers for it.
        """
        self._in_flight = count

    # -- looking

    def _source_report(self) -> SourceReport:
        view = self._view()
        return SourceReport(
            kind="manifests" if self._settings.standalone else "cluster",
            place=self._place,
            synced=view.synced,
            doubted=view.doubted,
            out_of_contact=None if view.lost_contact is None else self._clock.seconds() - view.lost_contact,
            problems=problem_reports(view.problems),
            warnings=problem_reports(view.warnings),
        )

    async def _status(self, arguments: bytes) -> bytes:
        decode_question(arguments, StatusQuery)
        networks = self._inquiry.networks()
        state = self._book.snapshot()
        wall, seconds = self._started
        report = StatusReport(
            node=self._settings.node,
            version=__version__,
            running=True,
            ledger=self._ledger_report(),
            source=self._source_report(),
            spool=count_kept(self._settings.spool_dir),
            networks=networks,
            started=time_of(wall),
            uptime=self._clock.seconds() - seconds,
            not_serving=self._not_ready(),
            leases=len(state.leases),
            resting=sum(rest.last.value - rest.first.value + 1 for rest in state.rests),
            in_flight=self._in_flight(),
            asked=time_of(self._clock.wall()),
        )
        return encode(report)

    def _ledger_report(self) -> LedgerReport:
        health = self._ledger.health()
        folder = self._settings.state_dir
        return LedgerReport(
            state=health.state.value,
            ledger_id=self._ledger.ledger_id,
            folder=str(folder),
            size=health.database_bytes + health.wal_bytes,
            free=health.free_bytes,
            last_write=last_write(folder),
            reason=health.reason,
            last_error=health.last_error,
        )

    async def _leases(self, arguments: bytes) -> bytes:
        query = decode_question(arguments, LeasesQuery)
        if query.more:
            found = self._listings.go_on(query.more)
            if found is None:
                return encode(LeasesReport(expired=True))
        else:
            found = self._listings.begin(self._inquiry.leases(query))
        leases, more = found
        return encode(LeasesReport(tuple(map(lease_report, leases)), more))

    async def _explain(self, arguments: bytes) -> bytes:
        return encode(await self._inquiry.explain(decode_question(arguments, ExplainQuery).subject))

    async def _history(self, arguments: bytes) -> bytes:
        report = await self._inquiry.history(decode_question(arguments, HistoryQuery))
        answer = encode(report)
        while len(answer) > ROOM and report.entries:  # names can be long; what doesn't fit is said to be cut off
            report = replace(report, entries=report.entries[: len(report.entries) // 2], cut=True)
            answer = encode(report)
        return answer

    async def _utilization(self, arguments: bytes) -> bytes:
        return encode(self._inquiry.utilization(decode_question(arguments, UtilizationQuery)))

    # -- freeing, on an operator's word

    async def _gc(self, arguments: bytes) -> bytes:
        query = decode_question(arguments, GcQuery)
        if len(query.items) > _MOST_FREED:
            raise ConfigError(f"at most {_MOST_FREED} leases are freed by one question; ask several times")
        meant: list[Lease] = []
        kept: list[GcKept] = []
        for item in query.items:
            lease, why = self._meant(item)
            if lease is not None:
                meant.append(lease)
            else:
                kept.append(GcKept(item.network, item.address, why))
        freed = await self._attachments.remove(meant, Cause.OPERATOR, query.detail)
        done = {lease.sequence for lease in freed}
        kept += [
            GcKept(lease.owner.network, str(lease.address), "a request for it is being worked on; look again")
            for lease in meant
            if lease.sequence not in done
        ]
        return encode(GcReport(tuple(map(lease_report, freed)), tuple(kept)))

    async def _search(self, arguments: bytes) -> bytes:
        if self._orphans is None:
            return encode(OrphansReport(searches=False))
        return await self._orphans.answer(arguments)

    def _meant(self, item: GcItem) -> tuple[Lease | None, str]:
        """The very lease that is meant (I7), or why there is none."""
        lease = self._book.at(item.network, parse_address(item.address))
        if lease is None:
            return None, "it is free already"
        if lease.sequence != item.sequence:
            return None, "it has been given to another owner since"
        return lease, ""
