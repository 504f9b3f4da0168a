"""Keeps this node's Claims in step with its leases: what has no lease goes, what lost its Claim gets one again.

What is due is decided in `owed`, from what is there; here it is done. Each step is small and guarded by what was read,
so that it may fail, be lost or be done twice: the next look at what is there says what is still due.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from allotment.addressing.address import Family, parse_address
from allotment.addressing.book import Claimed
from allotment.addressing.errors import AddressUnavailable, AllotmentError
from allotment.addressing.lease import LeaseKind, Moment, Owner
from allotment.api.names import pool_name
from allotment.kube.failures import Conflict
from allotment.kube.resources import key_of
from allotment.node.claims.owed import Due, Known, Owed, Step, owed
from allotment.node.claims.wanted import claim_for, key_of_claim, key_of_lease

if TYPE_CHECKING:
    from collections.abc import Iterable

    from allotment.addressing.lease import AttachmentKey
    from allotment.api.claim import Claim
    from allotment.node.claims.calls import ClaimCalls
    from allotment.node.claims.own import OwnClaims
    from allotment.node.claims.parts import ClaimParts
    from allotment.node.claims.wanted import ClaimKey
    from allotment.observe.logs import Logger

__all__ = ["LEFT", "ClaimKeeper", "claim_keys"]

LEFT: Final = 30.0
"""Seconds that what a failed ADD left is kept for a retry: longer than the shim tries by itself."""
_RETRY: Final = 2.0
_AGAIN: Final = 60.0
"""Seconds until a lease's Claim that could not be made again is tried again."""
_AT_ONCE: Final = 8
_TOGETHER: Final = 0.01


def claim_keys(key: AttachmentKey) -> tuple[ClaimKey, ...]:
    """What an attachment may have Claims for."""
    network, container_id, interface = key
    return tuple((pool_name(network, family), container_id, interface) for family in Family)


