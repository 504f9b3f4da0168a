"""What the lease book is asked, what it decides, and what it holds; plain, frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from allotment.addressing.lease import Rest

if TYPE_CHECKING:
    from allotment.addressing.address import Address
    from allotment.addressing.lease import Granted, Lease, Owner, Released

__all__ = ["Ask", "BookState", "Claimed", "Proposal", "Removal"]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for addresses: by whom, with which network namespace path as evidence, and which ones.

    `requested` names at most one address per family; the other family is chosen. `one_block` keeps all leases of the
    network in one block per family, because the bridge plugin refuses a second gateway.
    """

    owner: Owner
    netns: str = ""
    requested: tuple[Address, ...] = ()
    one_block: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    """An address that an owner has already, as somebody else than the ledger knows."""

    owner: Owner
    address: Address
    netns: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the ledger must write before the leases are real. Its addresses are held until `commit` or `cancel`.

    `ended` are the leases by which a virtual machine's address was kept until now, in the same change.
    """

    changes: tuple[Granted, ...]
    ended: tuple[Released, ...] = ()

    @property
    def writes(self) -> tuple[Released | Granted, ...]:
        """All of it, in the order of the writing."""
        return (*self.ended, *self.changes)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases, IPv4 first."""
        return tuple(change.lease for change in self.changes)


@dataclass(frozen=True, slots=True)
class Removal:
    """What the ledger must write before the leases are over. Until then they are in force, but nobody else's to end.

    `kept` are the leases by which an address is kept for its virtual machine from now on, in the same change.
    """

    changes: tuple[Released, ...]
    kept: tuple[Granted, ...] = ()

    @property
    def writes(self) -> tuple[Released | Granted, ...]:
        """All of it, in the order of the writing."""
        return (*self.changes, *self.kept)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases that end."""
        return tuple(change.lease for change in self.changes)


@dataclass(frozen=True, slots=True)
class BookState:
    """All that the disk must hold. `sequence` is the highest number that was ever given to a lease."""

    leases: tuple[Lease, ...] = ()
    rests: tuple[Rest, ...] = ()
    sequence: int = 0

    def canonical(self) -> BookState:
        """The same state in the one form that can be compared: sorted, with neighbours that rest alike joined."""
        rests: list[Rest] = []
        for rest in sorted(self.rests, key=lambda rest: (rest.network, rest.block, rest.first)):
            before = rests[-1] if rests else None
            if before is not None and _alike(before, rest) and before.last.value + 1 == rest.first.value:
                rests[-1] = Rest(rest.network, rest.block, before.first, rest.last, rest.released, rest.wall)
            else:
                rests.append(rest)
        leases = sorted(self.leases, key=lambda lease: (lease.owner.network, lease.address))
        return BookState(tuple(leases), tuple(rests), self.sequence)


def _alike(one: Rest, other: Rest) -> bool:
    return (one.network, one.block, one.released, one.wall) == (other.network, other.block, other.released, other.wall)
