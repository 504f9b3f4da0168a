"""Which leases `allotment gc` may free, and on what evidence. Pure, but for the look that is passed in.

Without being told which, it takes leases of this boot whose network namespace is gone, in two looks 30 s apart, and
never one younger than two minutes (I8). When every namespace is gone that any lease names, the look itself is
doubted: it may not be the host's files that are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from allotment.node.inquiries.reports import LeaseReport

__all__ = ["BETWEEN_LOOKS", "YOUNGEST", "Candidate", "confirmed", "named", "whose_namespace_is_gone"]

BETWEEN_LOOKS: Final = 30.0
YOUNGEST: Final = 120.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lease that may be freed, and why; `why` goes to the history."""

    lease: LeaseReport
    why: str


def whose_namespace_is_gone(
    leases: Iterable[LeaseReport],
    gone: Callable[[str], bool | None],
    *,
    boot: str,
    seconds: float,
    believe: bool = False,
) -> tuple[Candidate, ...]:
    """The pod leases whose namespace is gone now. `boot` and `seconds` are this moment.

    Raises:
        ConfigError: not one namespace is there, which is doubted unless `believe` is set.
    """
    looked = [(lease, gone(lease.netns)) for lease in leases if lease.kind == "pod" and lease.boot == boot]
    judged = [(lease, is_gone) for lease, is_gone in looked if is_gone is not None]
    found = tuple(
        Candidate(lease, f"its network namespace {lease.netns} is gone")
        for lease, is_gone in judged
        if is_gone and seconds - lease.seconds >= YOUNGEST
    )
    if found and all(is_gone for _, is_gone in judged) and not believe:
        raise ConfigError(
            f"not one of the {len(judged)} network namespaces that leases name is there (such as "
            f"{found[0].lease.netns}), so this may not be the host's view of its files; if it is, and all these pods "
            "have ended, say --all-gone"
        )
    return found


def named(
    leases: Iterable[LeaseReport], gone: Callable[[str], bool | None], *, force: bool = False
) -> tuple[Candidate, ...]:
    """The leases that a person named, whatever speaks for it.

    Raises:
        ConfigError: one's network namespace is there, so its address is probably in use; `force` overrides that.
    """
    found: list[Candidate] = []
    for lease in leases:
        state = gone(lease.netns)
        if state is False and not force:
            raise ConfigError(
                f"the network namespace {lease.netns} of {lease.address} is there: the address is in use, and would be "
                "given to another. Delete the pod instead; or say --force if you know that nothing uses it"
            )
        evidence = f"its network namespace {lease.netns} is gone" if state else "named by the operator"
        found.append(Candidate(lease, evidence))
    return tuple(found)


def confirmed(first: Sequence[Candidate], second: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """What both looks show, of the very same leases (I7)."""
    earlier = {candidate.lease.sequence for candidate in first}
    return tuple(candidate for candidate in second if candidate.lease.sequence in earlier)
