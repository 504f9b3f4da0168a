"""When a node wants another block of a network, offers one back, or takes an offer back: decisions alone, no I/O.

Per family, in addresses that could be handed out now (what cools or is reserved could not):

    low water      a quarter of a block, at most 16
    at or below    an offered block is taken back; where there is none another block is wanted
    above twice    nothing is wanted any more, and an empty block may go
    in between     it stays as it is: what was wanted is wanted, what was kept is kept

So neither is done again and again. A block is offered once two looks, at least a minute apart, found it empty, and
only if what is left then is above twice the low water, for else it would be wanted again. A block that gives nothing
because its subnet is closed goes whenever it is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from allotment.addressing.address import Prefix
from allotment.addressing.edges import block_gateway, unusable
from allotment.addressing.intervals import IntervalSet
from allotment.api.ipamconfig import effective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allotment.addressing.address import Family
    from allotment.api.allocation import Allocation
    from allotment.api.network import Network
    from allotment.node.view import View

__all__ = ["EMPTY_FOR", "BlockLook", "Verdict", "Wants", "block_limit", "judge", "typical_size"]

EMPTY_FOR = 60.0
"""Seconds that a block must have been seen empty before it is offered."""
_LOW_MOST = 16


@dataclass(frozen=True, slots=True)
class BlockLook:
    """What is seen of one block of the node, in the order of the Allocation.

    `gives`: it is Confirmed and its subnet is open, so that it gives as long as it is not `offered`. `available` are
    the addresses it could hand out. `empty_for` are the seconds for which it has been seen without lease or cooling
    address, None where it is not empty. `kept` stands for a block that must not go, whatever its use.
    """

    prefix: Prefix
    available: int
    gives: bool = True
    pending: bool = False
    offered: bool = False
    kept: bool = False
    empty_for: float | None = None


@dataclass(frozen=True, slots=True)
class Wants:
    """What is asked of a family. `short` requests wait for an address; `before` is what was wanted until now.

    `size` is how many addresses a further block is expected to have to give. `limit` is how many blocks the node may
    have all in all; 0 where a further one can't be had by asking.
    """

    size: int
    limit: int
    short: int = 0
    before: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """So many `blocks` are wanted all in all (0: there are enough); which to offer, and which offered to take back."""

    blocks: int = 0
    offer: tuple[Prefix, ...] = ()
    take_back: tuple[Prefix, ...] = ()


def judge(blocks: Sequence[BlockLook], wants: Wants) -> Verdict:
    """Decide for the blocks of one family."""
    low = min(_LOW_MOST, (max(1, wants.size) + 2) // 4)
    spare = sum(block.available for block in blocks if block.gives and not block.offered) - wants.short
    spare += sum(wants.size for block in blocks if block.pending)
    back: list[Prefix] = []
    for block in blocks:
        needed = block.gives and spare <= low
        if block.offered and (needed or block.empty_for is None):
            back.append(block.prefix)
            spare += block.available if block.gives else 0
    staying = [block for block in blocks if not block.offered or block.prefix in back]
    wanted = _wanted(len(staying), spare, low, wants)
    if wanted or back or wants.short or not wants.limit:
        return Verdict(wanted, (), tuple(back))
    return Verdict(0, _spared(staying, spare, low), ())


def _wanted(have: int, spare: int, low: int, wants: Wants) -> int:
    """How many blocks are wanted all in all; once wanted, they are until there is twice as much."""
    least = have + _blocks(low + 1 - spare, wants.size)
    most = have + _blocks(2 * low + 1 - spare, wants.size)
    wanted = least if wants.before <= have else min(max(wants.before, least), most)
    wanted = min(wanted, wants.limit)
    return wanted if wanted > have else 0


def _blocks(missing: int, size: int) -> int:
    return -(-max(0, missing) // max(1, size))


def _spared(blocks: Sequence[BlockLook], spare: int, low: int) -> tuple[Prefix, ...]:
    """The blocks that can go, the last ones first."""
    spared: list[Prefix] = []
    giving = sum(block.gives for block in blocks)
    for block in reversed(blocks):
        empty = block.empty_for is not None and block.empty_for >= EMPTY_FOR
        if not empty or block.kept or block.pending:
            continue
        if block.gives:
            if giving == 1 or spare - block.available <= 2 * low:
                continue
            giving -= 1
            spare -= block.available
        spared.append(block.prefix)
    return tuple(spared)


def block_limit(view: View, network: Network, allocation: Allocation, family: Family) -> tuple[int, str]:
    """How many blocks of a family the node may have all in all, and why a further one can't be had (empty: it can).

    0 where nobody hears what is wanted or offered.
    """
    if not view.controlled:
        return 0, "nobody gives blocks here but who writes the Allocation"
    rules = effective(view.config, network)
    if not rules.auto_allocate_blocks:
        return 0, "autoAllocateBlocks is false, so who writes the Allocation has to add one"
    own = [block.prefix for block in allocation.spec.blocks if block.prefix.family is family]
    open_ = [subnet.prefix for subnet in network.spec.subnets if subnet.prefix.family is family and not subnet.closed]
    if not IntervalSet.of(*open_) - IntervalSet.of(*own):
        return len(own), f"this node has all {family} there is; add a subnet to Network {network.name}"
    most = rules.max_blocks
    if len(own) >= most:
        return most, f"a node may have {most} of {family}, by maxBlocksPerNode or the IPAMConfig"
    return most, ""


def typical_size(network: Network, family: Family) -> int:
    """How many addresses a further block of a family has to give: of the smallest kind, where subnets differ."""
    blocks = [
        subnet.prefix if subnet.host_prefix_length is None else _cut(subnet.prefix, subnet.host_prefix_length)
        for subnet in network.spec.subnets
        if subnet.prefix.family is family and not subnet.closed
    ]
    return max(1, min(map(_usable, blocks), default=1))


def _cut(subnet: Prefix, length: int) -> Prefix:
    return Prefix(subnet.family, subnet.value, max(length, subnet.length))


def _usable(block: Prefix) -> int:
    return block.size - unusable(block).count() - (block_gateway(block) is not None)
