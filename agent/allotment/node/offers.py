"""The blocks that this node has closed in order to offer them back: on disk before anybody is told.

A closed block gives nothing, also after a crash and whatever the objects say. It stays closed until its offer was
withdrawn by a write that succeeded, or until it has been taken and nothing on this node's disk says any more that it
is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from allotment.addressing.errors import LedgerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from allotment.node.view_cache import ObjectStore

__all__ = ["Offers", "closed_blocks"]

_KIND = "Offer"


class _Kept(msgspec.Struct, frozen=True):
    """What is on disk of one offer; only the fields count, the name it is kept under is never read."""

    network: str
    cidr: str


def closed_blocks(objects: Mapping[tuple[str, str], bytes]) -> frozenset[tuple[str, str]]:
    """The blocks (network, CIDR) that are closed by what a ledger keeps."""
    kept = [msgspec.json.decode(body, type=_Kept) for (kind, _), body in objects.items() if kind == _KIND]
    return frozenset((offer.network, offer.cidr) for offer in kept)


class Offers:
    """The closed blocks. `replan` is called after each change, and has the lease book follow before it returns."""

    def __init__(self, store: ObjectStore, replan: Callable[[], None]) -> None:
        self._store = store
        self._replan = replan
        self._closed = set(closed_blocks(store.objects()))

    @property
    def closed(self) -> frozenset[tuple[str, str]]:
        """The closed blocks: (network, CIDR)."""
        return frozenset(self._closed)

    def of(self, network: str) -> frozenset[str]:
        """The closed blocks of a network."""
        return frozenset(cidr for name, cidr in self._closed if name == network)

    async def close(self, network: str, cidr: str, still: Callable[[], bool] = lambda: True) -> bool:
        """Close a block; true once that is on disk. Not if it is not `still` empty when it gives nothing any more.

        Raises:
            LedgerUnavailable: it can't be written now; the block gives as before.
        """
        key = (network, cidr)
        if key in self._closed:
            return True
        self._closed.add(key)
        self._replan()
        if not still():
            self._reopen(key)
            return False
        try:
            await self._store.put_object(_KIND, f"{network} {cidr}", msgspec.json.encode(_Kept(network, cidr)))
        except LedgerUnavailable:
            self._reopen(key)
            raise
        return True

    async def open(self, network: str, cidr: str) -> None:
        """Forget that a block is closed: its offer is withdrawn, or it is ours no more.

        Raises:
            LedgerUnavailable: it can't be written now; the block stays closed.
        """
        await self._store.delete_object(_KIND, f"{network} {cidr}")
        self._reopen((network, cidr))

    def _reopen(self, key: tuple[str, str]) -> None:
        self._closed.discard(key)
        self._replan()
