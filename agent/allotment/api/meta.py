"""What all objects of the group have in common: group and version, metadata, conditions, finalizer names.

Field names on the wire follow Kubernetes' API conventions: camelCase, with `ID`, `UID` and `CIDR` in capitals when
they don't begin the name (`networkID`, `hostPrefixLength`, `nodePodCIDRs`).

Limits that one field can state stand beside its type, in OpenAPI's words (`maxLength`, `minimum`, `enum` …): the
CRD and the library's check (`allotment.api.shape`) read the same line. Decoding itself does not enforce them, so
that an object which was stored before a limit was tightened can still be read, drained and deleted.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = [
    "ADDRESSES_FINALIZER",
    "ALLOCATIONS_FINALIZER",
    "ALLOW_BINDING_ANNOTATION",
    "ANNOUNCED_FINALIZER",
    "API_VERSION",
    "GROUP",
    "GUARD_FINALIZER",
    "HELD_FINALIZER",
    "LEDGER_ANNOTATION",
    "NODE_FINALIZER",
    "UID",
    "VERSION",
    "APIObject",
    "Condition",
    "Conditions",
    "Decimal",
    "Labels",
    "Name",
    "ObjectMeta",
    "OwnerReference",
    "Record",
    "limits",
    "wire_name",
]

GROUP = "allotment.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

NODE_FINALIZER = f"{GROUP}/node"
"""The agent's: the node may hold addresses of this Allocation (I4, I5), or of this Claim."""
GUARD_FINALIZER = f"{GROUP}/guard"
"""Stands on every object that another finalizer must be able to hold; put on first, taken off last (I9)."""
ALLOCATIONS_FINALIZER = f"{GROUP}/allocations"
"""On a Network: Allocations of it exist."""
ADDRESSES_FINALIZER = f"{GROUP}/addresses"
"""On an L2 Network: pod addresses of it are handed out."""
HELD_FINALIZER = f"{GROUP}/held"
"""On an Index, IPAddress or IPPrefix: the value is held, or cooling."""
ANNOUNCED_FINALIZER = f"{GROUP}/announced"
"""On an Advertisement: a node still holds one of its addresses."""

ALLOW_BINDING_ANNOTATION = f"{GROUP}/allow-binding"
"""On an Index, IPAddress or IPPrefix with the value "true": a Claim of the name in `claimRef` may take it over."""

LEDGER_ANNOTATION = f"{GROUP}/ledger"
"""On a pod's Claim: the ID of the ledger that its lease is in."""

_CAPITALS = {"id": "ID", "uid": "UID", "cidr": "CIDR", "cidrs": "CIDRs"}


def wire_name(name: str) -> str:
    """The name of a field in JSON: `network_uid` is `networkUID`, `api_version` is `apiVersion`."""
    first, *rest = name.split("_")
    return first + "".join(_CAPITALS.get(word, word.capitalize()) for word in rest)


def limits(**words: object) -> msgspec.Meta:
    """What one field may hold, in OpenAPI's words; stands in the field's type, inside `Annotated`.

    Three words are ours: `unique=True` (no entry of the list twice), `key="cidr"` (a list of which each entry is
    known by that field) and `defaulted=True` (the API server fills in the field's default; without the word a
    missing field stays missing).
    """
    return msgspec.Meta(extra_json_schema=words)


class Record(msgspec.Struct, frozen=True, rename=wire_name, omit_defaults=True):
    """The base of everything in this package that has a form in JSON: immutable, compared by value."""


Name = Annotated[str, limits(minLength=1, maxLength=253)]
"""The name of an object."""
UID = Annotated[str, limits(maxLength=63)]
Decimal = Annotated[str, limits(maxLength=40)]
"""A count as decimal text, because those of an IPv6 network pass 2^63."""
Labels = dict[str, Annotated[str, limits(maxLength=63)]]


class OwnerReference(Record, frozen=True):
    """metav1.OwnerReference: the object that this one ends with."""

    kind: str
    name: str
    uid: str
    api_version: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Record, frozen=True):
    """metav1.ObjectMeta, as far as we look at it. Timestamps are RFC 3339 text; empty means not set."""

    name: Annotated[str, limits(maxLength=253)]
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    finalizers: tuple[str, ...] = ()
    labels: Labels = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def deleting(self) -> bool:
        """Whether somebody asked for the object to be deleted; there is no way back from that."""
        return bool(self.deletion_timestamp)


class APIObject(Record, frozen=True):
    """The base of all our kinds: an object of the API server, known by its name."""

    metadata: ObjectMeta

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name


class Condition(Record, frozen=True):
    """metav1.Condition: one thing that is so, or not, since when and why."""

    type: Annotated[str, limits(minLength=1, maxLength=316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, limits(maxLength=1024)] = ""
    message: Annotated[str, limits(maxLength=32768)] = ""
    last_transition_time: Annotated[str, limits(maxLength=64, format="date-time")] = ""
    observed_generation: Annotated[int, limits(minimum=0)] = 0


Conditions = Annotated[tuple[Condition, ...], limits(maxItems=32, key="type")]
