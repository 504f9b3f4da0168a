"""Which Networks are gone, and which have only not been seen yet.

Two watches have no order between them: an Allocation may be seen before the Network that it is for. Such a Network is
gone once it was seen and is there no more, or once a list that was read after its Allocation was seen doesn't hold it.
Until then it isn't known, and a network of which nothing is known is neither served nor drained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from allotment.api.allocation import Allocation
    from allotment.api.network import Network

__all__ = ["Unseen", "is_of"]


def is_of(allocation: Allocation, network: Network) -> bool:
    """Whether this is the Network that the Allocation is for, and not another one that has its name now."""
    wanted = allocation.spec.network_uid
    return not wanted or wanted == network.metadata.uid


class Unseen:
    """Remembers from which list of Networks on the absence of each Allocation's Network counts."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}  # by the Allocation's UID; 0: it has been seen

    def judge(
        self,
        allocations: Mapping[str, Allocation],
        networks: Mapping[str, Network],
        wrong: Collection[str],
        lists: int,
        read_again: Callable[[], int],
    ) -> dict[str, str]:
        """Those of the Allocations' Networks that have not been seen yet, each with why that is.

        `networks` are those that are known, `wrong` the names of others, which can't be read or make no sense.
        `lists` counts how often all were read; `read_again` has that done once more, and says what the count is then.
        """
        before, self._counts = self._counts, {}
        unseen: dict[str, str] = {}
        for name, allocation in allocations.items():
            uid = allocation.metadata.uid
            network = networks.get(name)
            if network is not None and is_of(allocation, network):
                self._counts[uid] = 0
                continue
            if name in wrong:
                unseen[name] = f"Network {name} makes no sense"
                continue
            if uid not in before:
                before[uid] = read_again()
            self._counts[uid] = before[uid]
            if lists < before[uid]:
                unseen[name] = f"Network {name} has not been seen yet"
        return unseen
