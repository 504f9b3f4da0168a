"""Leases whose block was given to others while this node was away: nobody is told of them any more (I1).

They stay until a DEL ends them, which succeeds as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.errors import AddressUnavailable, CheckFailed
from allotment.addressing.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allotment.addressing.book import LeaseBook
    from allotment.addressing.lease import Lease

__all__ = ["refuse_strays", "report_strays"]


def refuse_strays(book: LeaseBook, leases: Sequence[Lease]) -> None:
    """See that an ADD is not answered with an address that another node may give.

    Raises:
        AddressUnavailable: it would be.
    """
    for lease in filter(book.is_stray, leases):
        raise AddressUnavailable(_in_words(lease), reason=Reason.UNAVAILABLE)


def report_strays(book: LeaseBook, leases: Sequence[Lease]) -> None:
    """See that a CHECK doesn't find all well with such an address.

    Raises:
        CheckFailed: it would.
    """
    for lease in filter(book.is_stray, leases):
        raise CheckFailed(_in_words(lease))


def _in_words(lease: Lease) -> str:
    return (
        f"container {lease.owner.container_id} has {lease.address} of network {lease.owner.network}, but block "
        f"{lease.block} is not this node's any more, and another node may give that address: recreate the pod"
    )
