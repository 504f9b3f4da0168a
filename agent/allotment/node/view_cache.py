"""The last good View, kept in the ledger's file: what a node serves from when its source can't be read at boot (I12).

Networks, Allocations, IPReservations and the IPAMConfig are kept as JSON, one row each, and beside them which kind of
source they are from. Only what changed is written, and what is only doubted is never written down as gone.
"""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import msgspec

from allotment.api.allocation import Allocation
from allotment.api.ipamconfig import IPAMConfig
from allotment.api.network import Network
from allotment.api.reservation import IPReservation
from allotment.node.view import View

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["ObjectStore", "ViewCache", "kept_view"]

_SOURCE = ("Source", "")
_HOST, _CLUSTER = b"host", b"cluster"
_KINDS = frozenset({"Network", "Allocation", "IPReservation", "IPAMConfig", _SOURCE[0]})


class ObjectStore(Protocol):
    """The part of the ledger that keeps objects."""

    def objects(self) -> Mapping[tuple[str, str], bytes]:
        """All that is kept: (kind, name) to body."""
        ...

    async def put_object(self, kind: str, name: str, body: bytes) -> None:
        """Keep a body; returns once it is on disk. Raises LedgerUnavailable."""
        ...

    async def delete_object(self, kind: str, name: str) -> None:
        """Keep it no longer. Raises LedgerUnavailable."""
        ...

    async def change_objects(self, put: Mapping[tuple[str, str], bytes], gone: Iterable[tuple[str, str]]) -> None:
        """All of it or nothing. Raises LedgerUnavailable."""
        ...


def kept_view(objects: Mapping[tuple[str, str], bytes], *, local_l2: bool | None = None) -> View | None:
    """The View kept last, marked as doubted; None when none was kept. An object that can't be read is left out.

    `local_l2` is of the source that serves now; without it, of the one that the View came from.
    """
    networks: dict[str, Network] = {}
    allocations: dict[str, Allocation] = {}
    reservations: dict[str, IPReservation] = {}
    config: IPAMConfig | None = None
    for (kind, name), body in objects.items():
        try:
            match kind:
                case "Network":
                    networks[name] = msgspec.json.decode(body, type=Network)
                case "Allocation":
                    allocations[name] = msgspec.json.decode(body, type=Allocation)
                case "IPReservation":
                    reservations[name] = msgspec.json.decode(body, type=IPReservation)
                case "IPAMConfig":
                    config = msgspec.json.decode(body, type=IPAMConfig)
        except msgspec.MsgspecError:
            continue
    if not networks and not allocations:
        return None
    local = objects.get(_SOURCE) != _CLUSTER if local_l2 is None else local_l2
    return View(
        networks=MappingProxyType(networks),
        allocations=MappingProxyType(allocations),
        reservations=MappingProxyType(reservations),
        config=config,
        unseen=MappingProxyType(
            {name: f"Network {name} was not known" for name in allocations if name not in networks}
        ),
        doubted="what was known before the agent started is served until the source has been read",
        local_l2=local,
        controlled=not local,
    )


class ViewCache:
    """Writes Views down and reads the last one back; `local_l2` is of the source that they come from."""

    def __init__(self, store: ObjectStore, *, local_l2: bool) -> None:
        self._store = store
        self._local_l2 = local_l2
        self._kept = {key: body for key, body in store.objects().items() if key[0] in _KINDS}
        self._turn = asyncio.Lock()

    def load(self) -> View | None:
        """See `kept_view`."""
        return kept_view(self._kept, local_l2=self._local_l2)

    def blocks(self, network: str) -> frozenset[str]:
        """The blocks of a network that the node would take for its own if it started from here."""
        body = self._kept.get(("Allocation", network))
        if body is None:
            return frozenset()
        return frozenset(block.cidr for block in msgspec.json.decode(body, type=Allocation).spec.blocks)

    async def keep(self, view: View) -> None:
        """Write down what differs from what is kept; nothing, while the View is doubted or not yet whole.

        It is written as one change: half a View, such as a Network without its Allocation, would be believed at boot.

        Raises:
            LedgerUnavailable: it is not on disk; what was kept before still is.
        """
        async with self._turn:
            if not view.doubted and view.synced:
                await self._write(view)

    async def shut(self, allocation: Allocation) -> None:
        """See to it that a node that starts from here does not serve this Allocation, which it lets go of.

        Raises:
            LedgerUnavailable: it can't be written now. A full disk is no hindrance.
        """
        key = ("Allocation", allocation.spec.network)
        async with self._turn:
            body = self._kept.get(key)
            if body is not None and not msgspec.json.decode(body, type=Allocation).metadata.deleting:
                await self._store.delete_object(*key)
                del self._kept[key]

    async def _write(self, view: View) -> None:
        wanted: dict[tuple[str, str], bytes] = {_SOURCE: _HOST if self._local_l2 else _CLUSTER}
        for kind, items in (
            ("Network", view.networks),
            ("Allocation", view.allocations),
            ("IPReservation", view.reservations),
        ):
            for name, item in items.items():
                wanted[kind, name] = msgspec.json.encode(item)
        if view.config is not None:
            wanted["IPAMConfig", view.config.name] = msgspec.json.encode(view.config)
        put = {key: body for key, body in wanted.items() if self._kept.get(key) != body}
        gone = self._kept.keys() - wanted.keys()
        if put or gone:
            await self._store.change_objects(put, gone)
            self._kept = wanted
