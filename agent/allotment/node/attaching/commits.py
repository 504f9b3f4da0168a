"""How a decision of the lease book comes true: on disk first, then in memory (I2).

A decision is written by the ledger and takes effect in the book in the very callback that says it is on disk; whether
somebody still waits for it makes no difference. So memory is at any time exactly what was acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from allotment.addressing.book import LeaseBook, Proposal, Removal
    from allotment.addressing.errors import AllotmentError
    from allotment.addressing.lease import Change

__all__ = ["Commits", "Store", "Write"]


class Store(Protocol):
    """Where changes go before they count; `allotment.ledger.Ledger` is the one that ships."""

    def submit(
        self, changes: Sequence[Change], then: Callable[[AllotmentError | None], None] | None = None
    ) -> asyncio.Future[None]:
        """Write all of `changes` or none; the future is done after the disk has them, or fails with why not.

        `then` is told the same before, and also if nobody waits for the future any more.
        """
        ...

    def fault(self) -> str:
        """Why nothing can be granted now, for a person; empty when all is well."""
        ...

    async def confirm(self) -> None:
        """Return once the disk is known to hold what was acknowledged and nothing else; nearly always at once.

        Raises:
            LedgerUnavailable: it can't be known now.
        """
        ...


class Write:
    """How the writing of one decision ends; `then` is called when it has."""

    __slots__ = ("ended", "error", "then")

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.then = then
        self.ended = False
        self.error: AllotmentError | None = None

    def end(self, error: AllotmentError | None) -> None:
        """It is on disk, and in the book, or (with an error) in neither."""
        self.ended, self.error = True, error
        if self.then is not None:
            self.then()


class Commits:
    """Has decisions of `book` written into `store`."""

    def __init__(self, book: LeaseBook, store: Store) -> None:
        self._book = book
        self._store = store
        self._leases_changed: Callable[[], None] = lambda: None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of leases; it must be cheap."""
        self._leases_changed = callback

    def write(self, decided: Proposal | Removal, write: Write) -> asyncio.Future[None]:
        """Put a decision on disk; book and disk agree again in the callback that says how it went.

        Who waits for the future may be cancelled: `write` comes to its end all the same.
        """

        def settle(error: AllotmentError | None) -> None:
            if error is not None:
                self._book.cancel(decided)
            else:
                self._book.commit(decided)
                self._leases_changed()
            write.end(error)

        return self._store.submit(decided.writes, settle)
