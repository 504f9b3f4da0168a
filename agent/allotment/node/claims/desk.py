"""Where an ADD asks for the addresses of an L2 network in a cluster: by Claim, with a limit (ADR 0011)."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from allotment.addressing.address import Address
from allotment.addressing.errors import AddressUnavailable, ConfigError, TryAgain
from allotment.addressing.lease import Moment
from allotment.addressing.plan import Layer
from allotment.kube.backoff import Backoff
from allotment.kube.failures import Conflict, TooManyRequests, Unreachable
from allotment.node.attaching.picker import Picked
from allotment.node.claims.calls import ClaimCalls
from allotment.node.claims.keeper import LEFT, ClaimKeeper, claim_keys
from allotment.node.claims.own import OwnClaims
from allotment.node.claims.wanted import Fit, claim_for, fit, verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from allotment.addressing.book import Ask
    from allotment.addressing.lease import AttachmentKey, Owner
    from allotment.api.claim import Claim
    from allotment.kube.client import Client
    from allotment.kube.objects import Pod
    from allotment.node.claims.parts import ClaimParts
    from allotment.node.view import View
    from allotment.observe.logs import Logger

__all__ = ["ClaimDesk"]

_LOOK: Final = 3.0
"""Seconds of silence after which a Claim is asked for: the watch's line may be dead without anybody knowing yet."""

T = TypeVar("T")


class _Call:
    """One ADD that waits: what for, and whether a DEL called it off."""

    def __init__(self) -> None:
        self.limit: asyncio.Timeout | None = None
        self.why = "the API server has not answered yet"
        self.off = False


