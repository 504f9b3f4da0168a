"""Makes a lost ledger's leases again: once, before anything is given, and later for what could not be placed then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.api.meta import NODE_FINALIZER
from allotment.node.rebuilding.judgement import Rebuilt, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.plan import NetworkPlan
    from allotment.node.attaching.attachments import Attachments
    from allotment.node.orphans.adoption import Conflict
    from allotment.node.rebuilding.witnesses import Witnesses
    from allotment.node.start import Started
    from allotment.node.view import View

__all__ = ["Rebuilder", "earlier_ledger"]


def earlier_ledger(view: View, ledger_id: str, *, untouched: bool) -> str:
    """Why there must have been another ledger of this node than the one of this ID; empty if nothing says so.

    An Allocation names the ledger that its leases are in, and carries this node's finalizer from before the first of
    them on (I4). `untouched` says that nobody can have put it there since this ledger is new.
    """
    for allocation in view.allocations.values():
        told = allocation.status.ledger_id
        if told and told != ledger_id:
            return f"Allocation {allocation.name} names ledger {told}, and this one is {ledger_id}"
        if untouched and not told and NODE_FINALIZER in allocation.metadata.finalizers:
            return f"Allocation {allocation.name} carries this node's finalizer, and this ledger is new"
    return ""


class Rebuilder:
    """Asks the witnesses, and gives everybody his lease back.

    `tell` hears of the addresses that several were found to use; nothing is done to any of them. `rebuilt` is told, in
    words, when leases were made again.
    """

    def __init__(
        self,
        started: Started,
        attachments: Attachments,
        witnesses: Witnesses,
        log: FilteringBoundLogger,
        *,
        view: Callable[[], View],
        plans: Callable[[], tuple[NetworkPlan, ...]],
        tell: Callable[[Sequence[Conflict]], None],
        rebuilt: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._started = started
        self._attachments = attachments
        self._witnesses = witnesses
        self._log = log
        self._view = view
        self._plans = plans
        self._tell = tell
        self._say_rebuilt = rebuilt
        self._rebuilt = Rebuilt()
        self._rested: set[str] = set()  # networks whose addresses all rest since the ledger was made again

    def can_place(self, plans: Iterable[NetworkPlan]) -> bool:
        """Whether an address that was in use, but in no network known then, lies in a block of these."""
        return self._rebuilt.can_place(plans)

    async def rebuild(self, *, anew: bool) -> None:
        """Make the leases again from what runs: all of them, or (later) those that have a block only now.

        Raises:
            AllotmentError: somebody can't be asked, or the disk refuses; nothing is settled, and it has to be done
                again.
        """
        started, reason = self._started, self._started.lost
        view = self._view()
        answers = view.synced and view.lost_contact is None
        if anew:
            self._rested.clear()
        evidence = await self._witnesses.hear(insist=started.had_ledger, api_answers=answers)
        for why in evidence.unheard:
            self._log.warning("rebuild", remark=f"somebody could not be asked: {why}")
        while anew or self._rebuilt.can_place(self._plans()):
            plans = self._plans()
            found = judge(plans, evidence)
            for remark in found.remarks:
                self._log.warning("rebuild", remark=remark)
            # What had a block before has been given and taken back by this agent, which knows better by now.
            claims = found.claims if anew else self._rebuilt.late(found)
            await self._attachments.restore(claims)
            if claims or started.had_ledger:
                networks = [plan.name for plan in plans if plan.name not in self._rested]
                await self._attachments.suppose_rested(networks)
                self._rested.update(networks)
            self._rebuilt, anew = found, False
            if found.conflicts:
                self._tell(found.conflicts)
            self._log.info("rebuilt the ledger from what runs", leases=len(claims), reason=reason)
            if claims or started.had_ledger:
                self._say_rebuilt(f"{reason}: its leases were made again from what runs, {len(claims)} of them")
        if not self._may_come:
            started.settle()

    @property
    def _may_come(self) -> bool:
        """Whether addresses in use may yet get a block of ours: the next start has to look for them again.

        The source may still name networks that pods run in, or give a block of one that it has named.
        """
        view = self._view()
        unplaced = self._rebuilt.unplaced
        if not unplaced:
            return False
        if view.problems or view.doubted or not view.networks:
            return True
        return any(
            name in (None, plan.name) and any(address in subnet for subnet in plan.subnets)
            for plan in self._plans()
            for name, address in unplaced
        )
