"""The addresses in the pods' network namespaces, looked at from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from allotment.addressing.address import Address  # noqa: TC001  # msgspec reads the types
from allotment.addressing.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SeenNamespace", "see_namespaces"]


class SeenNamespace(msgspec.Struct, frozen=True):
    """One namespace: every path it was found at, and its global addresses, each with its interface."""

    paths: frozenset[str]
    addresses: tuple[tuple[Address, str], ...]


async def see_namespaces(
    folders: Iterable[Path], paths: Iterable[str]
) -> tuple[tuple[SeenNamespace, ...], tuple[str, ...]]:
    """Read every namespace mounted in `folders` or named by `paths`, each once; what couldn't be read comes second.

    A namespace that goes away meanwhile is not among either.
    """
    from allotment.net.namespaces import (  # noqa: PLC0415  # pyroute2 is loaded only where it is needed
        addresses_in,
        identity,
        namespaces_below,
    )

    unread: list[str] = []
    places: dict[tuple[int, int], set[str]] = {}
    found = [Path(path) for path in paths if path]
    for folder in folders:
        try:
            found += await asyncio.to_thread(namespaces_below, folder)
        except InternalError as error:
            unread.append(error.message)
    for path in found:
        key = identity(path)
        if key is not None:
            places.setdefault(key, set()).add(str(path))
    seen: list[SeenNamespace] = []
    for key, where in sorted(places.items(), key=lambda item: min(item[1])):
        path = Path(min(where))
        try:
            inside = await addresses_in(path)
        except InternalError as error:
            if identity(path) == key:
                unread.append(error.message)
            continue
        seen.append(SeenNamespace(frozenset(where), tuple((entry.address, entry.interface) for entry in inside)))
    return tuple(seen), tuple(unread)
