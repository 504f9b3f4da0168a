"""The owner of the lease book: what ADD, DEL, CHECK, GC and STATUS do.

Rules kept here:

- Memory follows the disk: a decision takes effect when it is written down, whoever still waits for it (`Commits`, I2).
- Requests for one attachment take turns (`Turns`); requests for different attachments never wait for each other.
- A caller that is gone before it acknowledged its answer keeps nothing that its request granted, and loses nothing
  that was there before or that another call was told of since (`Hearers`).
- A release names the lease it means: the book removes a lease only while it is the very same one (I7).
- Where somebody else picks the addresses (`Picker`), an ADD waits for that, with a limit; nothing else ever does.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from allotment.addressing.book import Ask
from allotment.addressing.errors import (
    CheckFailed,
    Exhausted,
    LedgerUnavailable,
    NotAdmitted,
    NotServing,
)
from allotment.addressing.lease import Cause, LeaseKind, Moment
from allotment.addressing.reasons import Reason
from allotment.node.attaching.commits import Commits, Write
from allotment.node.attaching.hearers import Hearers
from allotment.node.attaching.machines import with_machine, with_seen_machine
from allotment.node.attaching.nameless import Nameless
from allotment.node.attaching.shortage import Shortage
from allotment.node.attaching.strays import refuse_strays, report_strays
from allotment.node.attaching.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from allotment.addressing.book import Claimed, LeaseBook, Proposal
    from allotment.addressing.lease import AttachmentKey, Lease, Owner, Supposed
    from allotment.addressing.plan import NetworkPlan
    from allotment.cni.request import CniRequest
    from allotment.node.attaching.commits import Store
    from allotment.node.attaching.machines import Machines
    from allotment.node.attaching.picker import Picker
    from allotment.observe.clock import Clock

__all__ = ["Attached", "Attachments"]


@dataclass(frozen=True, slots=True)
class Attached:
    """What an ADD ends in: the leases, and whether this call granted them (or found them)."""

    leases: tuple[Lease, ...]
    granted: bool


class Attachments:
    """All that changes leases goes through here.

    `spawn` starts a coroutine that outlives the request; one that fails takes the process with it.
    """

    def __init__(
        self,
        book: LeaseBook,
        store: Store,
        clock: Clock,
        *,
        spawn: Callable[[Coroutine[None, None, None]], object],
        add_wait: float,
        await_unknown: bool = False,
        gc_enabled: bool = True,
    ) -> None:
        self._book = book
        self._store = store
        self._clock = clock
        self._spawn = spawn
        self._add_wait = add_wait
        self._await_unknown = await_unknown
        self._gc_enabled = gc_enabled
        self._turns: Turns[AttachmentKey] = Turns()
        self._commits = Commits(book, store)
        self._hearers = Hearers()
        self.shortage = Shortage()
        """The ADDs that wait for a further block."""
        self._abandoning = 0
        self._abandoned_one = asyncio.Event()
        self._plans_changed = asyncio.Event()
        self._not_serving = "the agent is starting"
        self._incomplete = False
        self._nameless = Nameless()
        self._supposed: list[Supposed] = []  # in force, and not on disk yet
        self._settle_kept: Callable[[], Awaitable[None]] | None = None
        self._picker: Picker | None = None
        self._machines: Machines | None = None
        self._look_again: Callable[[CniRequest, Moment, str], None] | None = None

    # -- what the daemon tells us ---------------------------------------------------------------------------------

    def apply(self, plans: Iterable[NetworkPlan]) -> None:
        """Take over the complete set of plans; wakes every ADD that waits to be admitted."""
        self._book.apply(plans, self.now())
        self.shortage.plans_changed()
        self._plans_changed.set()
        self._plans_changed = asyncio.Event()

    def serve(self, reason_not_to: str = "", *, incomplete: bool = False) -> None:
        """Begin to give addresses, or (with a reason) give none yet.

        `incomplete` says that leases are missing from the book until a rebuild has found them: a DEL of one of them
        would find nothing, so DELs are refused too, and the shim keeps them.
        """
        self._not_serving = reason_not_to
        self._incomplete = incomplete
        self._nameless = Nameless(self._book.leases())
        self._plans_changed.set()
        self._plans_changed = asyncio.Event()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of leases; it must be cheap."""

        def changed() -> None:
            self.shortage.leases_changed()
            callback()

        self._commits.on_change(changed)

    def before_repeating(self, settle: Callable[[], Awaitable[None]]) -> None:
        """Await `settle` before an ADD is told of leases that are there already.

        A DEL that came before it may be kept somewhere, unheard: a container that is restarted under its own ID
        would be told of leases that end a moment later.
        """
        self._settle_kept = settle

    def pick_by(self, picker: Picker) -> None:
        """Have `picker` pick the addresses of networks that are claimed."""
        self._picker = picker

    def know_machines(self, machines: Machines) -> None:
        """Have `machines` say which pods run virtual machines, whose addresses are kept for them."""
        self._machines = machines

    def busy(self) -> frozenset[AttachmentKey]:
        """The attachments that a request is at work on now."""
        return self._turns.held()

    def after_del(self, look_again: Callable[[CniRequest, Moment, str], None]) -> None:
        """Tell `look_again` (cheap) of each DEL that is done: the request, when it came, and what it is called."""
        self._look_again = look_again

    def now(self) -> Moment:
        """The clock's moment, as leases record it."""
        return Moment(self._clock.boot, self._clock.seconds())

    # -- the verbs ------------------------------------------------------------------------------------------------

    async def add(self, request: CniRequest, call_id: str) -> Attached:
        """Give the attachment its leases: those it has, or new ones that are on disk when this returns.

        Raises:
            UnknownNetwork, NetworkDraining, NotAdmitted, Exhausted, BlockAwaited, AddressUnavailable,
            LedgerUnavailable, TryAgain
        """
        owner = request.owner()
        await self._admission(owner.network)
        if not (self._book.claimed(owner.network) or self._book.find(owner.key)):
            owner = await with_machine(owner, self._machines, self._clock)
        try:
            return await self._give(request, owner, call_id)
        except Exhausted as error:
            if not self._book.may_grow(owner.network, error):
                raise
            families = error.families
        await self._clock.sleep(0)  # see `_admission`
        return await self.shortage.serve(
            owner.network,
            families,
            lambda: self._give(request, owner, call_id),
            hope=lambda error: self._book.may_grow(owner.network, error),
            limit=self._add_wait,
        )

    async def _give(self, request: CniRequest, owner: Owner, call_id: str) -> Attached:
        """What `add` does when all it needs is there."""
        key = owner.key
        if self._settle_kept is not None and self._book.find(key):
            await self._settle_kept()
        await self._turns.take(key)
        release_turn = True
        try:
            existing = self._book.find(key)
            # Leases of an earlier boot are only still to be released (a container may have its ID again): nobody is
            # told of them, and until they are gone nothing is given.
            if existing and existing[0].since.boot == self._clock.boot:
                refuse_strays(self._book, existing)
                await self._store.confirm()
                self._hearers.repeated(key, existing, call_id)
                return Attached(existing, granted=False)
            self._refuse_new(owner.network)
            ask = Ask(owner, request.netns, request.requested, one_block=request.one_block)
            picker = self._picker if self._book.claimed(owner.network) else None
            if picker is not None:
                proposal = await self._picked(picker, ask)
            else:
                proposal = self._book.propose(ask, self.now(), self._clock.wall())
            leases = tuple(change.lease for change in proposal.changes)
            write = Write()
            try:
                await self._commits.write(proposal, write)
            except asyncio.CancelledError:
                release_turn = False
                self._abandoning += 1
                self._spawn(self._abandon(key, leases, write, call_id))
                raise
            if picker is not None:
                picker.kept(key)
            self._hearers.granted(leases, call_id)
            return Attached(leases, granted=True)
        finally:
            if release_turn:
                self._turns.release(key)

    async def delete(
        self, request: CniRequest, detail: str, *, before: Moment | None = None, cause: Cause = Cause.DEL
    ) -> tuple[Lease, ...]:
        """Release what the attachment holds; of leases newer than `before` nothing. Nothing to release is a success.

        Raises:
            LedgerUnavailable: the release can't be put on disk now, so nothing was released.
        """
        if self._incomplete:
            raise LedgerUnavailable(f"nothing can be released before all leases are known: {self._not_serving}")
        came = before or self.now()
        released: list[Lease] = []
        if self._picker is not None and before is None:
            self._picker.unwanted(request.container_id, request.interface, request.network)
        for key in self._keys_of(request):
            await self._turns.take(key)
            leases = [lease for lease in self._book.find(key) if before is None or _older(lease, before)]
            released += await self._remove_in_turn(key, leases, cause, detail)
        if not released:  # and a lease that was refused must not come to light later
            await self._store.confirm()
        if self._look_again is not None:
            self._look_again(request, came, detail)
        return tuple(released)

    def check(self, request: CniRequest) -> tuple[Lease, ...]:
        """The attachment's leases.

        Raises:
            CheckFailed: it has none.
        """
        owner = request.owner()
        leases = self._book.find(owner.key)
        if not leases:
            raise CheckFailed(
                f"container {owner.container_id} holds no address in network {owner.network} on interface "
                f"{owner.interface}; it was released or never given: recreate the pod"
            )
        report_strays(self._book, leases)
        return leases

    async def collect(self, request: CniRequest, began: Moment, detail: str) -> tuple[Lease, ...]:
        """CNI GC: release the pod leases made under the request's conf name that it does not list.

        What was leased after the request began stays (its list may be older than the lease), and so does what a
        request is busy with. One look is enough: the runtime's list is complete by nature (I8).
        """
        if not self._gc_enabled:
            return ()
        valid = request.valid_attachments
        stale: dict[AttachmentKey, list[Lease]] = {}
        for lease in self._book.leases():
            owner = lease.owner
            if (
                owner.kind is LeaseKind.POD
                and owner.conf_name == request.conf_name
                and (owner.container_id, owner.interface) not in valid
                and _older(lease, began)
            ):
                stale.setdefault(owner.key, []).append(lease)
        taken = [key for key in stale if self._turns.try_take(key)]
        leases = [lease for key in taken for lease in stale[key]]
        return await self._remove_holding(taken, leases, Cause.GC, detail)

    def status(self, network: str | None) -> None:
        """STATUS, from memory: whether an ADD could be served here at all.

        Raises:
            NotServing: not now, and why. Never for exhaustion, draining, cooldown or staleness (DESIGN of STATUS:
                containerd turns this answer into NotReady, and that evicts the node's pods).
        """
        reason = self._not_serving or self._store.fault()
        if not reason and network is not None:
            plan = self._book.plan(network)
            if plan is None:
                reason = f"network {network} is not known on this node"
            elif plan.refusal is not None and plan.refusal.error is NotAdmitted:
                reason = plan.refusal.message
        if reason:
            raise NotServing(f"no address can be given on this node: {reason}")

    # -- what becomes of an answer --------------------------------------------------------------------------------

    def acknowledged(self, attached: Attached) -> None:
        """The caller has its answer: the leases are told."""
        self._hearers.acknowledged(attached.leases)

    async def lost(self, attached: Attached, call_id: str) -> None:
        """The caller is gone without acknowledging: take back what nobody was told and nobody can be told any more.

        That is what this call granted, or an earlier call whose caller was lost as well, unless another call has the
        same answer on its way: whether that one is lost too is for it to say.
        """
        key = attached.leases[0].owner.key
        await self._turns.take(key)
        await self._undo(key, self._hearers.lost(attached.leases, call_id), call_id)

    async def settled(self) -> None:
        """Wait until nothing is being taken back that was granted to callers who hung up meanwhile."""
        while self._abandoning:
            self._abandoned_one.clear()
            await self._abandoned_one.wait()

    # -- upkeep ---------------------------------------------------------------------------------------------------

    async def remove(self, leases: Iterable[Lease], cause: Cause, detail: str) -> tuple[Lease, ...]:
        """Release these very leases (those that still are); attachments that are busy are passed over.

        Raises:
            LedgerUnavailable: nothing was released.
        """
        by_key: dict[AttachmentKey, list[Lease]] = {}
        for lease in leases:
            by_key.setdefault(lease.owner.key, []).append(lease)
        taken = [key for key in by_key if self._turns.try_take(key)]
        return await self._remove_holding(taken, [lease for key in taken for lease in by_key[key]], cause, detail)

    async def restore(self, claims: Iterable[Claimed]) -> None:
        """Give addresses back to owners who have them already, after their leases were lost.

        Since when they have them isn't known, but it was before whatever was asked since this boot began: a DEL that
        was kept, or a GC that was called, meanwhile means these leases too.

        Raises:
            LedgerUnavailable: nothing was restored.
        """
        claims = tuple(replace(claim, owner=with_seen_machine(claim.owner, self._machines)) for claim in claims)
        proposal = self._book.restore(claims, Moment(self._clock.boot, 0.0), self._clock.wall())
        if proposal.changes:
            await self._commits.write(proposal, Write())

    async def suppose_rested(self, networks: Iterable[str]) -> None:
        """Let every address of these networks that nobody holds rest for a cooldown: the ledger that knew is lost.

        Raises:
            LedgerUnavailable: they do, but it is not on disk; to be called again.
        """
        self._supposed += self._book.suppose_rested(networks, self.now(), self._clock.wall())
        if self._supposed:
            await self._store.submit(tuple(self._supposed))
            self._supposed.clear()

    async def upkeep(self) -> None:
        """One round of housekeeping: coalesce long rests, retry what could not be taken back."""
        changes = self._book.housekeeping(self.now())
        if changes:
            # A ledger that refuses this has failed, and is written anew from memory, where it is done already.
            with contextlib.suppress(LedgerUnavailable):
                await self._store.submit(changes)
        for key, undo in self._hearers.undos():
            if not self._hearers.is_due(key, undo):  # an ADD was told of these leases meanwhile
                continue
            with contextlib.suppress(LedgerUnavailable):
                await self.remove(undo.leases, Cause.HANG_UP, undo.call_id)
            # Some are left where the disk refused, or a request is busy with them.
            if not any(self._book.at(lease.owner.network, lease.address) is lease for lease in undo.leases):
                self._hearers.undone(key, undo)

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _picked(self, picker: Picker, ask: Ask) -> Proposal:
        """The proposal of addresses that somebody else picks; what can't be taken here is given back."""
        await self._clock.sleep(0)  # as in `_admission`: whoever waits needs a task
        picked = await picker.pick(ask)
        try:
            ask = replace(ask, owner=picked.owner)
            return self._book.accept(ask, picked.addresses, self.now(), self._clock.wall())
        except BaseException:
            picker.unwanted(ask.owner.container_id, ask.owner.interface, ask.owner.network)
            raise

    async def _undo(self, key: AttachmentKey, leases: tuple[Lease, ...], call_id: str) -> None:
        """Take back, holding the turn, what nobody was told of; now, or (the disk refuses) in the upkeep."""
        undo = self._hearers.to_undo(key, leases, call_id)
        with contextlib.suppress(LedgerUnavailable):
            await self._remove_in_turn(key, undo.leases, Cause.HANG_UP, call_id)
            self._hearers.undone(key, undo)

    async def _remove_in_turn(
        self, key: AttachmentKey, leases: Sequence[Lease], cause: Cause, detail: str
    ) -> tuple[Lease, ...]:
        return await self._remove_holding([key], leases, cause, detail)

    async def _remove_holding(
        self, keys: Sequence[AttachmentKey], leases: Sequence[Lease], cause: Cause, detail: str
    ) -> tuple[Lease, ...]:
        """Remove while holding the turns of `keys`, which are given back when the disk has answered."""

        def give_back() -> None:
            for key in keys:
                self._turns.release(key)

        try:
            removal = self._book.remove(leases, self.now(), self._clock.wall(), cause, detail)
        except BaseException:
            give_back()
            raise
        if not removal.changes:
            give_back()
            return ()
        await self._commits.write(removal, Write(give_back))
        return tuple(change.lease for change in removal.changes)

    async def _abandon(self, key: AttachmentKey, leases: tuple[Lease, ...], write: Write, call_id: str) -> None:
        """The caller hung up while its lease was being written: let that end, then take it back."""
        try:
            await self._take_back(key, leases, write, call_id)
        finally:
            self._abandoning -= 1
            self._abandoned_one.set()

    async def _take_back(self, key: AttachmentKey, leases: tuple[Lease, ...], write: Write, call_id: str) -> None:
        if not write.ended:
            heard = asyncio.Event()
            write.then = heard.set
            await heard.wait()
        if write.error is None:
            await self._undo(key, leases, call_id)
            return
        self._turns.release(key)
        if not isinstance(write.error, LedgerUnavailable):
            raise write.error

    async def _admission(self, network: str) -> None:
        """Wait, with a limit, while the network is known but not yet served here, or nothing is served yet.

        Also while it isn't known, if news of it may be under way (`await_unknown`): what a cluster's controller made a
        moment ago is seen a moment later.
        """
        if not self._not_serving and not self._waits(network):
            return
        await self._clock.sleep(0)  # a call begins in no task (`cni.begun`), and `timeout` wants one
        # When the time is over, the refusal itself says what is missing.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._add_wait):
                while self._not_serving or self._waits(network):
                    await self._plans_changed.wait()

    def _waits(self, network: str) -> bool:
        plan = self._book.plan(network)
        if plan is None:
            return self._await_unknown
        return plan.refusal is not None and plan.refusal.error is NotAdmitted

    def _refuse_new(self, network: str) -> None:
        if self._not_serving:
            raise NotAdmitted(
                f"network {network} gives no new address now: {self._not_serving}; try again shortly",
                reason=Reason.STARTING,
            )

    def _keys_of(self, request: CniRequest) -> list[AttachmentKey]:
        """The attachments that a DEL means: by container ID and interface, in its network or (cut down) in all."""
        container, interface = request.container_id, request.interface
        if request.network is not None:
            keys = {(request.network, container, interface)}
        else:
            keys = {lease.owner.key for lease in self._book.of_container(container, interface)}
        keys.update(self._nameless.of(request.netns, interface))
        return sorted(keys)


def _older(lease: Lease, than: Moment) -> bool:
    """Whether the lease was given before that moment; one of an earlier boot was."""
    age = than.since(lease.since)
    return age is None or age > 0
