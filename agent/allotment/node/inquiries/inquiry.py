"""`Inquiry`: answers about leases, addresses and networks, from a lease book and a history.

The agent asks its own book; with the agent down the CLI makes a book from the ledger and asks that. What is said is
the same, because it is said here.
"""

from __future__ import annotations

import heapq
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from allotment.addressing.address import Family, parse_address
from allotment.addressing.errors import AllotmentError, ConfigError
from allotment.addressing.lease import Moment
from allotment.addressing.state import StateKind
from allotment.addressing.utilization import Utilization, of_block, of_network
from allotment.ledger.history import RowsQuery
from allotment.node.inquiries.describe import (
    SHORTEST_PREFIX,
    claim_of,
    current_entry,
    held_back,
    lease_report,
    means_container,
    network_report,
    past_entry,
    phase_of,
    split_pod,
)
from allotment.node.inquiries.reports import (
    AddressFacts,
    BlockUseReport,
    ExplainReport,
    HistoryEntry,
    HistoryQuery,
    HistoryReport,
    LeasesQuery,
    NetworkReport,
    Subject,
    UseReport,
    UtilizationQuery,
    UtilizationReport,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import datetime

    from allotment.addressing.address import Address
    from allotment.addressing.book import LeaseBook
    from allotment.addressing.lease import Lease
    from allotment.ledger.history import HistoryRow
    from allotment.node.view import View
    from allotment.observe.clock import Clock

__all__ = ["MOST_HISTORY", "Inquiry", "PastLeases", "Wanted"]

MOST_HISTORY = 1000
"""Entries that one answer holds at most; it has to fit in a frame."""
_PAST_SHOWN = 20
_MOST_FACTS = 64
_SCANNED = 20_000


class PastLeases(Protocol):
    """Where leases that ended are looked up: the ledger, open or only read. The newest first."""

    async def history(self, query: RowsQuery) -> Sequence[HistoryRow]:
        """The rows that fit."""
        ...


class Wanted:
    """What a question wants, parsed: whether a lease fits.

    Raises:
        ConfigError: a part of the question is malformed.
    """

    def __init__(self, *, network: str = "", pod: str = "", container: str = "", address: str = "") -> None:
        self.network = network
        self.pod = split_pod(pod) if pod else None
        self.container = container
        self.address = parse_address(address) if address else None

    @property
    def workload(self) -> str | None:
        """The pod, as leases are indexed by it."""
        return ".".join(self.pod) if self.pod else None

    def fits(self, lease: Lease) -> bool:
        """Whether the lease is one of those that are wanted."""
        owner = lease.owner
        return (
            (not self.network or owner.network == self.network)
            and (self.pod is None or (owner.pod_namespace, owner.pod_name) == self.pod)
            and (not self.container or means_container(self.container, owner))
            and (self.address is None or lease.address == self.address)
        )


class Inquiry:
    """Answers from `book` and `past`. Nothing is changed, and nothing waits but for the history.

    `role` says what a Claim (`namespace/name`) is to the address of its virtual machine, where that is known.
    """

    def __init__(
        self,
        book: LeaseBook,
        past: PastLeases,
        view: Callable[[], View],
        clock: Clock,
        *,
        role: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._role = role
        self._book = book
        self._past = past
        self._view = view
        self._clock = clock

    def now(self) -> Moment:
        """The clock's moment."""
        return Moment(self._clock.boot, self._clock.seconds())

    # -- leases and networks

    def leases(self, query: LeasesQuery) -> tuple[Lease, ...]:
        """The leases that fit, in no order.

        Raises:
            ConfigError: the question is malformed.
        """
        wanted = Wanted(network=query.network, pod=query.pod, container=query.container, address=query.address)
        everything = self._book.leases(query.network or None)
        if not (query.pod or query.container or query.address):
            return tuple(everything)
        return tuple(lease for lease in everything if wanted.fits(lease))

    def networks(self) -> tuple[NetworkReport, ...]:
        """Every network that this node has heard of or has leases of, by name."""
        by_network: dict[str, list[Lease]] = {name: [] for name in self._names()}
        for lease in self._book.leases():
            by_network.setdefault(lease.owner.network, []).append(lease)
        return tuple(network_report(name, self._book.plan(name), leases) for name, leases in sorted(by_network.items()))

    def _names(self) -> list[str]:
        view = self._view()
        return sorted({*view.networks, *view.allocations})

    # -- history

    async def history(self, query: HistoryQuery) -> HistoryReport:
        """Leases that ended and leases that are held, the newest event first.

        Raises:
            ConfigError: the question is malformed.
        """
        if not 1 <= query.limit <= MOST_HISTORY:
            raise ConfigError(f"--limit: {query.limit} is not from 1 to {MOST_HISTORY}")
        wanted = Wanted(network=query.network, pod=query.pod, container=query.container, address=query.address)
        more = query.limit + 1
        at = None if query.at is None else query.at.timestamp()
        past, unknown = await self._ended(wanted, more, at)
        held = (
            lease
            for lease in self._book.leases(query.network or None)
            if wanted.fits(lease) and (at is None or lease.wall <= at)
        )
        current = heapq.nlargest(more, held, key=lambda lease: (lease.wall, lease.sequence))
        entries = [*map(current_entry, current), *past]
        entries.sort(key=_event, reverse=True)
        return HistoryReport(
            entries=tuple(entries[: query.limit]), cut=len(entries) > query.limit, past_unknown=unknown
        )

    # -- utilization

    def utilization(self, query: UtilizationQuery) -> UtilizationReport:
        """The numbers of every network, or of one; empty when nobody knows it."""
        now = self.now()
        found: list[UseReport] = []
        for name in self._names():
            plan = self._book.plan(name)
            if plan is None or (query.network and name != query.network):
                continue
            use = self._book.use(name, now)
            phase, _ = phase_of(name, plan)
            for family in Family:
                if not any(prefix.family is family for prefix in (*use.subnets, *use.blocks)):
                    continue
                blocks = tuple(
                    BlockUseReport(block=str(block.prefix), gives=block.gives, **_texts(of_block(use, block.prefix)))
                    for block in plan.blocks
                    if block.prefix.family is family and not plan.claimed
                )
                found.append(
                    UseReport(
                        network=name, family=family.value, phase=phase, blocks=blocks, **_texts(of_network(use, family))
                    )
                )
        return UtilizationReport(tuple(found))

    # -- explain

    async def explain(self, subject: str) -> ExplainReport:
        """All that is known of an address, a pod or a container.

        Raises:
            ConfigError: it can't be any of them.
        """
        address = _as_address(subject)
        if address is not None:
            facts = tuple([facts async for facts in self._of_address(address)])
            return await self._report(str(address), Subject.ADDRESS, facts, Wanted(address=subject))
        if "/" in subject:
            kind, wanted = Subject.POD, Wanted(pod=subject)
        else:
            kind, wanted = Subject.CONTAINER, Wanted(container=subject)
        leases = [lease for lease in self._book.leases() if wanted.fits(lease)]
        if kind is Subject.CONTAINER and len(subject) < SHORTEST_PREFIX and not leases:
            raise ConfigError(
                f"{subject!r} is neither an address nor NAMESPACE/POD, and too short for a container ID: "
                f"write {SHORTEST_PREFIX} of its characters or more"
            )
        leases.sort(key=lambda lease: (lease.owner.network, lease.owner.interface, lease.address))
        facts = tuple([await self._in_network(lease.address, lease.owner.network) for lease in leases[:_MOST_FACTS]])
        return await self._report(subject, kind, facts, wanted)

    async def _report(
        self, subject: str, kind: Subject, facts: tuple[AddressFacts, ...], wanted: Wanted
    ) -> ExplainReport:
        past, unknown = await self._ended(wanted, _PAST_SHOWN)
        return ExplainReport(
            subject=subject,
            kind=kind,
            addresses=facts,
            past=past,
            past_unknown=unknown,
            networks=tuple(self._names()),
            asked=time_of(self._clock.wall()),
        )

    async def _ended(self, wanted: Wanted, limit: int, at: float | None = None) -> tuple[tuple[HistoryEntry, ...], str]:
        """Leases that ended, newest first; or why that can't be read now, which spoils no other answer."""
        query = RowsQuery(
            network=wanted.network or None,
            address=wanted.address,
            workload=wanted.workload,
            container_id=wanted.container or None,
            at=at,
            limit=limit,
        )
        try:
            rows = await self._past.history(query)
            if wanted.container and not rows:  # named by its first characters, then, among the latest rows
                near = await self._past.history(replace(query, container_id=None, limit=_SCANNED))
                rows = [row for row in near if means_container(wanted.container, row.owner)][:limit]
        except AllotmentError as error:
            return (), error.message
        return tuple(map(past_entry, rows)), ""

    async def _of_address(self, address: Address) -> AsyncIterator[AddressFacts]:
        """The address in each network that knows it; in none, it is foreign."""
        now = self.now()
        names = {*self._names(), *(lease.owner.network for lease in self._book.leases() if lease.address == address)}
        found = False
        for name in sorted(names):
            state = self._book.state_of(name, address, now)
            if state.kind not in (StateKind.FOREIGN, StateKind.UNKNOWN_NETWORK):
                found = True
                yield await self._in_network(address, name)
        if not found:
            yield AddressFacts(address=str(address), network="", state=StateKind.FOREIGN)

    async def _in_network(self, address: Address, name: str) -> AddressFacts:
        plan = self._book.plan(name)
        view = self._view()
        state = self._book.state_of(name, address, self.now())
        phase, reason = phase_of(name, plan)
        last, _ = await self._ended(Wanted(network=name, address=str(address)), 1)
        subnet = next((prefix for prefix in plan.subnets if address in prefix), None) if plan is not None else None
        claim = claim_of(state.lease) if state.lease is not None and plan is not None and plan.claimed else ""
        return AddressFacts(
            address=str(address),
            network=name,
            state=state.kind,
            phase=phase,
            phase_reason=reason,
            subnet=str(subnet) if subnet is not None else "",
            block=str(state.block) if state.block is not None else "",
            held_back=held_back(address, plan, view) if plan is not None else (),
            lease=lease_report(state.lease) if state.lease is not None else None,
            last=last[0] if last else None,
            released=None if state.released is None else time_of(state.released),
            cooling_left=state.remaining,
            cooldown=plan.cooldown if plan is not None else 0.0,
            claim=claim,
            role=self._role(claim) if claim else "",
        )


def _event(entry: HistoryEntry) -> tuple[datetime, int]:
    return (entry.given if entry.ended is None else entry.ended.at, entry.sequence)


def _texts(numbers: Utilization) -> dict[str, str]:
    return {
        "capacity": str(numbers.capacity),
        "in_use": str(numbers.in_use),
        "reserved": str(numbers.reserved),
        "cooling": str(numbers.cooling),
        "available": str(numbers.available),
    }


def _as_address(subject: str) -> Address | None:
    """The address that a person wrote, in any spelling; None when it isn't meant for one.

    Raises:
        ConfigError: it is meant for one, and malformed.
    """
    head = subject.partition("/")[0]
    if ":" not in head and not re.fullmatch(r"[0-9]+(\.[0-9]+)+", head):
        return None
    return parse_address(subject)
