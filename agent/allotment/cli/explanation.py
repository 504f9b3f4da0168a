"""The sentences of `allotment explain`: from facts to words. Pure, but for the two looks that are passed in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from allotment.addressing.state import StateKind
from allotment.cli.history import REASONS
from allotment.cli.times import ago, local, span
from allotment.node.inquiries.reports import Phase, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from allotment.node.inquiries.kept import KeptDel
    from allotment.node.inquiries.reports import AddressFacts, HistoryEntry, LeaseReport

__all__ = ["address_sentences", "as_sentence", "past_sentence"]


def address_sentences(
    facts: AddressFacts, now: datetime, *, kept: Sequence[KeptDel], gone: Callable[[str], bool | None]
) -> list[str]:
    """What is to be said of one address in one network, the answer first.

    `kept` are the DELs in the spool; `gone` looks whether a network namespace is gone.
    """
    return list(_sentences(facts, now, kept, gone))


def past_sentence(entry: HistoryEntry, now: datetime, *, named: Subject) -> str:
    """One lease that ended (or not), without what `named` says already."""
    if named is Subject.ADDRESS:
        head = f"{_holder(entry)}, network {entry.network}"
    else:
        head = f"{entry.address} in network {entry.network}"
        if named is Subject.POD:
            head += f", container {entry.container[:12]}"
    if entry.ended is None:
        return f"{head}, since {local(entry.given)}"
    return f"{head}, from {local(entry.given)} to {local(entry.ended.at)}: {_end(entry)}"


def as_sentence(text: str) -> str:
    """With a capital, where a word begins it, and a full stop, where nothing ends it."""
    word = text.partition(" ")[0]
    head = text[:1].upper() + text[1:] if word.isalpha() else text
    return head if head.endswith((".", "?", "!")) else f"{head}."


def _sentences(
    facts: AddressFacts, now: datetime, kept: Sequence[KeptDel], gone: Callable[[str], bool | None]
) -> Iterator[str]:
    if facts.lease is not None and facts.state in (StateKind.LEASED, StateKind.BEING_GIVEN):
        yield from _leased(facts, facts.lease, now)
        yield from (f"It would not be given again: {reason}." for reason in facts.held_back)
        yield from _freed_by(facts.lease, kept, gone)
    else:
        yield _state(facts, now)
        yield from (f"It is never given by itself: {reason}." for reason in facts.held_back)
        if facts.state is StateKind.COOLING and facts.cooling_left is not None:
            yield (
                f"Its cooldown of {facts.cooldown:g} s ends in {math.ceil(facts.cooling_left)} s; "
                "never-used addresses go before it even then."
            )
        if facts.block and not facts.held_back:
            yield f"It lies in block {facts.block}{_subnet(facts)}."
        yield from _before(facts, now)
    if facts.phase is not None and facts.phase is not Phase.SERVING and facts.phase_reason:
        yield as_sentence(facts.phase_reason)


def _leased(facts: AddressFacts, lease: LeaseReport, now: datetime) -> Iterator[str]:
    if lease.kind == "vm":
        yield from _kept(facts, lease, now)
        return
    holder = _who(lease.pod_namespace, lease.pod, lease.container)
    verb = "is just being given to" if facts.state is StateKind.BEING_GIVEN else "is held by"
    yield f"{facts.address} {verb} {holder} in network {facts.network}."
    yield f"It was given at {local(lease.given)} ({ago(lease.given, now)}), as lease {lease.sequence}."
    asked = f"It was asked for by container {lease.container} for its interface {lease.interface}"
    if lease.conf_name:
        asked += f", under the CNI configuration {lease.conf_name}"
    yield f"{asked}."
    if lease.netns:
        yield f"Its network namespace is {lease.netns}."
    whose = "" if facts.block else ", which is no longer this node's"
    yield f"It comes from block {lease.block}{_subnet(facts)}{whose}."
    if lease.vm:
        yield from _of_machine(facts, lease)
    if facts.claim:
        yield f"The controller keeps it for Claim {facts.claim}."


def _kept(facts: AddressFacts, lease: LeaseReport, now: datetime) -> Iterator[str]:
    machine = f"virtual machine {lease.pod_namespace}/{lease.vm}"
    yield f"{facts.address} is kept for {machine} in network {facts.network}; no pod runs it here now."
    yield f"It is kept since {local(lease.given)} ({ago(lease.given, now)}), as lease {lease.sequence}."
    yield f"The machine's next pod on this node gets it, for its interface {lease.interface}."
    yield f"It comes from block {lease.block}{_subnet(facts)}."


def _of_machine(facts: AddressFacts, lease: LeaseReport) -> Iterator[str]:
    yield f"It is the address of virtual machine {lease.pod_namespace}/{lease.vm}, which that pod runs."
    if facts.role == "Active":
        yield "This is the machine's active attachment."
    elif facts.role:
        yield (
            "This is the machine's standby attachment: it moves here, or did so just now, and another node's pod of "
            "it holds the address as well."
        )


def _freed_by(lease: LeaseReport, kept: Sequence[KeptDel], gone: Callable[[str], bool | None]) -> Iterator[str]:
    """Why it is still held, and what ends it."""
    if lease.kind == "vm":
        yield (
            "It is freed when the VirtualMachine is gone or runs on another node, when vmAddressPersistence is "
            "Disabled, when the network gives nothing new here, or by `allotment gc --address`."
        )
        return
    waiting = next(
        (
            entry
            for entry in kept
            if (entry.container, entry.interface) == (lease.container, lease.interface)
            and entry.network in (None, lease.network)
        ),
        None,
    )
    if waiting is not None:
        yield f"A DEL for it waits in the spool ({waiting.name}): the agent frees it as soon as it can."
        return
    if gone(lease.netns):
        yield (
            "That namespace is gone: the container ended, and no DEL for it arrived here. `allotment gc` frees it; "
            "so does the runtime's DEL, or its garbage collection."
        )
        return
    collected = f", when a CNI GC under {lease.conf_name} no longer lists it" if lease.conf_name else ""
    yield f"It is freed when the runtime deletes the container (DEL){collected}, or when the machine restarts."


def _state(facts: AddressFacts, now: datetime) -> str:
    where = f"in network {facts.network}"
    match facts.state:
        case StateKind.COOLING:
            when = f": released {ago(facts.released, now)}" if facts.released is not None else ""
            return f"{facts.address} is cooling {where}{when}."
        case StateKind.IDLE:
            return f"{facts.address} is free {where}; it was used before."
        case StateKind.NEVER_USED:
            return f"{facts.address} is free {where}; it was never used."
        case StateKind.EDGE | StateKind.GATEWAY | StateKind.RESERVED | StateKind.EXCLUDED:
            return f"{facts.address} is held by nobody {where}, and is kept from being given."
        case StateKind.CLOSED:
            return f"{facts.address} is free {where}, in a block that gives nothing new."
        case StateKind.CLAIMED:
            return (
                f"{facts.address} is held by nobody on this node {where}, which gives by Claim: a pod of another node "
                "may hold it. `kubectl get ipaddresses.allotment.dev` says."
            )
        case StateKind.UNASSIGNED:
            return f"{facts.address} belongs to network {facts.network}, but to no block of this node{_subnet(facts)}."
        case _:
            return f"{facts.address} is foreign: it lies in no network here."


def _before(facts: AddressFacts, now: datetime) -> Iterator[str]:
    last = facts.last
    if last is not None and last.ended is not None:
        yield (
            f"Last it was held by {_holder(last)}, from {local(last.given)} to "
            f"{local(last.ended.at)} ({span((last.ended.at - last.given).total_seconds())}): {_end(last)}."
        )
    elif facts.released is not None and facts.state is not StateKind.COOLING:
        yield f"It was released at {local(facts.released)} ({ago(facts.released, now)}); by whom is no longer known."


def _end(entry: HistoryEntry) -> str:
    if entry.ended is None:
        return "it is held"
    reason = REASONS.get(entry.ended.cause, entry.ended.cause)
    return f"{reason} ({entry.ended.detail})" if entry.ended.detail else reason


def _holder(entry: HistoryEntry) -> str:
    if entry.kind == "vm":
        return f"virtual machine {entry.pod_namespace}/{entry.vm}, for which it was kept"
    return _who(entry.pod_namespace, entry.pod, entry.container)


def _who(namespace: str, pod: str, container: str) -> str:
    return f"pod {namespace}/{pod}" if pod else f"container {container[:12]}"


def _subnet(facts: AddressFacts) -> str:
    return f", in subnet {facts.subnet}" if facts.subnet and facts.subnet != facts.block else ""
