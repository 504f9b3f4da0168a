"""The search for orphans: looks every half a minute, and frees the leases whose owners are provably gone.

What is decided, and on what, is in `verdicts`; here is who is asked, and in which order: first the leases, then the
runtime or the pods, then the namespaces of those that are missing there. An address that is given meanwhile is younger
than the look and not judged by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from allotment.addressing.errors import AllotmentError, LedgerUnavailable
from allotment.addressing.lease import Cause
from allotment.cni.frames import LIMIT
from allotment.node.inquiries.describe import lease_report, who
from allotment.node.inquiries.reports import (
    OrphanReport,
    OrphansQuery,
    OrphansReport,
    OrphanState,
    decode_question,
    encode,
)
from allotment.node.notices.board import OfLease
from allotment.node.notices.notice import pod_of
from allotment.node.notices.table import Happened
from allotment.node.orphans.adopter import LOOKS_TO_TELL, Adopter
from allotment.node.orphans.evidence import namespaces_gone
from allotment.node.orphans.verdicts import (
    BETWEEN_LOOKS,
    Judged,
    Look,
    Pods,
    Sandboxes,
    Unreadable,
    Verdict,
    judge,
    missing,
    of_a_pod,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.book import LeaseBook
    from allotment.addressing.lease import Lease, Moment
    from allotment.cri.messages import Sandbox
    from allotment.cri.runtime import Runtime
    from allotment.node.attaching.attachments import Attachments
    from allotment.node.notices.board import Notices
    from allotment.node.orphans.adoption import Conflict
    from allotment.observe.clock import Clock
    from allotment.observe.metrics import Metrics

    _Listed = tuple[Sandbox, ...] | Unreadable | None

__all__ = ["Found", "OrphanSearch", "PodsLook"]

_ROOM = LIMIT - (LIMIT >> 2)
"""Bytes of one answer to the CLI."""
SourceT = TypeVar("SourceT", Sandboxes, Pods)


PodsLook = Callable[[], Pods | Unreadable]
"""Says which pods are bound to this node now, or why that isn't known."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one round came to: the verdict, and which of its orphans were freed (their leases' ends are on disk)."""

    verdict: Verdict = field(default_factory=Verdict)
    freed: tuple[Judged, ...] = ()


class OrphanSearch:
    """Looks and frees. With neither `runtime` nor `pods` there is nobody to ask, and it does nothing.

    `runtime` finds the runtime anew for each look. `waits` says why nothing may be
    freed yet (empty: it may).
    """

    def __init__(
        self,
        book: LeaseBook,
        attachments: Attachments,
        clock: Clock,
        metrics: Metrics,
        log: FilteringBoundLogger,
        notices: Notices,
        *,
        runtime: Callable[[], Runtime] | None,
        pods: PodsLook | None = None,
        waits: Callable[[], str] = lambda: "",
    ) -> None:
        self._book = book
        self._attachments = attachments
        self._clock = clock
        self._log = log
        self._runtime = runtime
        self._pods = pods
        self._waits = waits
        self._notices = notices
        self._adopter = Adopter(book, attachments, metrics, log, notices)
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._verdict = Verdict()
        self._looks = {outcome: metrics.count("orphan_looks_total", outcome) for outcome in ("judged", "blind")}
        self._freed = metrics.count("orphans_freed_total")
        metrics.read("orphan_leases", self._suspected)

    @property
    def searches(self) -> bool:
        """Whether there is anybody to ask."""
        return self._runtime is not None or self._pods is not None

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Addresses that two pods use; nothing is done about them but to tell."""
        return self._adopter.conflicts

    @property
    def knows_conflicts(self) -> bool:
        """Whether some are known, or there have been looks enough since the start to tell that there are none."""
        return bool(self._adopter.conflicts) or self._adopter.looks >= LOOKS_TO_TELL

    def know(self, conflicts: Sequence[Conflict]) -> None:
        """A rebuild has found these conflicts; they hold until a look doesn't show them."""
        self._adopter.know(conflicts)

    async def run(self) -> None:
        """Look, free, wait, for ever. From the end of a look to the beginning of the next one it is long enough."""
        while True:
            await self._pause()
            if self.searches and not self._waits():
                try:
                    await self.search()
                except LedgerUnavailable as error:
                    self._log.warning("orphans not freed", error=error.message)

    def poke(self) -> None:
        """Leases changed. An address that two used, and that nobody holds now, is looked at before others get it."""
        if any(self._book.at(conflict.network, conflict.address) is None for conflict in self._adopter.conflicts):
            self._wake.set()

    async def _pause(self) -> None:
        """Wait for the next look."""
        sleep = asyncio.ensure_future(self._clock.sleep(BETWEEN_LOOKS))
        wake = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((sleep, wake), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            wake.cancel()
            self._wake.clear()

    async def search(self, *, free: bool = True) -> Found:
        """One round; with `free` unset it only looks, which counts as a look all the same.

        Raises:
            LedgerUnavailable: what is to be freed can't be put on disk now; it is tried again in the next round.
        """
        async with self._turn:
            at = self._attachments.now()
            leases = tuple(self._book.leases())
            runtime, listed = await self._list(leases)
            verdict = await self._judge(leases, at, listed)
            self._say(verdict)
            freed = await self._free(verdict.orphans) if free and not self._waits() else ()
            if free and not self._waits():
                await self._adopt(runtime, listed, leases, at)
            return Found(verdict, freed)

    async def answer(self, arguments: bytes) -> bytes:
        """The query `orphans` of `allotment gc`: the same look and the same decision as the search's own.

        Raises:
            ConfigError: the question can't be read.
            LedgerUnavailable: what is to be freed can't be put on disk now.
        """
        query = decode_question(arguments, OrphansQuery)
        if not self.searches:
            return encode(OrphansReport(searches=False))
        await self._clock.sleep(0)  # a call begins in no task (`cni.begun`), and a runtime's time limits want one
        found = await self.search(free=query.free)
        verdict = found.verdict
        freed = {each.lease.sequence for each in found.freed}
        certain = {each.lease.sequence for each in verdict.orphans}
        judged = (
            *(
                (each, OrphanState.FREED if each.lease.sequence in freed else OrphanState.ORPHAN)
                for each in verdict.orphans
            ),
            *((each, OrphanState.SUSPECTED) for number, each in verdict.suspects.items() if number not in certain),
            *((each, OrphanState.HELD) for each in verdict.held),
        )
        reports = tuple(
            OrphanReport(lease_report(each.lease), state, each.evidence)
            for each, state in judged
            if query.network in ("", each.lease.owner.network)
        )
        answer = encode(OrphansReport(searches=True, found=reports, blind=verdict.blind))
        while len(answer) > _ROOM:
            reports = reports[: len(reports) // 2]
            answer = encode(OrphansReport(searches=True, found=reports, blind=verdict.blind, cut=True))
        return answer

    async def _list(self, leases: Sequence[Lease]) -> tuple[Runtime | None, _Listed]:
        """The runtime and its sandboxes; with nothing to judge or to adopt into, nobody is asked."""
        if self._runtime is None or not (leases or self._book.networks()):
            return None, None
        try:
            runtime = self._runtime()
            return runtime, await runtime.sandboxes()
        except AllotmentError as error:
            return None, Unreadable(error.message)

    async def _judge(self, leases: Sequence[Lease], at: Moment, listed: _Listed) -> Verdict:
        leases = tuple(filter(of_a_pod, leases))
        if not leases:
            return Verdict()
        sandboxes = Sandboxes(frozenset(each.id for each in listed)) if isinstance(listed, tuple) else listed
        pods = self._pods() if self._pods is not None else None
        paths = {lease.netns for lease in missing(leases, _known(sandboxes), _known(pods))}
        gone = await asyncio.to_thread(namespaces_gone, paths) if paths else {}
        return judge(leases, Look(at, sandboxes, pods, gone), self._verdict.suspects)

    async def _adopt(self, runtime: Runtime | None, listed: _Listed, leases: Sequence[Lease], at: Moment) -> None:
        """What can't be adopted now is looked at again in the next round."""
        if runtime is None or not isinstance(listed, tuple):
            self._adopter.blind()
            return
        try:
            await self._adopter.look(runtime, listed, leases, at)
        except AllotmentError as error:
            self._adopter.blind()
            self._log.warning("pods without a lease not looked for", error=error.message)

    async def _free(self, orphans: Sequence[Judged]) -> tuple[Judged, ...]:
        """Free these very leases (I7), those of one attachment together."""
        by_evidence: dict[str, list[Judged]] = {}
        for orphan in orphans:
            by_evidence.setdefault(orphan.evidence, []).append(orphan)
        freed: list[Judged] = []
        try:
            for evidence, several in by_evidence.items():
                ended = await self._attachments.remove([each.lease for each in several], Cause.ORPHAN, evidence)
                numbers = {lease.sequence for lease in ended}
                freed += [each for each in several if each.lease.sequence in numbers]
        finally:
            self._freed.inc(len(freed))
            for each in freed:
                self._log.warning("freed an orphan", evidence=each.evidence, **_named(each.lease))
            self._notices.tell_of_leases(Happened.ORPHAN_FREED, [_of_lease(each) for each in freed])
        return tuple(freed)

    def _say(self, verdict: Verdict) -> None:
        """Count the look, and log what is new in it."""
        before, self._verdict = self._verdict, verdict
        self._looks["blind" if verdict.blind else "judged"].inc()
        if verdict.blind != before.blind:
            if verdict.blind:
                self._log.warning("orphans can't be searched for", reason=verdict.blind)
            else:
                self._log.info("orphans are searched for again")
        known = {each.lease.sequence for each in before.held}
        for each in verdict.held:
            if each.lease.sequence not in known:
                self._log.warning(
                    "an address may be in use unknown to the runtime", reason=each.evidence, **_named(each.lease)
                )

    def _suspected(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return (
            (("suspected",), float(len(self._verdict.suspects))),
            (("held",), float(len(self._verdict.held))),
        )


def _known(source: SourceT | Unreadable | None) -> SourceT | None:
    return None if isinstance(source, Unreadable) else source


def _of_lease(freed: Judged) -> OfLease:
    owner = freed.lease.owner
    message = f"{freed.lease.address}, which {who(owner)} had, was taken back: {freed.evidence}"
    return OfLease(owner.network, message, pod_of(owner))


def _named(lease: Lease) -> dict[str, str]:
    owner = lease.owner
    return {
        "network": owner.network,
        "address": str(lease.address),
        "container": owner.container_id,
        "pod": f"{owner.pod_namespace}/{owner.pod_name}",
    }
