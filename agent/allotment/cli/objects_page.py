"""The page about our kinds: fields, limits and rules, from the schemas that the CRDs have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from allotment.api.crd import RULES, placed, schema_of
from allotment.api.kinds import KINDS
from allotment.api.meta import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allotment.api.kinds import Kind

__all__ = ["INTRODUCTION", "sections"]

INTRODUCTION = f"""\
All are of `{API_VERSION}`, and shown together by `kubectl get allotment`. This is what the API server
enforces, and a folder of manifests as well; "known by" means that no two entries of a list have the same value there.
A rule that begins with "can't" is about changes. Rules don't hold up the status or the deletion of an object that was
stored before they came."""

_CONDITION = "metav1.Condition"


def sections() -> Iterator[str]:
    """One section of Markdown for each kind."""
    for kind in KINDS:
        yield _section(kind)


def _section(kind: Kind) -> str:
    schema = schema_of(kind)
    called = f", `kubectl get {kind.short_names[0]}`" if kind.short_names else ""
    where = "in a namespace" if kind.namespaced else "cluster-wide"
    parts = [f"## {kind.name}\n\n{schema['description']} ({where}{called})"]
    parts += [
        f"`{name}`: {schema['properties'][name]['description']}"
        for name in ("spec", "status")
        if name in schema["properties"]
    ]
    if kind.selectable:
        fields = ", ".join(f"`{path[1:]}`" for path in kind.selectable)
        parts.append(f"Lists and watches may select by {fields}.")
    rows = list(_rows(schema, ""))
    if rows:
        parts.append("| field | value | meaning |\n| --- | --- | --- |\n" + "\n".join(rows))
    rules = list(_rules(kind))
    if rules:
        parts.append("Rules:\n\n" + "\n".join(rules))
    return "\n\n".join(parts)


def _children(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """The fields of an object, or those of the entries of a list, each with its path and whether it is needed."""
    needed = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        if name not in {"apiVersion", "kind"} or path:
            yield f"{path}.{name}" if path else name, field, name in needed


def _rows(schema: dict[str, Any], path: str) -> Iterator[str]:
    for place, field, needed in _children(schema, path):
        inner, at = _entry(field, place)
        if str(inner.get("description", "")).startswith(_CONDITION):
            continue
        meaning = inner.get("description", "") if "." in place else ""
        if place not in {"spec", "status", "metadata"}:
            value = _value(field) + (", required" if needed else "")
            yield "| " + " | ".join(text.replace("|", "\\|") for text in (f"`{place}`", value, meaning)) + " |"
        yield from _rows(inner, at)


def _entry(field: dict[str, Any], place: str) -> tuple[dict[str, Any], str]:
    """What a field's own fields are looked for in: the entries of a list, else the field itself."""
    return (field["items"], f"{place}[]") if field["type"] == "array" else (field, place)


def _value(field: dict[str, Any]) -> str:
    if field["type"] == "array":
        return _list(field)
    if "enum" in field:
        text = " or ".join(f"`{word}`" for word in field["enum"] if word)
    elif field["type"] == "string":
        text = f"text of at most {field['maxLength']}"
    elif field["type"] == "integer":
        text = _number(field)
    elif field["type"] == "boolean":
        text = "`true` or `false`"
    else:
        text = f"mapping of at most {field['maxProperties']}" if "maxProperties" in field else "object"
    return text + (f", default `{field['default']}`" if "default" in field else "")


def _list(field: dict[str, Any]) -> str:
    low, high, entry = field.get("minItems", 0), field["maxItems"], field["items"]
    of = "objects" if entry["type"] == "object" else _value(entry)
    text = f"list of {f'{low} to {high}' if low else f'at most {high}'}: {of}"
    if field["x-kubernetes-list-type"] == "map":
        return f"{text}, known by `{field['x-kubernetes-list-map-keys'][0]}`"
    return f"{text}, none twice" if field["x-kubernetes-list-type"] == "set" else text


def _number(field: dict[str, Any]) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if high is not None:
        return f"number from {low} to {high}"
    return "number" if low is None else f"number from {low}"


def _rules(kind: Kind) -> Iterator[str]:
    if kind.name_words:
        yield f"- `metadata.name`: {_name(dict(kind.name_words))}"
    for path, place in placed(kind):
        for rule in RULES.get(place, ()):
            yield f"- `{path}{rule.field}`: {re.sub('{[^}]*}', '…', rule.text)}"


def _name(words: dict[str, Any]) -> str:
    if "enum" in words:
        return " or ".join(f"`{word}`" for word in words["enum"])
    return f"at most {words['maxLength']} characters, of the form `{words['pattern']}`"
