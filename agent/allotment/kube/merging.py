"""Merge patches (RFC 7396): making one, and telling whether an object already shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["merge_patch", "shows"]


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


def shows(found: Any, patch: Any) -> bool:
    """Whether applying `patch` to `found` would change nothing.

    Objects in lists are compared by what the patch says of them: the API server fills in defaults.
    """
    if isinstance(patch, Mapping):
        if not isinstance(found, Mapping):
            # What is empty (null, false, an empty list) may be left out of what the API server shows.
            return not found and all(shows(None, value) for value in patch.values())
        return all(shows(found.get(name), value) for name, value in patch.items())
    if isinstance(patch, list | tuple):
        found = found or ()
        return (
            isinstance(found, list | tuple)
            and len(found) == len(patch)
            and all(shows(*pair) for pair in zip(found, patch, strict=True))
        )
    return bool(found == patch) or (not patch and not found)
