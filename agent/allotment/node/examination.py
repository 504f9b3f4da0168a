"""`Examination`: gathers what `allotment doctor` judges: the agent's memory, the ledger on disk, the kernel, files.

Nothing is changed. What can't be looked at is said to be skipped, and why; it is never taken for being well.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from allotment.addressing.errors import AllotmentError, TryAgain
from allotment.addressing.intervals import IntervalSet
from allotment.node.describe import lease_report
from allotment.node.evidence import namespace_gone
from allotment.node.findings import (
    Finding,
    Severity,
    compare_books,
    earlier_boots,
    held_twice,
    lasting,
    misplaced,
    namespaces_gone,
    without_lease,
)
from allotment.node.house import agent_findings, ledger_findings, spool_findings
from allotment.node.kernel_look import see_namespaces
from allotment.node.offline import Offline

if TYPE_CHECKING:
    from collections.abc import Callable

    from allotment.node.reports import LeaseReport, StatusReport
    from allotment.node.settings import Settings
    from allotment.observe.clock import Clock

__all__ = ["Examination", "Examined", "Skipped"]

_LOOKS = 3
_PAUSE = 0.5
_KERNEL_PAUSE = 2.0


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
        await self._kernel()
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
                    "a damaged ledger is set aside and made again from what runs when the agent starts",
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
        """Compare, and where they disagree look again: see `allotment.node.findings` for why three looks."""
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

    # -- kernel

    async def _kernel(self) -> None:
        """Compare leases and namespaces; twice, since an ADD or a DEL in progress looks wrong for a while."""
        if os.geteuid() != 0:
            self._skipped.append(Skipped("kernel", "looking into network namespaces needs root"))
            return
        first = await self._look_at_kernel()
        if first:
            await self._clock.sleep(_KERNEL_PAUSE)
            first = lasting(first, await self._look_at_kernel(again=True))
        self._findings += first

    async def _look_at_kernel(self, *, again: bool = False) -> tuple[Finding, ...]:
        before = self._leases_and_blocks()
        if before is None:
            if not again:
                self._skipped.append(Skipped("kernel", "neither the agent nor the ledger tells the leases"))
            return ()
        leases, _, _ = before
        seen, unread = await see_namespaces(self._settings.netns_dir, {lease.netns for lease in leases})
        after = self._leases_and_blocks() or before
        if not again:
            self._skipped += [Skipped("kernel", reason) for reason in unread]
            self._checked.append(f"kernel ({len(seen)} network namespaces)")
        now = (self._clock.boot, self._clock.seconds())
        still = {lease.sequence for lease in after[0]}
        held = [lease for lease in leases if lease.sequence in still]
        return (
            *namespaces_gone(held, self._clock.boot, namespace_gone),
            *without_lease((*leases, *after[0]), seen, after[1], after[2]),
            *misplaced(held, seen, now),
        )

    def _leases_and_blocks(self) -> tuple[tuple[LeaseReport, ...], IntervalSet, IntervalSet] | None:
        """The leases on disk, and the blocks of this node and their gateways as the ledger knows them."""
        try:
            ledger = Offline(self._settings, self._clock)
        except AllotmentError:
            return None
        try:
            blocks = [block for plan in ledger.plans for block in plan.blocks]
            gateways = [block.gateway for block in blocks if block.gateway is not None]
            return (
                tuple(map(lease_report, ledger.state.leases)),
                IntervalSet.of(*(block.prefix for block in blocks)),
                IntervalSet.of(*gateways),
            )
        finally:
            ledger.close()
