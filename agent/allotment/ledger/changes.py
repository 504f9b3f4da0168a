"""What one change does to the tables. Each is checked by what it found: a change that doesn't fit the rows is refused.

These run inside a transaction that somebody else opened and will end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from allotment.addressing.errors import InternalError
from allotment.addressing.lease import Change, Forgotten, Granted, Lease, Released, Rest, Rested, Supposed
from allotment.ledger.rows import LEASE_COLUMNS, REST_COLUMNS, row_of_lease, row_of_rest, wide

if TYPE_CHECKING:
    import sqlite3

    from allotment.addressing.address import Address

__all__ = ["SEQUENCE_EVERY", "Counters", "DeleteObject", "PutObject", "Write", "apply", "gives", "store_sequence"]

SEQUENCE_EVERY: Final = 64
"""Releases after which the highest sequence number is written down apart from them."""


# ruff: noqa: S608  # put together from constants alone
_GRANT: Final = f"INSERT INTO lease ({LEASE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_RELEASE: Final = "DELETE FROM lease WHERE network = ? AND address = ? AND sequence = ? AND container_id = ?"
_REST: Final = f"INSERT INTO rest ({REST_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_UNREST: Final = "DELETE FROM rest WHERE network = ? AND first = ? AND last = ?"
_UNREST_ALL: Final = "DELETE FROM rest WHERE network = ? AND first >= ? AND first <= ? AND last <= ?"
_RUN_BEFORE: Final = (  # the run that begins nearest below an address; its end tells whether it holds it
    f"SELECT {REST_COLUMNS} FROM rest WHERE network = ? AND first <= ? ORDER BY first DESC LIMIT 1"
)
_FORGET: Final = "DELETE FROM rest WHERE network = ? AND block = ?"
_HISTORY: Final = (
    "INSERT INTO history (id, network, address, container_id, interface, pod_namespace, pod_name, pod_uid, conf_name, "
    "kind, sequence, began, ended, cause, detail, vm) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_PUT: Final = (
    "INSERT INTO object (kind, name, body) VALUES (?, ?, ?) ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body"
)
_DELETE: Final = "DELETE FROM object WHERE kind = ? AND name = ?"


@dataclass(frozen=True, slots=True)
class PutObject:
    """Keep this body under (kind, name), instead of the one before."""

    kind: str
    name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Keep nothing under (kind, name)."""

    kind: str
    name: str


Write: TypeAlias = Change | PutObject | DeleteObject
"""All that a transaction can hold."""


@dataclass(slots=True)
class Counters:
    """What the writer knows of the file without asking it.

    `granted` is the highest sequence number ever given and `released` the number of the last history row; both only
    grow. `stored` is the sequence number in `meta`. Most commits need no write there (a page less on their way to the
    disk): the lease row carries its number, and so does the history row that a release makes of it. It is raised by
    the release with the number `due` (the first after the file was opened, then each `SEQUENCE_EVERY`th), and before
    history rows go away. `oldest` is the number of the first history row that is still kept.
    """

    granted: int = 0
    stored: int = 0
    released: int = 0
    oldest: int = 1
    due: int = 0

    def copy(self) -> Counters:
        """The same numbers, to be changed while a transaction is open."""
        return Counters(self.granted, self.stored, self.released, self.oldest, self.due)


def gives(writes: tuple[Write, ...]) -> bool:
    """Whether these take room on the disk for something new; on a full disk only what gives back is written."""
    return any(isinstance(write, Granted | PutObject) for write in writes)


def apply(connection: sqlite3.Connection, write: Write, counters: Counters) -> None:
    """Write one change.

    Raises:
        InternalError: the rows say that this change can't be (an address leased already, a lease that isn't there).
        sqlite3.Error: the disk, or a constraint, refused.
    """
    match write:
        case Granted(lease):
            connection.execute(_GRANT, row_of_lease(lease))
            _leave_rest(connection, lease.owner.network, lease.address)
            counters.granted = max(counters.granted, lease.sequence)
        case Released():
            _release(connection, write, counters)
        case Rested(_, after):
            # By range, not one by one: it is the addresses that are the same before and after, not the rows.
            span = (after.network, wide(after.first), wide(after.last), wide(after.last))
            if not connection.execute(_UNREST_ALL, span).rowcount:
                raise InternalError(f"the ledger and the lease book disagree: nothing rests at {after.first} to join")
            connection.execute(_REST, row_of_rest(after))
        case Supposed(rest):
            span = (rest.network, wide(rest.first), wide(rest.last), wide(rest.last))
            connection.execute(_UNREST_ALL, span)
            connection.execute(_REST, row_of_rest(rest))
        case Forgotten(network, block):
            connection.execute(_FORGET, (network, str(block)))
        case PutObject(kind, name, body):
            connection.execute(_PUT, (kind, name, body))
        case DeleteObject(kind, name):
            connection.execute(_DELETE, (kind, name))


def _release(connection: sqlite3.Connection, released: Released, counters: Counters) -> None:
    lease = released.lease
    owner = lease.owner
    found = connection.execute(_RELEASE, (owner.network, str(lease.address), lease.sequence, owner.container_id))
    _expect_one(found.rowcount, f"no lease {lease.sequence} of {lease.address} for {owner.container_id} to release")
    connection.execute(
        _REST,
        row_of_rest(Rest(owner.network, lease.block, lease.address, lease.address, released.at, released.wall)),
    )
    counters.released += 1
    connection.execute(_HISTORY, _history_row(counters.released, lease, released))
    counters.granted = max(counters.granted, lease.sequence)
    if counters.released >= counters.due:
        store_sequence(connection, counters)


def store_sequence(connection: sqlite3.Connection, counters: Counters) -> None:
    """Have `meta` say what history alone told until now.

    Raises:
        sqlite3.Error: the disk refused.
    """
    counters.due = counters.released + SEQUENCE_EVERY
    if counters.granted > counters.stored:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'sequence'", (counters.granted,))
        counters.stored = counters.granted


def _history_row(number: int, lease: Lease, released: Released) -> tuple[str | int | float, ...]:
    owner = lease.owner
    return (
        number,
        owner.network,
        str(lease.address),
        owner.container_id,
        owner.interface,
        owner.pod_namespace,
        owner.pod_name,
        owner.pod_uid,
        owner.conf_name,
        owner.kind.value,
        lease.sequence,
        lease.wall,
        released.wall,
        released.cause.value,
        released.detail,
        owner.vm,
    )


def _leave_rest(connection: sqlite3.Connection, network: str, address: Address) -> None:
    """Take the address out of the run it rests in, if any; what is left of the run rests on."""
    text = wide(address)
    run = connection.execute(_RUN_BEFORE, (network, text)).fetchone()
    if run is None or run[2] < text:
        return
    connection.execute(_UNREST, (network, run[1], run[2]))
    if run[1] < text:
        connection.execute(_REST, (network, run[1], wide(address + -1), *run[3:]))
    if text < run[2]:
        connection.execute(_REST, (network, wide(address + 1), run[2], *run[3:]))


def _expect_one(count: int, complaint: str) -> None:
    if count != 1:
        raise InternalError(f"the ledger and the lease book disagree: {complaint}")
