"""What this node says of a network's blocks in its Allocation's status: how many it wants, and which it offers back.

An offer takes these steps, and a crash between any two of them is made good by doing the next:

    empty for a minute  ──▶ closed in the ledger ──▶ in `relinquished` ──▶ out of spec ──▶ forgotten by the ledger
                                                            │
                                needed after all            └──▶ out of `relinquished` ──▶ open in the ledger

The controller takes a block only while `relinquished` names it, and by the resourceVersion; the agent takes the offer
back by the resourceVersion too. So exactly one of them wins. An offer is taken back only from an Allocation that shows
it: a write that changes something moves the resourceVersion on, and what was written before, and is still under way,
comes too late.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from allotment.addressing.address import Family
from allotment.addressing.lease import Moment
from allotment.addressing.plan import Layer
from allotment.addressing.utilization import of_block
from allotment.api.allocation import WantBlocks
from allotment.api.meta import NODE_FINALIZER
from allotment.node.growth import BlockLook, Wants, block_limit, judge, typical_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.address import Prefix
    from allotment.addressing.book import LeaseBook
    from allotment.addressing.utilization import Use
    from allotment.api.allocation import Allocation, Block
    from allotment.api.network import Network
    from allotment.node.growth import Verdict
    from allotment.node.offers import Offers
    from allotment.node.view import View
    from allotment.observe.clock import Clock

__all__ = ["BlockKeeper", "Said"]


@dataclass(frozen=True, slots=True)
class Said:
    """What the status is to say. `taken_back` are open again once it is written."""

    want: WantBlocks | None = None
    relinquished: tuple[str, ...] = ()
    taken_back: tuple[str, ...] = ()


class BlockKeeper:
    """Decides what is said of blocks, and keeps the ledger one step ahead of it.

    `short` says how many requests wait for an address of each family of a network; `on_disk` which blocks of a network
    the objects that the node would start from say are its own.
    """

    def __init__(
        self,
        book: LeaseBook,
        clock: Clock,
        offers: Offers,
        log: FilteringBoundLogger,
        *,
        short: Callable[[str], Mapping[Family, int]],
        on_disk: Callable[[str], frozenset[str]],
    ) -> None:
        self._book = book
        self._clock = clock
        self._offers = offers
        self._log = log
        self._short = short
        self._on_disk = on_disk
        self._empty: dict[tuple[str, Prefix], float] = {}  # since which look

    async def look(self, allocation: Allocation, view: View, *, draining: bool) -> Said:
        """What is to be said now. What is newly offered is closed on disk when this returns.

        Raises:
            LedgerUnavailable: not all of it can be written now.
        """
        before = allocation.status
        name = allocation.spec.network
        network = view.networks.get(name)
        if not view.controlled or view.doubted or not view.synced or allocation.spec.type is Layer.L2:
            return Said(before.want_blocks, before.relinquished)
        await self._forget_taken(name, {block.cidr for block in allocation.spec.blocks})
        for block in allocation.spec.blocks:
            if block.cidr in before.relinquished:  # by a ledger before this one
                await self._offers.close(name, block.cidr)
        if draining or network is None or NODE_FINALIZER not in allocation.metadata.finalizers:
            return Said(None, self._offered(allocation))
        verdicts = {family: self._judge(family, allocation, network, view) for family in Family}
        for verdict in verdicts.values():
            for prefix in verdict.offer:
                if await self._offers.close(name, str(prefix), partial(self._is_empty, name, prefix)):
                    self._log.info("block offered back", network=name, block=str(prefix))
        wanted = WantBlocks(verdicts[Family.V4].blocks, verdicts[Family.V6].blocks)
        back = {str(prefix) for verdict in verdicts.values() for prefix in verdict.take_back}
        back &= {*before.relinquished}
        return Said(
            wanted if wanted != WantBlocks() else None,
            tuple(cidr for cidr in self._offered(allocation) if cidr not in back),
            tuple(sorted(back)),
        )

    async def written(self, allocation: Allocation, said: Said) -> None:
        """The status says so: what was taken back gives again.

        Raises:
            LedgerUnavailable: the ledger can't be written now; the block stays closed, and is offered again.
        """
        for cidr in said.taken_back:
            await self._offers.open(allocation.spec.network, cidr)
            self._log.info("block taken back", network=allocation.spec.network, block=cidr)

    async def sweep(self, view: View) -> None:
        """Forget the offers of networks that this node has no Allocation of any more.

        Raises:
            LedgerUnavailable: not all of it can be written now.
        """
        if view.synced and not view.doubted:
            for network in {network for network, _ in self._offers.closed} - view.allocations.keys():
                await self._forget_taken(network, set())

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _forget_taken(self, network: str, own: set[str]) -> None:
        gone = self._offers.of(network) - own
        # What an agent would start from without the API server must not say that the block is ours and gives.
        for cidr in sorted(gone - self._on_disk(network) if gone else ()):
            await self._offers.open(network, cidr)
            self._log.info("block given back", network=network, block=cidr)

    def _offered(self, allocation: Allocation) -> tuple[str, ...]:
        closed = self._offers.of(allocation.spec.network)
        return tuple(block.cidr for block in allocation.spec.blocks if block.cidr in closed)

    def _judge(self, family: Family, allocation: Allocation, network: Network, view: View) -> Verdict:
        name = network.name
        now = self._now()
        use = self._book.use(name, now)
        own = [block for block in allocation.spec.blocks if block.prefix.family is family]
        if not own and not any(subnet.prefix.family is family for subnet in network.spec.subnets):
            return judge((), Wants(1, 0))
        looks = [self._look_at(block, network, use, now, first=block is own[0]) for block in own]
        limit, _ = block_limit(view, network, allocation, family)
        before = allocation.status.want_blocks or WantBlocks()
        wants = Wants(
            typical_size(network, family),
            0 if allocation.spec.closed else limit,
            self._short(name).get(family, 0),
            before.v4 if family is Family.V4 else before.v6,
        )
        return judge(looks, wants)

    def _look_at(self, block: Block, network: Network, use: Use, now: Moment, *, first: bool) -> BlockLook:
        prefix = block.prefix
        key = (network.name, prefix)
        confirmed = block.state == "Confirmed"
        if confirmed and self._book.is_empty(network.name, prefix, now):
            since = self._empty.setdefault(key, now.seconds)
        else:
            since = None
            self._empty.pop(key, None)
        return BlockLook(
            prefix,
            of_block(use, prefix).available if confirmed else 0,
            gives=confirmed and not any(prefix in subnet.prefix for subnet in network.spec.subnets if subnet.closed),
            pending=not confirmed,
            offered=block.cidr in self._offers.of(network.name),
            kept=first and network.spec.node_pod_cidrs != "Ignore",  # the node's podCIDR can't be changed
            empty_for=None if since is None else now.seconds - since,
        )

    def _is_empty(self, network: str, prefix: Prefix) -> bool:
        return self._book.is_empty(network, prefix, self._now())

    def _now(self) -> Moment:
        return Moment(self._clock.boot, self._clock.seconds())
