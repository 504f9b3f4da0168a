"""Who had an address, and when: the ended leases that the ledger remembers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from allotment.addressing.lease import Cause, LeaseKind, Owner
from allotment.ledger.rows import RowError, parse_written

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from allotment.addressing.address import Address

__all__ = ["HistoryRow", "RowsQuery", "read_history"]

_COLUMNS: Final = (
    "network, address, container_id, interface, pod_namespace, pod_name, pod_uid, conf_name, kind, sequence, began, "
    "ended, cause, detail, vm"
)


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One ended lease. `began` and `ended` are Unix times as the machine believed them then, for people."""

    address: Address
    owner: Owner
    sequence: int
    began: float
    ended: float
    cause: Cause
    detail: str


@dataclass(frozen=True, slots=True)
class RowsQuery:
    """Which ended leases; all that is given must hold. `at` is a Unix time within the lease; `limit` is rows."""

    network: str | None = None
    address: Address | None = None
    workload: str | None = None
    pod_uid: str | None = None
    container_id: str | None = None
    at: float | None = None
    limit: int = 100


def read_history(connection: sqlite3.Connection, query: RowsQuery) -> list[HistoryRow]:
    """The rows that fit, newest end first.

    Raises:
        RowError: a row can't be read.
        sqlite3.Error: the file can't be read.
    """
    conditions: list[str] = []
    values: list[str | float] = []
    for condition, value in (
        ("network = ?", query.network),
        ("address = ?", None if query.address is None else str(query.address)),
        ("pod_namespace || '.' || pod_name = ?", query.workload),
        ("pod_uid = ?", query.pod_uid),
        ("container_id = ?", query.container_id),
        ("began <= ?", query.at),
        ("ended >= ?", query.at),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM history {where} ORDER BY id DESC LIMIT ?",  # noqa: S608  # constants and marks alone
        (*values, max(0, query.limit)),
    ).fetchall()
    return [_decode(row) for row in rows]


def _decode(row: Sequence[object]) -> HistoryRow:
    (network, address, container, interface, namespace, pod, uid, conf, kind, *rest) = row
    sequence, began, ended, cause, detail, vm = rest
    try:
        return HistoryRow(
            address=parse_written(str(address)),
            owner=Owner(
                network=str(network),
                container_id=str(container),
                interface=str(interface),
                pod_namespace=str(namespace),
                pod_name=str(pod),
                pod_uid=str(uid),
                conf_name=str(conf),
                kind=LeaseKind(str(kind)),
                vm=str(vm),
            ),
            sequence=int(str(sequence)),
            began=float(str(began)),
            ended=float(str(ended)),
            cause=Cause(str(cause)),
            detail=str(detail),
        )
    except (ValueError, OSError) as error:
        raise RowError(f"history of {address!r} in network {network!r} can't be read: {error}") from error
