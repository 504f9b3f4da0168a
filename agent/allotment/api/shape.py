"""Whether raw data (from JSON or YAML) has the form of one of our types: all faults at once, each with its place.

This is the part of validation that a CRD's structural schema does: types, required fields, enums, limits of one
field. It works on data that may be of any form, so it can name every fault, where a decoder stops at the first.
Unknown fields are no fault (a newer version may know them), but a warning with the nearest known name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

if TYPE_CHECKING:
    import enum

__all__ = ["Path", "Problem", "check_shape", "shown"]

Path = tuple[str | int, ...]


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong (or, as a warning, odd): where, and what the right form is."""

    path: Path
    message: str

    @property
    def field(self) -> str:
        """The place as people write it: `spec.subnets[0].cidr`."""
        text = ""
        for step in self.path:
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
        return text

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.path else self.message


def check_shape(raw: object, type_: type[msgspec.Struct], path: Path = ()) -> tuple[list[Problem], list[Problem]]:
    """All faults and all warnings of `raw` against a type. No faults means that msgspec can convert it."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for problem, is_fault in _check(raw, _described(type_), {}, path):
        (problems if is_fault else warnings).append(problem)
    return problems, warnings


@cache
def _described(type_: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(type_)


_Found = Iterator[tuple[Problem, bool]]


def _fault(path: Path, message: str) -> tuple[Problem, bool]:
    return Problem(path, message), True


def _check(raw: Any, kind: inspect.Type, limit: dict[str, Any], path: Path) -> _Found:
    match kind:
        case inspect.Metadata():
            yield from _check(raw, kind.type, {**limit, **(kind.extra_json_schema or {})}, path)
        case inspect.UnionType():  # of ours, only `X | None`
            yield from _check(raw, next(t for t in kind.types if not isinstance(t, inspect.NoneType)), limit, path)
        case inspect.StructType():
            yield from _check_struct(raw, kind, path)
        case inspect.DictType():
            yield from _check_dict(raw, kind, limit, path)
        case inspect.VarTupleType():
            yield from _check_list(raw, kind, limit, path)
        case inspect.EnumType():
            yield from _check_choice(raw, _values(kind.cls), path)
        case inspect.LiteralType():
            yield from _check_choice(raw, tuple(str(value) for value in kind.values), path)
        case inspect.BoolType():
            if not isinstance(raw, bool):
                yield _fault(path, f"must be true or false, not {shown(raw)}")
        case inspect.IntType():
            yield from _check_int(raw, limit, path)
        case inspect.StrType():
            yield from _check_text(raw, limit, path)
        case _:
            message = f"no rule for a field of type {kind!r}"
            raise TypeError(message)


def _values(cls: type[enum.Enum]) -> tuple[str, ...]:
    return tuple(str(member.value) for member in cls)


def _check_struct(raw: Any, kind: inspect.StructType, path: Path) -> _Found:
    if not isinstance(raw, dict):
        yield _fault(path, f"must be a mapping of fields, not {shown(raw)}")
        return
    known = {field.encode_name: field for field in kind.fields}
    for name, value in raw.items():
        if name in known:
            yield from _check(value, known[name].type, {}, (*path, name))
        else:
            yield Problem((*path, str(name)), _unknown(str(name), tuple(known))), False
    for name, field in known.items():
        if field.required and name not in raw:
            yield _fault((*path, name), "is required and missing")


def _unknown(name: str, known: tuple[str, ...]) -> str:
    by_case = {word.casefold(): word for word in known}
    near = difflib.get_close_matches(name.casefold(), by_case, n=1, cutoff=0.6)
    hint = f"; did you mean {by_case[near[0]]}?" if near else f"; the fields here are {', '.join(sorted(known))}"
    return f"unknown field, ignored{hint}"


def _check_dict(raw: Any, kind: inspect.DictType, limit: dict[str, Any], path: Path) -> _Found:
    if not isinstance(raw, dict):
        yield _fault(path, f"must be a mapping, not {shown(raw)}")
        return
    for name, value in raw.items():
        yield from _check(value, kind.value_type, limit, (*path, name))


def _check_list(raw: Any, kind: inspect.VarTupleType, limit: dict[str, Any], path: Path) -> _Found:
    if not isinstance(raw, list | tuple):
        yield _fault(path, f"must be a list, not {shown(raw)}")
        return
    low, high = limit.get("minItems", 0), limit.get("maxItems")
    if len(raw) < low:
        yield _fault(path, f"needs at least {low} {'entry' if low == 1 else 'entries'}; it has {len(raw)}")
    if high is not None and len(raw) > high:
        yield _fault(path, f"may have at most {high} entries; it has {len(raw)}")
        return
    for index, value in enumerate(raw):
        yield from _check(value, kind.item_type, {}, (*path, index))
        if limit.get("unique") and value in raw[:index]:
            yield _fault((*path, index), f"{shown(value)} is listed twice")


def _check_choice(raw: Any, allowed: tuple[str, ...], path: Path) -> _Found:
    if raw not in allowed:
        near = [word for word in allowed if word.casefold() == str(raw).casefold()]
        listed = near[0] if near else f"one of {', '.join(allowed)}"
        yield _fault(path, f"must be {listed}, not {shown(raw)}")


def _check_int(raw: Any, limit: dict[str, Any], path: Path) -> _Found:
    if not isinstance(raw, int) or isinstance(raw, bool):
        yield _fault(path, f"must be a whole number, not {shown(raw)}")
        return
    low, high = limit.get("minimum"), limit.get("maximum")
    if (low is not None and raw < low) or (high is not None and raw > high):
        wanted = f"from {low} to {high}" if high is not None else f"{low} or more"
        yield _fault(path, f"must be a number {wanted}, not {raw}")
    elif not -(1 << 63) <= raw < 1 << 63:
        yield _fault(path, f"{raw} does not fit into 64 bits")


def _check_text(raw: Any, limit: dict[str, Any], path: Path) -> _Found:
    if not isinstance(raw, str):
        quoted = f'; put it in quotes: "{raw}"' if isinstance(raw, int | float) and not isinstance(raw, bool) else ""
        yield _fault(path, f"must be text, not {shown(raw)}{quoted}")
        return
    high = limit.get("maxLength")
    if len(raw) < limit.get("minLength", 0):
        yield _fault(path, "must not be empty")
    if high is not None and len(raw) > high:
        yield _fault(path, f"may have at most {high} characters; it has {len(raw)}")


def shown(raw: object) -> str:
    """A value as it is shown in a message: short, and clear about what kind of thing it is."""
    match raw:
        case None:
            return "null"
        case bool():
            return "true" if raw else "false"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case str():
            return repr(raw if len(raw) <= 60 else raw[:57] + "…")
        case _:
            return f"the number {raw}"
