"""The objects of a fake API server: versions, finalizers, selectors, history, as the real one was seen to treat them.

It knows nothing of HTTP. Objects are plain JSON values that are replaced, never changed.
"""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from allotment.kube.events import EVENTS
from allotment.kube.merging import applied
from allotment.kube.resources import (
    ADDRESSES,
    ALLOCATIONS,
    CLAIMS,
    CONFIGS,
    INSTANCES,
    NETWORKS,
    NODES,
    PODS,
    RESERVATIONS,
    VMS,
    Resource,
    key_of,
)

__all__ = ["SERVED", "Change", "Objects", "Refusal"]

Json = dict[str, Any]

SERVED: Final[dict[str, Resource[Any]]] = {
    resource.full_name: resource
    for resource in (
        *(NETWORKS, ALLOCATIONS, RESERVATIONS, CONFIGS, CLAIMS, ADDRESSES, PODS, NODES, EVENTS),
        *(VMS, INSTANCES),
    )
}
"""The kinds it serves from the start, by RBAC's name."""

_SELECTABLE: Final = {
    ALLOCATIONS.full_name: {"spec.node", "spec.network"},
    CLAIMS.full_name: {"spec.node"},
    PODS.full_name: {"spec.nodeName", "status.phase"},
}
_FIRST_VERSION: Final = 100


