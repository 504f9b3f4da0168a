"""From raw data (what JSON or YAML gave) to an object of ours, or to everything that is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from allotment.api.allocation import Allocation
from allotment.api.ipamconfig import IPAMConfig
from allotment.api.kinds import KIND_OF
from allotment.api.meta import API_VERSION, GROUP
from allotment.api.network import Network
from allotment.api.reservation import IPReservation
from allotment.api.shape import Problem, check_shape, shown
from allotment.api.validate import Resource, rule_problems

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KINDS", "Decoded", "decode", "is_ours"]

KINDS: dict[str, type[Resource]] = {
    "Network": Network,
    "Allocation": Allocation,
    "IPReservation": IPReservation,
    "IPAMConfig": IPAMConfig,
}
"""The kinds that a node reads from a folder, by name."""

# Metadata that an API server adds to what it shows, and that a person may have copied with the rest.
_UNREAD_METADATA = frozenset({"managedFields", "generateName", "selfLink", "deletionGracePeriodSeconds"})


class Decoded(msgspec.Struct, frozen=True):
    """The outcome: `resource` is None exactly when there are `problems`. Warnings never stand in the way."""

    resource: Resource | None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def is_ours(raw: dict[str, Any]) -> bool:
    """Whether `apiVersion` names our group, whatever the version and kind."""
    return str(raw.get("apiVersion", "")).partition("/")[0] == GROUP


def decode(raw: dict[str, Any], kinds: Mapping[str, type[Resource]] = KINDS) -> Decoded:
    """Read an object as a person writes it; one that is not of `kinds` is refused.

    `status` and the metadata that an API server fills in are passed over: a person does not set them. A field that
    is null counts as missing. Every fault of form is reported; when there is none, every broken rule.
    """
    api_version, kind = raw.get("apiVersion"), raw.get("kind")
    if api_version != API_VERSION:
        return _refused("apiVersion", f"must be {API_VERSION}, not {shown(api_version)}")
    type_ = kinds.get(kind) if isinstance(kind, str) else None
    if type_ is None:
        return _refused("kind", f"must be one of {', '.join(kinds)}, not {shown(kind)}")
    plain: dict[str, Any] = {name: _without_nulls(value) for name, value in raw.items() if name != "status"}
    if any(field.name == "spec" for field in msgspec.structs.fields(type_)):
        plain.setdefault("spec", {})
    metadata = plain.get("metadata")
    if isinstance(metadata, dict):
        plain["metadata"] = {name: value for name, value in metadata.items() if name not in _UNREAD_METADATA}
    faults, warnings = check_shape(plain, type_)
    if faults:
        return Decoded(None, tuple(faults), tuple(warnings))
    resource = msgspec.convert(plain, type_)
    if resource.metadata.namespace and not KIND_OF[resource.kind].namespaced:
        place = ("metadata", "namespace")
        warnings.append(Problem(place, f"ignored: {kind} objects belong to no namespace; leave it out"))
    problems = tuple(rule_problems(resource))
    return Decoded(None if problems else resource, problems, tuple(warnings))


def _refused(field: str, message: str) -> Decoded:
    return Decoded(None, (Problem((field,), message),))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value
