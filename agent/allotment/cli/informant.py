"""Whom the commands ask: the agent, and where it is down, the ledger it left."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final, Self, TypeVar

from allotment.addressing.errors import AllotmentError, TryAgain
from allotment.cli.times import local
from allotment.cni.client import Client
from allotment.node.inquiries.ledger_look import closed_ledger, last_write
from allotment.node.inquiries.reports import (
    ExplainQuery,
    ExplainReport,
    GcQuery,
    GcReport,
    HistoryQuery,
    HistoryReport,
    LeaseReport,
    LeasesQuery,
    LeasesReport,
    OrphansQuery,
    OrphansReport,
    SourceReport,
    SpoolReport,
    StatusQuery,
    StatusReport,
    UtilizationQuery,
    UtilizationReport,
    decode_answer,
    encode,
)
from allotment.node.settings import add_arguments, load
from allotment.observe.clock import SystemClock, read_boot_id

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    import msgspec

    from allotment.node.inquiries.offline import Offline
    from allotment.node.settings import Settings
    from allotment.observe.clock import Clock

__all__ = ["PLACES", "Informant", "add_places", "informant"]

AnswerT = TypeVar("AnswerT", bound="msgspec.Struct")

PLACES: Final = ("socket", "state_dir", "node", "config")
"""The settings that say where agent and ledger are."""
_LISTINGS: Final = 3


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where agent and ledger are."""
    add_arguments(parser, PLACES)


def informant(arguments: argparse.Namespace) -> Informant:
    """The informant for a command's flags.

    Raises:
        ConfigError: a setting is malformed.
    """
    settings = load(arguments)
    return Informant(settings, SystemClock(read_boot_id(settings.boot_id_file)))


class Informant:
    """Asks the agent first. `down` says why it couldn't be asked, once that is known; empty while it answers.

    `note` is called once with a sentence for the person when the ledger is asked instead.
    """

    def __init__(self, settings: Settings, clock: Clock, note: Callable[[str], None] | None = None) -> None:
        self.settings = settings
        self.clock = clock
        self.down = ""
        self._client = Client(settings.socket)
        self._note = note or (lambda text: print(f"allotment: {text}", file=sys.stderr))
        self._offline: Offline | None = None

    # -- questions

    def status(self) -> StatusReport:
        """How the agent is; with the agent down, what it left. Never raises for what can be told instead."""
        try:
            return self.ask("status", StatusQuery(), StatusReport)
        except TryAgain as error:
            self.down = error.message
        try:
            return self._ledger(note=False).status(self.down)
        except AllotmentError as error:
            folder = self.settings.state_dir
            return StatusReport(
                node=self.settings.node,
                version="",
                running=False,
                ledger=closed_ledger(folder, "", reason=error.message),
                source=SourceReport(kind="ledger", place=str(folder), synced=False),
                spool=SpoolReport(str(self.settings.spool_dir)),
                down=self.down,
            )

    def leases(self, query: LeasesQuery) -> tuple[LeaseReport, ...]:
        """The leases that fit, by network and address as the agent had them at one moment, in no order.

        Raises:
            AllotmentError: neither agent nor ledger can be asked, or the question is malformed.
        """
        try:
            return self.agents_leases(query)
        except TryAgain as error:
            from allotment.node.inquiries.describe import lease_report  # noqa: PLC0415  # loaded with the ledger alone

            return tuple(map(lease_report, self._instead(error).inquiry.leases(query)))

    def agents_leases(self, query: LeasesQuery) -> tuple[LeaseReport, ...]:
        """The same from the agent alone.

        Raises:
            TryAgain: the agent can't be asked, or forgot the listing several times.
        """
        for _ in range(_LISTINGS):
            found: list[LeaseReport] = []
            page = self.ask("leases", query, LeasesReport)
            found += page.leases
            while page.more and not page.expired:
                page = self.ask("leases", LeasesQuery(more=page.more), LeasesReport)
                found += page.leases
            if not page.expired:
                return tuple(found)
        raise TryAgain("the agent forgot the listing before it was read whole; try again, or narrow it down")

    def explain(self, subject: str) -> ExplainReport:
        """All that is known of an address, a pod or a container. Raises as `leases` does."""
        try:
            return self.ask("explain", ExplainQuery(subject), ExplainReport)
        except TryAgain as error:
            return asyncio.run(self._instead(error).inquiry.explain(subject))

    def history(self, query: HistoryQuery) -> HistoryReport:
        """Leases that ended, and those that are held. Raises as `leases` does."""
        try:
            return self.ask("history", query, HistoryReport)
        except TryAgain as error:
            return asyncio.run(self._instead(error).inquiry.history(query))

    def utilization(self, query: UtilizationQuery) -> UtilizationReport:
        """How full networks and blocks are. Raises as `leases` does."""
        try:
            return self.ask("utilization", query, UtilizationReport)
        except TryAgain as error:
            return self._instead(error).inquiry.utilization(query)

    def gc(self, query: GcQuery) -> GcReport:
        """Have the agent free leases.

        Raises:
            TryAgain: the agent is down, or can't write it down now. Nothing was freed by this question.
        """
        return self.ask("gc", query, GcReport)

    def orphans(self, query: OrphansQuery) -> OrphansReport:
        """Have the agent look for leases without an owner.

        Raises:
            TryAgain: the agent is down, or can't write down now what is to be freed.
        """
        return self.ask("orphans", query, OrphansReport)

    def ask(self, name: str, question: msgspec.Struct, kind: type[AnswerT]) -> AnswerT:
        """Ask the agent one question.

        Raises:
            TryAgain: it can't be asked.
            AllotmentError: what it answers.
        """
        return decode_answer(self._client.query(name, encode(question)), kind)

    # -- the ledger instead

    def close(self) -> None:
        """Give the ledger back, if it was read."""
        if self._offline is not None:
            self._offline.close()
            self._offline = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _instead(self, error: TryAgain) -> Offline:
        self.down = error.message
        try:
            return self._ledger(note=True)
        except AllotmentError as unreadable:
            raise TryAgain(error.message, f"Nor can it be told from the ledger: {unreadable.message}") from unreadable

    def _ledger(self, *, note: bool) -> Offline:
        if self._offline is None:
            from allotment.node.inquiries.offline import Offline  # noqa: PLC0415  # SQLite and the book: only with the agent down

            self._offline = Offline(self.settings, self.clock)
            if note:
                written = last_write(self.settings.state_dir)
                when = f", last written {local(written)}" if written is not None else ""
                self._note(f"{self.down}\nallotment: this is from its ledger in {self.settings.state_dir}{when}")
        return self._offline
