"""Which addresses an attachment gets: those it asks for, the next ones for the rest, all families or none.

Of a claimed network somebody else picks: `to_claim` says what is to be asked for, `take_claimed` takes what came.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from allotment.addressing.address import Address, Family, Prefix
from allotment.addressing.errors import AddressUnavailable, ConfigError, Exhausted
from allotment.addressing.reasons import Reason
from allotment.addressing.state import StateKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allotment.addressing.block import BlockSpace
    from allotment.addressing.holdings import Holdings
    from allotment.addressing.idle import Idle
    from allotment.addressing.lease import Lease

__all__ = ["Choice", "choose", "take_claimed", "to_claim"]


class Choice(NamedTuple):
    """An address taken from its block, and the rest it was taken from (None: never used).

    `over` is the lease that kept it for its virtual machine: then it was taken all the time.
    """

    address: Address
    block: Prefix
    idle: Idle | None
    over: Lease | None = None


def choose(
    holdings: Holdings,
    requested: tuple[Address, ...],
    seconds: float,
    *,
    one_block: bool,
    node: str,
    kept: Sequence[Lease] = (),
) -> list[Choice]:
    """Take one address of every family that the network's plan has a block for, IPv4 first.

    `kept` are those that are kept for whom they are taken: they go before all others, as long as they may be given.

    Raises:
        ConfigError: two addresses of one family are asked for.
        AddressUnavailable: an address asked for can't be had.
        Exhausted: a family has nothing left to give.
    """
    wanted = _wanted(holdings, requested)
    if not wanted:
        raise _no_block(holdings, node)
    choices: list[Choice] = []
    complete = False
    try:
        for family, request in wanted:
            only = _only_block(holdings, family) if one_block else None
            resumed = _resume(holdings, family, request, only, kept)
            if resumed is not None:
                choices.append(resumed)
            elif request is None:
                choices.append(_take_next(holdings, family, seconds, only, node))
            else:
                choices.append(_take_this(holdings, request, seconds, only, node))
        complete = True
    finally:
        if not complete:
            for choice in reversed(choices):
                if choice.over is None:
                    holdings.put_back(choice.address, choice.idle)
    if requested:
        choices.sort(key=lambda choice: choice.address)
    return choices


def to_claim(
    holdings: Holdings, requested: tuple[Address, ...], seconds: float, *, node: str
) -> list[tuple[Family, Address | None]]:
    """The families that are to be claimed, IPv4 first, each with the address asked for.

    Raises:
        ConfigError: two addresses of one family are asked for.
        AddressUnavailable: an address asked for can't be had, as far as this node can say.
    """
    wanted = sorted(_wanted(holdings, requested), key=lambda each: each[0])
    for _, address in wanted:
        state = None if address is None else holdings.state(address, seconds, node)
        # What rested here may have rested long enough: that is for who picks to say.
        if state is not None and state.kind not in {StateKind.CLAIMED, StateKind.COOLING}:
            raise AddressUnavailable(f"{state}; ask for another address, or for none to be given the next free one")
    return wanted


def take_claimed(
    holdings: Holdings, addresses: tuple[Address, ...], seconds: float, *, one_block: bool, node: str
) -> list[Choice]:
    """Take the addresses that somebody else picked, whether they have rested here or not.

    Raises:
        AddressUnavailable: one can't be had here; the message says why.
    """
    choices: list[Choice] = []
    complete = False
    try:
        for address in addresses:
            space = holdings.space_of(address)
            only = _only_block(holdings, address.family) if one_block else None
            if only is not None and space is not None and only.label != space.prefix:
                raise AddressUnavailable(
                    f"network {holdings.name} gave {address} of {space.prefix}, but {only.label} is in use on {node} "
                    "under the bridge plugin, which takes one gateway"
                )
            taken = None if space is None else space.take_this(address.value, math.inf)
            if space is None or taken is None:
                state = holdings.state(address, seconds, node)
                raise AddressUnavailable(f"network {holdings.name} gave {address} by Claim, but {state}")
            choices.append(Choice(address, space.prefix, taken[1]))
        complete = True
    finally:
        if not complete:
            for choice in reversed(choices):
                holdings.put_back(choice.address, choice.idle)
    return choices


def _wanted(holdings: Holdings, requested: tuple[Address, ...]) -> list[tuple[Family, Address | None]]:
    """The families to give, with the address asked for; these come first, being the likelier ones to be refused."""
    asked: dict[Family, Address] = {}
    for address in requested:
        other = asked.setdefault(address.family, address)
        if other is not address:
            raise ConfigError(
                f"both {other} and {address} are asked for in network {holdings.name}; "
                f"an attachment gets one {address.family} address"
            )
    return [*asked.items(), *((family, None) for family in holdings.supplies if family not in asked)]


class _Only(NamedTuple):
    """The one block that may be used, where one must: `block` None when that one can't give any more."""

    block: BlockSpace | None
    label: Prefix