class Refusal(Exception):  # noqa: N818  # it is an answer
    """An answer other than 2xx: a Status."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """What happened at a version: from `before` (None: created) to `after` (None: deleted)."""

    version: int
    kind: str
    before: Json | None
    after: Json | None

    def seen_by(self, wanted: dict[str, str], namespace: str) -> Json | None:
        """The watch event of it for a selector; None if there is none."""
        was, is_ = _matches(self.before, wanted, namespace), _matches(self.after, wanted, namespace)
        if is_:
            return {"type": "MODIFIED" if was else "ADDED", "object": self.after}
        if was:
            # What stops matching is told as deleted, as it last matched, with the version of the change.
            last = copy.deepcopy(self.before) or {}
            last["metadata"]["resourceVersion"] = str(self.version)
            return {"type": "DELETED", "object": last}
        return None


@dataclass(slots=True)
class Objects:
    """All objects, and what happened to them since `floor`."""

    version: int = _FIRST_VERSION
    floor: int = 0
    history: list[Change] = field(default_factory=list)
    _items: dict[str, dict[str, Json]] = field(default_factory=dict)

    def compact(self) -> None:
        """Forget all history."""
        self.history.clear()
        self.floor = self.version

    def restore(self, version: int) -> None:
        """Go back to an earlier version number, as etcd does when a backup is restored; the objects stay."""
        self.version = version
        self.history.clear()
        self.floor = 0

    def list(self, resource: Resource[Any], selector: str = "", namespace: str = "") -> list[Json]:
        """What matches a field selector, by name."""
        wanted = self.selector(resource, selector)
        found = self._items.get(resource.full_name, {})
        return [item for _, item in sorted(found.items()) if _matches(item, wanted, namespace)]

    def selector(self, resource: Resource[Any], text: str) -> dict[str, str]:
        """A field selector, parsed."""
        wanted = dict(part.replace("==", "=").split("=", 1) for part in text.split(",") if part)
        allowed = {"metadata.name", "metadata.namespace"} | _SELECTABLE.get(resource.full_name, set())
        for name in wanted:
            if name not in allowed:
                raise Refusal(400, "BadRequest", f"field label not supported: {name}")
        return wanted

    def get(self, resource: Resource[Any], name: str, namespace: str = "") -> Json:
        """An object."""
        found = self._items.get(resource.full_name, {}).get(key_of(namespace, name))
        if found is None:
            message = f'{resource.full_name} "{name}" not found'
            raise Refusal(404, "NotFound", message, name=name, group=resource.group, kind=resource.plural)
        return found

    def create(self, resource: Resource[Any], body: Json) -> Json:
        """Make an object."""
        item = copy.deepcopy(body)
        meta = item.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        if meta.get("resourceVersion"):
            raise Refusal(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        key = key_of(meta.get("namespace", ""), meta["name"])
        if key in self._items.get(resource.full_name, {}):
            message = f'{resource.full_name} "{meta["name"]}" already exists'
            raise Refusal(409, "AlreadyExists", message, name=meta["name"])
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp, "generation": 1}
        item |= {"apiVersion": resource.api_version, "kind": resource.kind}
        return self._store(resource, None, item)

    def patch(self, resource: Resource[Any], name: str, namespace: str, change: Json, subresource: str = "") -> Json:
        """A merge patch, with all that the API server checks."""
        before = self.get(resource, name, namespace)
        old, asked = before["metadata"], change.get("metadata") or {}
        if asked.get("resourceVersion", old["resourceVersion"]) != old["resourceVersion"]:
            message = f'Operation cannot be fulfilled on {resource.full_name} "{name}": the object has been modified'
            raise Refusal(409, "Conflict", message, name=name)
        if subresource == "status":
            after = copy.deepcopy(before)
            after["status"] = _merged(before.get("status") or {}, change.get("status") or {})
            return self._update(resource, before, after)
        if asked.get("uid", old["uid"]) != old["uid"]:
            raise _immutable("metadata.uid", "field is immutable")
        after = _merged(before, {part: value for part, value in change.items() if part != "status"})
        after["metadata"] |= {name: old[name] for name in ("uid", "resourceVersion", "generation")}
        added = set(after["metadata"].get("finalizers") or ()) - set(old.get("finalizers") or ())
        if old.get("deletionTimestamp") and added:
            message = (
                "Forbidden: no new finalizers can be added if the object is being deleted, "
                f"found new finalizers {sorted(added)}"
            )
            raise _immutable("metadata.finalizers", message)
        return self._update(resource, before, after)

    def delete(self, resource: Resource[Any], name: str, namespace: str, preconditions: Json | None = None) -> Json:
        """Delete an object, or mark it as being deleted while it has finalizers."""
        before = self.get(resource, name, namespace)
        for field_name, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            wanted, found = (preconditions or {}).get(field_name), before["metadata"][field_name]
            if wanted not in {None, found}:
                message = f"the {label} in the precondition ({wanted}) does not match the {label} in record ({found})"
                raise Refusal(409, "Conflict", message, name=name)
        if not before["metadata"].get("finalizers"):
            self._remove(resource, before)
            return before
        if before["metadata"].get("deletionTimestamp"):
            return before
        after = copy.deepcopy(before)
        after["metadata"]["deletionTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._store(resource, before, after)

    def _update(self, resource: Resource[Any], before: Json, after: Json) -> Json:
        if after == before:
            return before
        meta = after["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            self._remove(resource, before)
            return after
        if after.get("spec") != before.get("spec"):
            meta["generation"] += 1
        return self._store(resource, before, after)

    def _store(self, resource: Resource[Any], before: Json | None, after: Json) -> Json:
        self.version += 1
        meta = after["metadata"]
        meta["resourceVersion"] = str(self.version)
        items = self._items.setdefault(resource.full_name, {})
        items[key_of(meta.get("namespace", ""), meta["name"])] = after
        self.history.append(Change(self.version, resource.full_name, before, after))
        return after

    def _remove(self, resource: Resource[Any], before: Json) -> None:
        self.version += 1
        meta = before["metadata"]
        del self._items[resource.full_name][key_of(meta.get("namespace", ""), meta["name"])]
        self.history.append(Change(self.version, resource.full_name, before, None))


def _immutable(place: str, message: str) -> Refusal:
    cause = {"reason": "FieldValueForbidden", "message": message, "field": place}
    return Refusal(422, "Invalid", f"{place}: {message}", causes=[cause])


def _merged(target: Any, patch: Any) -> Any:
    """A merge patch, applied; nothing of either is shared with what comes out."""
    return copy.deepcopy(applied(target, patch))


def _matches(item: Json | None, wanted: dict[str, str], namespace: str) -> bool:
    if item is None or (namespace and item["metadata"].get("namespace", "") != namespace):
        return False
    return all(_at(item, place) == text for place, text in wanted.items())


def _at(item: Json, place: str) -> str:
    found: Any = item
    for part in place.split("."):
        found = found.get(part, "") if isinstance(found, dict) else ""
    return str(found)
