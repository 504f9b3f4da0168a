"""Who picks addresses where no node may pick by itself: an L2 network in a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allotment.addressing.address import Address
    from allotment.addressing.book import Ask
    from allotment.addressing.lease import AttachmentKey, Owner

__all__ = ["Picked", "Picker"]


@dataclass(frozen=True, slots=True)
class Picked:
    """The addresses of an attachment, and its owner with all that was learnt of him."""

    owner: Owner
    addresses: Sequence[Address]


class Picker(Protocol):
    """Who picks the addresses of networks that no node may pick from by itself (`NetworkPlan.claimed`)."""

    async def pick(self, ask: Ask) -> Picked:
        """The attachment's addresses, which nobody else is given until its lease has ended.

        They are also given back if no lease comes of them for a while.

        Raises:
            AllotmentError: there are none for it now, and why.
        """
        ...

    def kept(self, key: AttachmentKey) -> None:
        """What was picked is in leases, on disk: whoever ends those says so for the addresses, too."""
        ...

    def unwanted(self, container_id: str, interface: str, network: str | None) -> None:
        """Of this attachment (of whatever network, if None) nothing is wanted any more; who waits for it stops."""
        ...