def _only_block(holdings: Holdings, family: Family) -> _Only | None:
    """The block that the network's leases of this family are in; None as long as there are none."""
    labels = [label for label in holdings.labels if label.family is family]
    if not labels:
        return None
    supply = holdings.supplies.get(family)
    for block in supply.blocks if supply is not None else ():
        if block.prefix in labels:
            return _Only(block, block.prefix)
    return _Only(None, labels[0])


def _resume(
    holdings: Holdings, family: Family, request: Address | None, only: _Only | None, kept: Sequence[Lease]
) -> Choice | None:
    """The address that was kept; None if there is none, or another one is asked for."""
    for lease in kept:
        block = holdings.may_keep(lease.address) if lease.address.family is family else None
        if block is not None and request in {None, lease.address} and (only is None or only.label == block):
            return Choice(lease.address, block, None, lease)
    return None


def _take_this(holdings: Holdings, address: Address, seconds: float, only: _Only | None, node: str) -> Choice:
    state = holdings.state(address, seconds, node)
    if not state.available or state.block is None:
        raise AddressUnavailable(f"{state}; ask for another address, or for none to be given the next free one")
    if only is not None and only.label != state.block:
        raise AddressUnavailable(
            f"{address} lies in block {state.block}, but network {holdings.name} already uses block {only.label} "
            "under the bridge plugin, which takes one gateway; ask for an address of that block"
        )
    taken = holdings.spaces[state.block].take_this(address.value, seconds - holdings.cooldown)
    if taken is None:
        raise AddressUnavailable(f"{address} in network {holdings.name} can't be had now; ask again")
    return Choice(address, holdings.spaces[state.block].prefix, taken[1])


def _take_next(holdings: Holdings, family: Family, seconds: float, only: _Only | None, node: str) -> Choice:
    since = seconds - holdings.cooldown
    if only is None:
        found = holdings.supplies[family].take(since)
    else:
        taken = None if only.block is None else only.block.take(since)
        found = None if only.block is None or taken is None else (only.block, taken)
    if found is None:
        helps = () if only is not None else (family,)
        raise Exhausted(_exhausted(holdings, family, seconds, only, node), families=helps)
    block, (number, idle) = found
    return Choice(Address(family, number), block.prefix, idle)


def _no_block(holdings: Holdings, node: str) -> Exhausted:
    none = f"no IP addresses available in network {holdings.name} on {node}"
    pending = holdings.plan.pending if holdings.plan is not None else ()
    subnets = holdings.plan.subnets if holdings.plan is not None else ()
    families = tuple(sorted({subnet.family for subnet in subnets}))
    if pending:
        named = ", ".join(str(prefix) for prefix in pending)
        return Exhausted(
            f"{none}: 0 of {len(pending)} blocks; the controller has cut {named} for it and not confirmed it yet",
            reason=Reason.NOT_CONFIRMED,
            families=families,
        )
    return Exhausted(f"{none}: 0 of 0 blocks{_no_more(holdings, None)}", reason=Reason.NO_BLOCK, families=families)


def _exhausted(holdings: Holdings, family: Family, seconds: float, only: _Only | None, node: str) -> str:
    """The message of exhaustion: with the numbers a person needs to see what would help."""
    since = seconds - holdings.cooldown
    giving = holdings.supplies[family].blocks
    if only is not None:
        giving = () if only.block is None else (only.block,)
    cooling = sum(block.cooling(since) for block in giving)
    if only is None:
        next_rested = holdings.supplies[family].next_rested()
    else:
        oldest = None if only.block is None else only.block.oldest()
        next_rested = None if oldest is None else oldest.seconds
    in_use = sum(block.taken for block in giving)
    usable = sum(holdings.usable(block.prefix) for block in giving)
    reserved = usable - sum(block.prefix.size - block.blocked for block in giving)
    withheld = f", {reserved} reserved or excluded" if reserved else ""
    soon = "" if next_rested is None else f" (next in {max(1, math.ceil(next_rested - since))} s)"
    total = sum(prefix.family is family for prefix in holdings.blocks)
    of_family = f"{family}: " if len(holdings.supplies) > 1 else ""
    return (
        f"no IP addresses available in network {holdings.name} on {node}: {of_family}{in_use} of {usable} in use, "
        f"{cooling} cooling{soon}{withheld}, {len(giving)} of {total} blocks{_no_more(holdings, only)}"
    )


def _no_more(holdings: Holdings, only: _Only | None) -> str:
    if only is not None:
        return (
            f"; no further block: under the bridge plugin, which takes one gateway, network {holdings.name} "
            f"keeps to block {only.label}"
        )
    reason = holdings.plan.no_more if holdings.plan is not None else ""
    return f"; no further block: {reason}" if reason else ""
