"""Gives running pods that have no lease the leases they should have, and tells of addresses with two users.

Asked after each look for orphans that a runtime answered. Only sandboxes without a lease have to be asked about one by
one, and each only once: neither its addresses nor its namespace change while it lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from allotment.node.notices.board import OfLease
from allotment.node.notices.notice import Subject, allocation_of, network, pod_of
from allotment.node.notices.table import About, Happened
from allotment.node.orphans.adoption import Seen, reconcile

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
    from allotment.observe.metrics import Metrics

__all__ = ["LOOKS_TO_TELL", "Adopter"]

LOOKS_TO_TELL: Final = 2
"""So many looks in a row have to show a conflict."""


class Adopter:
    """One for the agent's life. `conflicts` are those of the last look, for whoever has to show them.

    `looks` counts those that were answered.
    """

    def __init__(
        self,
        book: LeaseBook,
        attachments: Attachments,
        metrics: Metrics,
        log: FilteringBoundLogger,
        notices: Notices,
    ) -> None:
        self._notices = notices
        self._book = book
        self._attachments = attachments
        self._log = log
        self._adopted = metrics.count("adopted_leases_total")
        metrics.read("address_conflicts", lambda: (((), float(len(self.conflicts))),))
        self._statuses: dict[str, Sandbox] = {}
        self._seen = Seen()
        self.looks = 0

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Addresses that two use, as two looks showed."""
        return self._seen.conflicts

    def know(self, conflicts: Sequence[Conflict]) -> None:
        """Somebody has found these already; they hold until a look doesn't show them."""
        self._seen = Seen(conflicts=tuple(conflicts), suspected=frozenset(conflicts))
        self._tell(())

    async def look(self, runtime: Runtime, listed: Sequence[Sandbox], leases: Iterable[Lease], at: Moment) -> None:
        """Compare what runs with the leases that were there at `at`, before the runtime listed its sandboxes.

        Raises:
            AllotmentError: the runtime can't be asked any more, or the disk refuses; the next look tries again.
        """
        leases = tuple(leases)
        with_lease = {lease.owner.container_id for lease in leases}
        strangers = [sandbox.id for sandbox in listed if sandbox.ready and sandbox.id not in with_lease]
        unasked = [identity for identity in strangers if identity not in self._statuses]
        asked = await runtime.statuses(unasked) if unasked else {}
        known = self._statuses | asked
        self._statuses = {identity: known[identity] for identity in strangers if identity in known}
        plans = [plan for name in self._book.networks() if (plan := self._book.plan(name)) is not None]
        before = self._seen
        after = tuple(self._book.leases())
        self._seen = reconcile(plans, self._statuses.values(), leases, after, at=at, earlier=before)
        self.looks += 1
        self._tell(before.conflicts)
        if self._seen.adopt:
            await self._attachments.restore(self._seen.adopt)
            told: list[OfLease] = []
            for claim in self._seen.adopt:
                held = self._book.at(claim.owner.network, claim.address)
                if held is None or held.owner.container_id != claim.owner.container_id:
                    continue  # it was given to somebody else just now: the next looks tell
                self._adopted.inc()
                self._log.warning(
                    "gave a running pod the lease it lacked",
                    network=claim.owner.network,
                    address=str(claim.address),
                    pod=f"{claim.owner.pod_namespace}/{claim.owner.pod_name}",
                    container=claim.owner.container_id,
                )
                pod = f"{claim.owner.pod_namespace}/{claim.owner.pod_name}"
                message = f"{claim.address}, which {pod} uses, was held by nobody; the pod has a lease for it now"
                told.append(OfLease(claim.owner.network, message, pod_of(claim.owner)))
            self._notices.tell_of_leases(Happened.ADOPTED, told)

    def _tell(self, before: Sequence[Conflict]) -> None:
        for conflict in self._seen.conflicts:
            if conflict not in before:
                users = ", ".join(f"{user.name} ({user.container[:12]})" for user in conflict.users)
                self._log.error(
                    "two use one address", network=conflict.network, address=str(conflict.address), users=users
                )
                pods = [
                    Subject(About.POD, user.pod, user.namespace, user.uid)
                    for user in conflict.users
                    if user.pod and user.namespace
                ]
                message = f"in network {conflict.network} {conflict.in_words}; delete one of them"
                about = (*pods, allocation_of(conflict.network), network(conflict.network))
                self._notices.tell(Happened.CONFLICT, message, *about)

    def blind(self) -> None:
        """The runtime gave no answer: what was seen before it can't be confirmed by what comes after."""
        self._seen = Seen(conflicts=self._seen.conflicts)
