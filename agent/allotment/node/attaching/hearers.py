"""Who hears of a lease: the callers that may yet acknowledge it, and what is to be taken back where nobody did.

Pure bookkeeping; `Attachments` does what it says. The rules are those of docs/decisions/0002.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from allotment.addressing.lease import AttachmentKey, Lease

__all__ = ["Hearers", "Undo"]


@dataclass(frozen=True, slots=True, eq=False)
class Undo:
    """Leases of one attachment that nobody was told of, and the call that was lost last."""

    leases: tuple[Lease, ...]
    call_id: str


class Hearers:
    """Which leases somebody may still acknowledge, and which are to be taken back."""

    def __init__(self) -> None:
        self._unconfirmed: dict[int, set[str]] = {}  # by sequence: the calls whose callers may still acknowledge it
        self._undos: dict[AttachmentKey, Undo] = {}

    def granted(self, leases: Iterable[Lease], call_id: str) -> None:
        """This call is answered with new leases."""
        for lease in leases:
            self._unconfirmed[lease.sequence] = {call_id}

    def repeated(self, key: AttachmentKey, leases: Iterable[Lease], call_id: str) -> None:
        """This call is answered with leases that were there before it."""
        if self._undos.pop(key, None) is not None:  # of which nobody was told, and now somebody is
            self._unconfirmed.update({lease.sequence: set() for lease in leases})
        for lease in leases:
            if lease.sequence in self._unconfirmed:
                self._unconfirmed[lease.sequence].add(call_id)

    def acknowledged(self, leases: Iterable[Lease]) -> None:
        """A caller has its answer: these are told."""
        for lease in leases:
            self._unconfirmed.pop(lease.sequence, None)

    def lost(self, leases: Iterable[Lease], call_id: str) -> tuple[Lease, ...]:
        """This call's caller is gone: those of `leases` that nobody was told of and nobody is left to hear of."""
        mine = tuple(lease for lease in leases if self._is_last(lease, call_id))
        for lease in mine:
            del self._unconfirmed[lease.sequence]
        return mine

    def _is_last(self, lease: Lease, call_id: str) -> bool:
        calls = self._unconfirmed.get(lease.sequence)
        if calls is None or call_id not in calls:
            return False
        calls.discard(call_id)
        return not calls

    # -- what is to be taken back

    def to_undo(self, key: AttachmentKey, leases: tuple[Lease, ...], call_id: str) -> Undo:
        """Take note that these are to be taken back, with what is left of an earlier call's."""
        before = self._undos.get(key)
        undo = self._undos[key] = Undo((*before.leases, *leases) if before else leases, call_id)
        return undo

    def undos(self) -> list[tuple[AttachmentKey, Undo]]:
        """All that is to be taken back."""
        return list(self._undos.items())

    def is_due(self, key: AttachmentKey, undo: Undo) -> bool:
        """Whether this is still to be taken back: no ADD was told of the leases since."""
        return self._undos.get(key) is undo

    def undone(self, key: AttachmentKey, undo: Undo) -> None:
        """It was taken back."""
        if self.is_due(key, undo):
            del self._undos[key]
