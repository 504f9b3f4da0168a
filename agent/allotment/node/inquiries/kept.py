"""The spool as a visitor sees it: what DELs wait there, without touching them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from allotment.addressing.errors import AllotmentError
from allotment.node.inquiries.reports import SpoolReport
from allotment.node.spool import SUFFIX, read_entry

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["UNREADABLE", "KeptDel", "count_kept", "read_kept"]

UNREADABLE = "unreadable"
"""The folder within the spool where the agent puts entries that it can't read."""


class KeptDel(msgspec.Struct, frozen=True):
    """One DEL that waits. `network` is None where the caller's configuration was cut down to its type."""

    name: str
    container: str
    interface: str
    network: str | None
    boot: str


def count_kept(folder: Path) -> SpoolReport:
    """How many entries wait in the spool `folder`; a folder that isn't there holds none."""
    return SpoolReport(str(folder), waiting=len(_names(folder)), unreadable=_unreadable(folder))


def read_kept(folder: Path) -> tuple[KeptDel, ...]:
    """The entries that wait, oldest first. One that can't be read, or goes while we look, is passed over."""
    found: list[KeptDel] = []
    for name in _names(folder):
        try:
            entry, request = read_entry(folder / name)
        except (OSError, AllotmentError):
            continue
        found.append(KeptDel(name, request.container_id, request.interface, request.network, entry.boot))
    return tuple(found)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if path.name.endswith(SUFFIX))
    except OSError:
        return []


def _unreadable(folder: Path) -> int:
    try:
        return sum(1 for _ in (folder / UNREADABLE).iterdir())
    except OSError:
        return 0
