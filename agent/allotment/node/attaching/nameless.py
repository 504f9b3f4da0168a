"""Leases of which only the network namespace is known: a rebuild found no better owner. Their DELs name another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.addressing.lease import LeaseKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from allotment.addressing.lease import AttachmentKey, Lease

__all__ = ["UNKNOWN_OWNER", "Nameless"]

UNKNOWN_OWNER = "netns-"
"""A container ID that starts so was made from a namespace's name."""


class Nameless:
    """Finds them by what a DEL says of its namespace."""

    def __init__(self, leases: Iterable[Lease] = ()) -> None:
        self._found: dict[tuple[str, str], list[AttachmentKey]] = {}
        for lease in leases:
            if lease.owner.kind is LeaseKind.POD and lease.owner.container_id.startswith(UNKNOWN_OWNER):
                self._found.setdefault((_plain(lease.netns), lease.owner.interface), []).append(lease.owner.key)

    def of(self, netns: str, interface: str) -> Iterable[AttachmentKey]:
        """The attachments in that namespace."""
        return self._found.get((_plain(netns), interface), ()) if self._found else ()


def _plain(netns: str) -> str:
    """The path of a namespace as it was found: /var/run is /run (FHS 3.0, 5.13), and runtimes say either."""
    return netns.removeprefix("/var") if netns.startswith("/var/run/") else netns
