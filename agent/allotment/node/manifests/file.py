"""One manifest file: from its bytes to the objects in it, or to what is wrong with it, line by line."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allotment.api.decoding import decode, is_ours
from allotment.api.shape import shown
from allotment.node.manifests.document import Document, ManifestError, read_documents
from allotment.node.view import FileProblem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from allotment.api.shape import Path as FieldPath
    from allotment.api.validate import Resource

__all__ = ["SIZE_LIMIT", "Found", "Key", "Manifest", "key_of", "parse_manifest", "read_content"]

SIZE_LIMIT = 1 << 20
"""Largest file, in bytes."""

Key = tuple[str, str]
"""(kind, name): what identifies an object."""


def key_of(resource: Resource) -> Key:
    """What identifies an object."""
    return resource.kind, resource.metadata.name


@dataclass(frozen=True, slots=True)
class Found:
    """An object and where it stands."""

    resource: Resource
    document: Document
    base: FieldPath

    def line_of(self, path: FieldPath = ()) -> int:
        """The line of one of its fields, or of what is nearest to it."""
        return self.document.line_of((*self.base, *path))


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a file says. With any problem none of its objects counts."""

    found: tuple[Found, ...] = ()
    problems: tuple[FileProblem, ...] = ()
    warnings: tuple[FileProblem, ...] = ()


def read_content(path: Path) -> bytes:
    """A file's bytes, as they were at one moment. Never blocks on a pipe or a device.

    Raises:
        ManifestError: not a file, too large, unreadable, or changed while it was read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                what = "a directory" if stat.S_ISDIR(before.st_mode) else "a pipe or a device"
                raise ManifestError(0, f"is {what}, not a file")
            content = _read_up_to(descriptor, SIZE_LIMIT + 1)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ManifestError(0, f"can't be read: {error.strerror or error}") from error
    if len(content) > SIZE_LIMIT:
        raise ManifestError(0, f"is larger than {SIZE_LIMIT >> 20} MiB; split it into several files")
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or after.st_size != len(content):
        raise ManifestError(0, "is being written to; it will be read again")
    return content


def _read_up_to(descriptor: int, most: int) -> bytes:
    pieces = []
    while most > 0 and (piece := os.read(descriptor, min(most, 1 << 16))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def parse_manifest(name: str, content: bytes) -> Manifest:
    """Read a file's objects. Kinds of other groups are passed over, with a warning; `List`s are opened."""
    try:
        documents = read_documents(content)
    except ManifestError as error:
        return Manifest(problems=(FileProblem(name, error.line, error.message),))
    reader = _ObjectReader(name)
    for document in documents:
        for base, raw in _objects(document):
            reader.take(document, base, raw)
    return reader.manifest()


def _objects(document: Document) -> Iterator[tuple[FieldPath, Any]]:
    """The objects of a document: itself, or the items of a list as `kubectl get -o yaml` writes it."""
    raw = document.data
    if isinstance(raw, dict) and str(raw.get("kind", "")).endswith("List") and isinstance(raw.get("items"), list):
        for index, item in enumerate(raw["items"]):
            yield ("items", index), item
    else:
        yield (), raw


class _ObjectReader:
    """Takes the objects of one file, one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: list[Found] = []
        self._problems: list[FileProblem] = []
        self._warnings: list[FileProblem] = []

    def take(self, document: Document, base: FieldPath, raw: Any) -> None:
        line = document.line_of(base)
        if not isinstance(raw, dict):
            message = "an object is expected here: apiVersion, kind, metadata, spec"
            self._problems.append(FileProblem(self._name, line, message))
        elif raw.get("apiVersion") is None or raw.get("kind") is None:
            self._problems.append(FileProblem(self._name, line, "an object needs apiVersion and kind"))
        elif not is_ours(raw):
            message = f"{shown(raw['kind'])} of {shown(raw['apiVersion'])} is not read here"
            self._warnings.append(FileProblem(self._name, line, message))
        else:
            self._decode(document, base, raw)

    def manifest(self) -> Manifest:
        problems = (*self._problems, *_duplicates(self._name, self._found))
        return Manifest(tuple(self._found), problems, tuple(self._warnings))

    def _decode(self, document: Document, base: FieldPath, raw: dict[str, Any]) -> None:
        decoded = decode(raw)
        metadata = raw.get("metadata")
        named = metadata.get("name") if isinstance(metadata, dict) else None
        subject = f"{raw['kind']} {named}" if named else f"{raw['kind']}"
        for issues, into in ((decoded.problems, self._problems), (decoded.warnings, self._warnings)):
            into.extend(
                FileProblem(self._name, document.line_of((*base, *issue.path)), f"{subject}: {issue}")
                for issue in issues
            )
        if decoded.resource is not None:
            self._found.append(Found(decoded.resource, document, base))


def _duplicates(name: str, found: list[Found]) -> Iterator[FileProblem]:
    first: dict[Key, Found] = {}
    for item in found:
        key = key_of(item.resource)
        if key in first:
            message = f"{key[0]} {key[1]} stands in this file twice, first on line {first[key].line_of()}"
            yield FileProblem(name, item.line_of(), message)
        else:
            first[key] = item
