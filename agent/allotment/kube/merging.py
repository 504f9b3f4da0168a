"""Merge patches (RFC 7396): making one, and what one makes of an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["applied", "merge_patch"]


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What turns `before` into `after`, and says all of `after`: what only `before` has becomes null.

    Null, because a merge patch leaves alone what it doesn't name. Lists are replaced as a whole.
    """
    patch: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Mapping):
            patch[name] = merge_patch(old if isinstance(old, Mapping) else {}, value)
        else:
            patch[name] = value
    return patch


def applied(target: Any, patch: Any) -> Any:
    """What a merge patch makes of a value, which stays as it is."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = applied(found.get(name), value)
    return found