class ClaimKeeper:
    """See the module's text. While `parts.waits` says that the leases aren't all known, nothing is done."""

    def __init__(self, calls: ClaimCalls, own: OwnClaims, parts: ClaimParts, log: Logger) -> None:
        self._calls = calls
        self._own = own
        self._book = parts.book
        self._attachments = parts.attachments
        self._clock = parts.clock
        self._log = log
        self._node = parts.node
        self._ledger_id = parts.ledger_id
        self._waits = parts.waits
        self._wake = asyncio.Event()
        self._left: dict[ClaimKey, float] = {}
        self._ended: set[ClaimKey] = set()
        self._acting: dict[str, asyncio.Event] = {}
        self._postponed: dict[str, float] = {}
        self._done: dict[str, tuple[Step, str]] = {}  # what was done to which resourceVersion
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._seen_once = False
        self._paused_until = 0.0
        self.last = Owed()

    # -- what others tell

    def wake(self) -> None:
        """Something changed: look soon."""
        self._wake.set()

    def leave(self, keys: Iterable[ClaimKey], seconds: float) -> None:
        """Keep these for a retry for so long, though they have no lease."""
        until = self._clock.seconds() + seconds
        for key in keys:
            self._left[key] = until
            self._ended.discard(key)

    def kept(self, keys: Iterable[ClaimKey]) -> None:
        """These have leases now, and go when the leases do."""
        for key in keys:
            self._left.pop(key, None)

    def end(self, container_id: str, interface: str, network: str | None) -> None:
        """Nothing of this attachment is wanted any more."""
        pools = None if network is None else {pool_name(network, family) for family in Family}
        for claim in self._own.items.values():
            key = key_of_claim(claim)
            if key is not None and key[1:] == (container_id, interface) and (pools is None or key[0] in pools):
                self._ended.add(key)
        for key in [key for key in self._left if key[1:] == (container_id, interface)]:
            if pools is None or key[0] in pools:
                self._ended.add(key)
                del self._left[key]
        self._wake.set()

    async def idle(self, claim: Claim) -> None:
        """Return once nothing that was decided here is under way to the Claim of this name."""
        name = key_of(claim.metadata.namespace, claim.name)
        while (acting := self._acting.get(name)) is not None:
            await acting.wait()

    # -- the work

    async def run(self) -> None:
        """Look at each change, and do what is due; never returns."""
        async with asyncio.TaskGroup() as group:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.last.again):
                        await self._wake.wait()
                await self._clock.sleep(_TOGETHER)  # what comes in the same moment is looked at in one round
                self._wake.clear()
                if self._waits():
                    asyncio.get_running_loop().call_later(_RETRY, self._wake.set)
                elif self._own.synced:
                    self._look(group)

    def _look(self, group: asyncio.TaskGroup) -> None:
        now = self._clock.seconds()
        if not self._seen_once:
            # Whatever an agent before us began may be tried again once more.
            self._seen_once = True
            keys = [key for claim in self._own.items.values() if (key := key_of_claim(claim)) is not None]
            self.leave((key for key in keys if key not in self._left and key not in self._ended), LEFT)
        self.last = owed(self._known(now))
        self._left = {k: until for k, until in self._left.items() if until > now and k not in self.last.held}
        self._ended &= {key_of_claim(claim) for claim in self._own.items.values()}
        self._done = {place: done for place, done in self._done.items() if place in self._own.items}
        self._postponed = {place: until for place, until in self._postponed.items() if until > now}
        for due in self.last.due:
            place = self._place(due)
            if place in self._acting or now < max(self._paused_until, self._postponed.get(place, 0.0)):
                continue
            if due.claim is not None and self._done.get(place) == (due.step, due.claim.metadata.resource_version):
                continue  # the watch has yet to show what was done
            self._acting[place] = asyncio.Event()
            group.create_task(self._do(due, place))

    def _known(self, now: float) -> Known:
        plans = filter(None, map(self._book.plan, self._book.networks()))
        networks = [plan.name for plan in plans if plan.claimed and plan.blocks]
        return Known(
            ledger_id=self._ledger_id,
            now=Moment(self._clock.boot, now),
            claims=self._own.items.values(),
            leases_of=self._book.of_container,
            claimed=[
                lease for name in networks for lease in self._book.leases(name) if lease.owner.kind is LeaseKind.POD
            ],
            networks={pool_name(name, family): name for name in networks for family in Family},
            busy={key for each in self._attachments.busy() for key in claim_keys(each)},
            left=self._left,
            ended=self._ended,
        )

    def _place(self, due: Due) -> str:
        if due.claim is not None:
            return key_of(due.claim.metadata.namespace, due.claim.name)
        claim = self._again(due)
        return key_of(claim.metadata.namespace, claim.name)

    async def _do(self, due: Due, place: str) -> None:
        try:
            async with self._slots:
                if self._still(due):
                    await self._step(due)
                    if due.claim is not None:
                        self._done[place] = (due.step, due.claim.metadata.resource_version)
        except Conflict:
            asyncio.get_running_loop().call_later(_RETRY, self._wake.set)  # the watch will show what changed
        except AllotmentError as error:
            self._log.warning("claim not kept", claim=place, step=due.step.name, error=error.message)
            if error.retryable:  # the API server is away, for all of them
                self._paused_until = self._clock.seconds() + _RETRY
                asyncio.get_running_loop().call_later(_RETRY, self._wake.set)
            else:
                self._postpone(place)
        finally:
            self._acting.pop(place).set()
            self._wake.set()  # the watch may have told of what comes next before the answer was here

    def _postpone(self, place: str) -> None:
        self._postponed[place] = self._clock.seconds() + _AGAIN
        asyncio.get_running_loop().call_later(_AGAIN, self._wake.set)

    def _still(self, due: Due) -> bool:
        """Whether no request has come meanwhile that changes it."""
        if due.lease is not None:
            return self._book.at(due.lease.owner.network, due.lease.address) is due.lease
        key = due.claim and key_of_claim(due.claim)
        if not key:
            return False
        if due.step is Step.STAMP:
            return True
        busy = {each for attachment in self._attachments.busy() for each in claim_keys(attachment)}
        leases = self._book.of_container(key[1], key[2])
        return key not in busy and not any(key_of_lease(lease) == key for lease in leases)

    async def _step(self, due: Due) -> None:
        claim = due.claim
        if claim is None:
            self._postpone(self._place(due))  # whatever comes of it, it is seen in the watch first
            made = await self._calls.create(self._again(due))
            if made is not None:
                self._log.warning("claim made again", claim=made.name, address=made.spec.value)
            return
        match due.step:
            case Step.DELETE:
                await self._calls.delete(claim)
            case Step.LET_GO:
                await self._calls.let_go(claim)
                self._log.info("claim released", claim=claim.name, address=claim.status.value)
            case Step.STAMP:
                await self._calls.stamp(claim, self._ledger_id)
            case Step.ADOPT:
                await self._adopt(claim)

    async def _adopt(self, claim: Claim) -> None:
        key, pod = key_of_claim(claim), claim.spec.pod
        if key is None or pod is None:
            return
        owner = Owner(
            network=self._known(self._clock.seconds()).networks[key[0]],
            container_id=pod.container_id,
            interface=pod.interface,
            pod_namespace=claim.metadata.namespace,
            pod_name=pod.name,
            pod_uid=pod.uid,
            vm=claim.spec.vm or "",
        )
        await self._attachments.restore([Claimed(owner, parse_address(claim.status.value))])
        if not self._book.find(owner.key):
            raise AddressUnavailable(f"{claim.status.value} can't be leased again: it is somebody else's here")
        self._ended.add(key)  # once: from here on this ledger knows, whether that is written on the Claim yet or not
        self._log.warning("lease made again from its claim", claim=claim.name, address=claim.status.value)

    def _again(self, due: Due) -> Claim:
        """The Claim that a lease should have. It has no owner: the agent ends it with the lease."""
        lease = due.lease
        if lease is None:
            raise AssertionError(due)
        return claim_for(
            lease.owner, lease.address.family, lease.address, node=self._node, ledger_id=self._ledger_id, pod=None
        )