class ClaimDesk:
    """The `Picker` of a cluster's L2 networks, and the upkeep of their Claims (`run`).

    `pod` looks for one of this node's pods by namespace and name.
    """

    def __init__(self, client: Client, pod: Callable[[str, str], Pod | None], parts: ClaimParts, log: Logger) -> None:
        self._calls = ClaimCalls(client, pod)
        self._book = parts.book
        self._clock = parts.clock
        self._node = parts.node
        self._ledger_id = parts.ledger_id
        self._limit = parts.limit
        self._pending: dict[AttachmentKey, _Call] = {}
        self._own = OwnClaims(client, parts.node, parts.clock, log, self._changed)
        self._keeper = ClaimKeeper(self._calls, self._own, parts, log)
        self._seconds = parts.metrics.spread("claim_seconds")
        parts.metrics.read("claims", self._counts)

    async def run(self) -> None:
        """Watch and keep the Claims; never returns."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._own.run())
            group.create_task(self._keeper.run())

    def take(self, view: View) -> None:
        """A new View: whether this node has to do with L2 networks at all."""
        markers = any(each.spec.type is Layer.L2 for each in view.allocations.values())
        self._own.want(wanted=markers)
        self._keeper.wake()

    def poke(self) -> None:
        """Leases changed. Costs nothing on a node without Claims."""
        if self._own.watching and self._own.items:
            self._keeper.wake()

    # -- the Picker

    async def pick(self, ask: Ask) -> Picked:
        """See `Picker.pick`: the addresses that the controller gives this attachment, by one Claim for each family.

        Raises:
            Exhausted, AddressUnavailable, NetworkDraining: the controller's refusal.
            ConfigError: the namespace is being deleted, or the API server refuses the Claim.
            TryAgain: no answer within the limit, a DEL of this attachment came meanwhile, or another pod of the same
                VM has the address on this node.
        """
        key = ask.owner.key
        keys = claim_keys(key)
        began = self._clock.seconds()
        self._keeper.leave(keys, self._limit + LEFT)
        call = _Call()
        try:
            async with asyncio.timeout(self._limit) as call.limit:
                self._pending[key] = call
                try:
                    picked = await self._obtain(ask, call)
                finally:
                    del self._pending[key]
        except TimeoutError:
            raise TryAgain(
                f"a DEL of container {ask.owner.container_id} came while its address was waited for"
                if call.off
                else f"network {ask.owner.network} gave no address on {self._node} within {self._limit:g} s: {call.why}"
            ) from None
        except (AddressUnavailable, ConfigError):
            self.unwanted(ask.owner.container_id, ask.owner.interface, ask.owner.network)  # no retry can help
            raise
        self._seconds.observe(self._clock.seconds() - began)
        return picked

    def kept(self, key: AttachmentKey) -> None:
        """See `Picker.kept`."""
        self._keeper.kept(claim_keys(key))

    def role(self, claim: str) -> str:
        """What the Claim `namespace/name` is to its VM's address, Active or Standby; empty if that isn't known."""
        found = self._own.items.get(claim)
        return "" if found is None else found.status.role or ""

    def unwanted(self, container_id: str, interface: str, network: str | None) -> None:
        """See `Picker.unwanted`."""
        for key, call in self._pending.items():
            if key[1:] == (container_id, interface) and network in {None, key[0]} and call.limit is not None:
                call.off = True
                call.limit.reschedule(asyncio.get_running_loop().time())
        self._keeper.end(container_id, interface, network)

    # -- inside

    async def _obtain(self, ask: Ask, call: _Call) -> Picked:
        owner = ask.owner
        wanted = self._book.to_claim(ask, self._now())
        claim_for(owner, wanted[0][0], None, node=self._node, ledger_id=self._ledger_id, pod=None)  # names a pod
        uid = owner.pod_uid
        pod, vm = await self._patiently(call, lambda: self._calls.owner(owner.pod_namespace, owner.pod_name, uid))
        if vm:
            owner = replace(owner, vm=vm)
            wanted = self._book.to_claim(replace(ask, owner=owner), self._now())
        claims = [
            await self._have(
                claim_for(owner, family, address, node=self._node, ledger_id=self._ledger_id, pod=pod), call
            )
            for family, address in wanted
        ]
        return Picked(owner, [await self._address(claim, owner, call) for claim in claims])

    def _now(self) -> Moment:
        return Moment(self._clock.boot, self._clock.seconds())

    async def _have(self, wanted: Claim, call: _Call) -> Claim:
        """The Claim, made now or by an earlier try."""
        backoff = Backoff(self._clock, 0.02, 1.0)
        while True:
            await self._keeper.idle(wanted)
            found = await self._patiently(call, lambda: self._calls.create(wanted))
            if found is None:
                found = await self._patiently(call, lambda: self._calls.read(wanted))
            match None if found is None else fit(found, wanted):
                case Fit.OURS:
                    assert found is not None  # noqa: S101  # it fits
                    return found
                case Fit.FOREIGN:
                    raise ConfigError(
                        f"Claim {wanted.metadata.namespace}/{wanted.name} is there and is not this pod's; delete it"
                    )
                case Fit.PAST:
                    call.why = f"an earlier Claim {wanted.metadata.namespace}/{wanted.name} has to go first"
                    with contextlib.suppress(Conflict):
                        await self._end(found, call)
            await backoff.pause()

    async def _end(self, past: Claim | None, call: _Call) -> None:
        if past is None:
            return
        if not past.metadata.deleting:
            await self._patiently(call, lambda: self._calls.delete(past))
            return  # read again, in the state that it is in now
        await self._patiently(call, lambda: self._calls.let_go(past))

    async def _address(self, claim: Claim, owner: Owner, call: _Call) -> Address:
        """Wait for the controller's word on a Claim: by the watch, or by asking where the watch is silent."""
        while True:
            found = verdict(claim, owner.network, self._node)
            if isinstance(found, Address):
                return found
            call.why = found
            claim = await self._newer(claim, call)

    async def _newer(self, claim: Claim, call: _Call) -> Claim:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK):
                return await self._own.newer(claim)
        now = await self._patiently(call, lambda: self._calls.read(claim))
        if now is None or now.metadata.uid != claim.metadata.uid:
            raise TryAgain(f"Claim {claim.metadata.namespace}/{claim.name} was taken away while it waited; try again")
        return now

    async def _patiently(self, call: _Call, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer: a short outage costs an ADD some time, and no more (I11)."""
        backoff = Backoff(self._clock, 0.1, 2.0)
        while True:
            try:
                return await ask()
            except (Unreachable, TooManyRequests) as failure:
                call.why = failure.message
                await backoff.pause(failure.retry_after)

    def _changed(self) -> None:
        self._keeper.wake()

    def _counts(self) -> tuple[tuple[tuple[str, ...], float], ...]:
        last, there = self._keeper.last, len(self._own.items)
        held, left = len(last.held), last.left
        return (("held",), float(held)), (("left",), float(left)), (("owed",), float(max(0, there - held - left)))
