"""`Examination`: gathers what `allotment doctor` judges: the agent's memory, the ledger on disk, the kernel, files.

Nothing is changed. What can't be looked at is said to be skipped, and why; it is never taken for being well.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from allotment.addressing.errors import AllotmentError, LedgerDamaged, LedgerTooNew, TryAgain
from allotment.addressing.intervals import IntervalSet
from allotment.node.doctor.findings import (
    Finding,
    Severity,
    compare_books,
    earlier_boots,
    held_twice,
    lasting,
    misplaced,
    namespaces_gone,
    remembered_without_lease,
    without_lease,
)
from allotment.node.doctor.house import agent_findings, ledger_findings, spool_findings
from allotment.node.inquiries.describe import lease_report
from allotment.node.inquiries.offline import Offline
from allotment.node.namespaces import see_namespaces
from allotment.node.orphans.evidence import namespace_gone
from allotment.node.rebuilding.cni_cache import read_cni_cache

if TYPE_CHECKING:
    from collections.abc import Callable

    from allotment.node.inquiries.reports import LeaseReport, StatusReport
    from allotment.node.namespaces import SeenNamespace
    from allotment.node.rebuilding.evidence import CachedAttachment
    from allotment.node.settings import Settings
    from allotment.observe.clock import Clock

__all__ = ["Examination", "Examined", "Skipped"]

_LOOKS = 3
_PAUSE = 0.5
_OUTSIDE_PAUSE = 2.0


class Skipped(msgspec.Struct, frozen=True):
    """A check that could not be made."""

    check: str
    why: str


class Examined(msgspec.Struct, frozen=True):
    """What was looked at, what was found, and what could not be looked at."""

    checked: tuple[str, ...]
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]


class Examination:
    """One run of the doctor. `status` and `memory` ask the agent and raise TryAgain while it is down."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        status: Callable[[], StatusReport],
        memory: Callable[[], tuple[LeaseReport, ...]],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._ask_status = status
        self._ask_memory = memory
        self._findings: list[Finding] = []
        self._checked: list[str] = []
        self._skipped: list[Skipped] = []

    async def run(self) -> Examined:
        """Look at everything."""
        status = self._agent()
        disk = self._disk()
        running = status is not None
        self._findings += ledger_findings(self._settings, status)
        self._findings += spool_findings(self._settings, running=running)
        self._checked.append("files and spool")
        if running and disk is not None:
            await self._memory_and_disk()
        elif disk is not None:
            self._skipped.append(Skipped("memory against disk", "the agent is down"))
        else:
            self._skipped.append(Skipped("memory against disk", "the ledger can't be read"))
        if disk is not None:
            self._findings += earlier_boots(disk, self._clock.boot, running=running)
            self._findings += held_twice(disk, "the ledger")
            self._checked.append("boot of each lease")
        await self._outside()
        order = list(Severity)
        self._findings.sort(key=lambda finding: order.index(finding.severity))
        return Examined(tuple(self._checked), tuple(self._findings), tuple(self._skipped))

    # -- agent and disk

    def _agent(self) -> StatusReport | None:
        try:
            status = self._ask_status()
        except TryAgain as error:
            self._findings += agent_findings(self._settings, None, error.message)
            self._checked.append("socket")
            return None
        self._findings += agent_findings(self._settings, status, "")
        self._checked.append("socket")
        return status

    def _disk(self) -> tuple[LeaseReport, ...] | None:
        try:
            leases, wrong = self._read_disk(thorough=True)
        except AllotmentError as error:
            self._findings.append(
                Finding(
                    Severity.PROBLEM,
                    "ledger",
                    str(self._settings.state_dir),
                    error.message,
                    _advice(error),
                )
            )
            self._skipped.append(Skipped("leases on disk", "the ledger can't be read"))
            return None
        self._checked.append("ledger")
        self._findings += [
            Finding(
                Severity.PROBLEM,
                "ledger",
                str(self._settings.state_dir),
                problem,
                "restart the agent: it sets a damaged ledger aside and makes it again from what runs",
            )
            for problem in wrong
        ]
        return leases

    def _read_disk(self, *, thorough: bool = False) -> tuple[tuple[LeaseReport, ...], list[str]]:
        ledger = Offline(self._settings, self._clock)
        try:
            return tuple(map(lease_report, ledger.state.leases)), ledger.problems() if thorough else []
        finally:
            ledger.close()

    async def _memory_and_disk(self) -> None:
        """Compare, and where they disagree look again: see `allotment.node.doctor.findings` for why three looks."""
        looks: list[tuple[Finding, ...]] = []
        try:
            for number in range(_LOOKS):
                if number:
                    await self._clock.sleep(_PAUSE)
                disk, _ = self._read_disk()
                memory = self._ask_memory()
                looks.append((*compare_books(disk, memory), *held_twice(memory, "the agent")))
                if not looks[-1]:
                    break
        except AllotmentError as error:
            self._skipped.append(Skipped("memory against disk", error.message))
            return
        self._checked.append("memory against disk")
        self._findings += lasting(*looks)

    # -- runtime and kernel

    async def _outside(self) -> None:
        """Compare leases with what runs; twice, since an ADD or a DEL in progress looks wrong for a while."""
        first = await self._look_outside(first=True)
        if first:
            await self._clock.sleep(_OUTSIDE_PAUSE)
            first = lasting(first, await self._look_outside(first=False))
        self._findings += first

    async def _look_outside(self, *, first: bool) -> tuple[Finding, ...]:
        """One look: at the leases, then outside, then at the leases again. Only the first says what was skipped."""
        skipped: list[Skipped] = []
        before = self._leases_and_blocks()
        if before is None:
            if first:
                self._skipped.append(Skipped("runtime and kernel", "the ledger doesn't tell the leases"))
            return ()
        seen = await self._namespaces({lease.netns for lease in before.leases}, skipped)
        cached = self._remembered(skipped)
        after = self._leases_and_blocks() or before
        if first:
            self._skipped += skipped
            self._checked.append("runtime's memory" if seen is None else f"kernel ({len(seen)} network namespaces)")
        still = {lease.sequence for lease in after.leases}
        held = [lease for lease in before.leases if lease.sequence in still]
        either = (*before.leases, *after.leases)
        found = [
            *namespaces_gone(held, self._clock.boot, namespace_gone),
            *remembered_without_lease(either, cached, namespace_gone),
        ]
        if seen is not None:
            found += without_lease(either, seen, after.blocks, after.gateways)
            found += misplaced(held, seen, (self._clock.boot, self._clock.seconds()))
        return tuple(found)

    async def _namespaces(self, paths: set[str], skipped: list[Skipped]) -> tuple[SeenNamespace, ...] | None:
        if os.geteuid() != 0:
            skipped.append(Skipped("kernel", "looking into network namespaces needs root"))
            return None
        seen, unread = await see_namespaces(self._settings.netns_dir, paths)
        skipped += [Skipped("kernel", reason) for reason in unread]
        return seen

    def _remembered(self, skipped: list[Skipped]) -> tuple[CachedAttachment, ...]:
        try:
            return read_cni_cache(self._settings.cni_cache_dir)
        except AllotmentError as error:
            skipped.append(Skipped("runtime's memory", error.message))
            return ()

    def _leases_and_blocks(self) -> _Held | None:
        """What the ledger says now; None when it can't be read."""
        try:
            ledger = Offline(self._settings, self._clock)
        except AllotmentError:
            return None
        try:
            blocks = [block for plan in ledger.plans for block in plan.blocks]
            gateways = [block.gateway for block in blocks if block.gateway is not None]
            return _Held(
                tuple(map(lease_report, ledger.state.leases)),
                IntervalSet.of(*(block.prefix for block in blocks)),
                IntervalSet.of(*gateways),
            )
        finally:
            ledger.close()


@dataclass(frozen=True, slots=True)
class _Held:
    """The leases on disk, and the blocks of this node and their gateways as the ledger knows them."""

    leases: tuple[LeaseReport, ...]
    blocks: IntervalSet
    gateways: IntervalSet


def _advice(error: AllotmentError) -> str:
    """What to do about a ledger that can't be read."""
    match error:
        case LedgerDamaged():
            return "a damaged ledger is set aside and made again from what runs when the agent starts"
        case LedgerTooNew():
            return "install the release that wrote it, or a newer one"
        case _:
            return "name the agent's folder with --state-dir; an agent that starts where there is none makes one"
