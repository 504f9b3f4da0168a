"""The state folder of standalone mode: what an API server would keep, in files that a crash can't break.

    allocations/<name>.yaml             one record for each Allocation of this node
    allocations/<name>.yaml.set-aside   a record that could not be read; it blocks admission until it is removed
    manifests.json                      the objects of the folder as they were last good, for a start without them

Every file is written beside its place, synced, renamed over it, and the folder synced: at any moment, also after a
power loss, each is there whole, old or new. Whatever a crash left beside is removed at the next start.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from allotment.addressing.errors import ConfigError
from allotment.api.decoding import KINDS
from allotment.node.manifests.document import ManifestError, read_documents
from allotment.node.manifests.file import key_of
from allotment.node.manifests.folder import Served
from allotment.node.manifests.standalone import RECORD_VERSION, AllocationRecord
from allotment.node.view import FileProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from allotment.node.manifests.file import Key

__all__ = ["StateFolder"]

_SUFFIX = ".yaml"
_ASIDE = ".set-aside"
_TEMPORARY = ".manifests-tmp-"
_STEM_LIMIT = 200  # leaves room for suffixes in a file name of 255 bytes
_CACHE_VERSION = 1


class _Cache(msgspec.Struct, frozen=True):
    version: int
    files: dict[str, list[dict[str, Any]]]


class StateFolder:
    """Reads and writes the records. Blocks on the disk, so it is used off the event loop, by one user at a time."""

    def __init__(self, folder: Path) -> None:
        """Nothing is touched before `load`."""
        self.folder = folder
        self._allocations = folder / "allocations"
        self._cache = folder / "manifests.json"
        self.problems: tuple[FileProblem, ...] = ()

    def load(self) -> dict[str, AllocationRecord]:
        """All records, by name; clears away what a crash left. What can't be read is set aside and in `problems`.

        Raises:
            OSError: the folder can't be made, read or written.
            ConfigError: a record was written by a newer version.
        """
        self._allocations.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.folder, self._allocations):
            for leftover in folder.glob(f"{_TEMPORARY}*"):
                leftover.unlink()
        records: dict[str, AllocationRecord] = {}
        for path in sorted(self._allocations.glob(f"*{_SUFFIX}")):
            try:
                record = self._read_record(path)
            except (OSError, ManifestError, msgspec.ValidationError) as error:
                self._set_aside(path, str(error))
            else:
                records[record.allocation.name] = record
        return records

    def save(self, record: AllocationRecord) -> None:
        """Write a record durably. Raises OSError, with the old one still in place."""
        with contextlib.suppress(FileExistsError):  # somebody may have emptied the state folder under us
            self._allocations.mkdir(mode=0o700)
        _write(self._path(record.allocation.name), msgspec.yaml.encode(record))

    def drop(self, name: str) -> None:
        """Remove a record durably. Raises OSError."""
        self._path(name).unlink(missing_ok=True)
        _sync_folder(self._allocations)

    def set_aside(self, name: str) -> Path | None:
        """Where an Allocation's unreadable record was put, as long as it is there."""
        path = self._path(name)
        path = path.with_name(path.name + _ASIDE)
        return path if path.exists() else None

    def load_manifests(self) -> dict[Key, Served]:
        """The objects that counted when the folder was last read; empty if it never was, or that can't be read."""
        try:
            cache = msgspec.json.decode(self._cache.read_bytes(), type=_Cache)
            if cache.version == _CACHE_VERSION:
                return {key_of(item.resource): item for item in _served(cache)}
            self._set_aside(self._cache, f"it has version {cache.version}, not {_CACHE_VERSION}")
        except FileNotFoundError:
            pass
        except (msgspec.MsgspecError, KeyError) as error:
            self._set_aside(self._cache, str(error))
        return {}

    def save_manifests(self, served: Mapping[Key, Served]) -> None:
        """Keep the objects that count now, durably. Raises OSError, with the old state still in place."""
        files: dict[str, list[dict[str, Any]]] = {}
        for item in served.values():
            files.setdefault(item.file, []).append(msgspec.to_builtins(item.resource))
        _write(self._cache, msgspec.json.encode(_Cache(_CACHE_VERSION, files)))

    def _path(self, name: str) -> Path:
        """The record's file; a name too long for one is cut and made unique by its SHA-256."""
        stem = name
        if len(name) > _STEM_LIMIT:
            stem = f"{name[: _STEM_LIMIT - 41]}.{sha256(name.encode()).hexdigest()[:40]}"
        return self._allocations / f"{stem}{_SUFFIX}"

    def _read_record(self, path: Path) -> AllocationRecord:
        documents = read_documents(path.read_bytes())
        if len(documents) != 1:
            raise ManifestError(0, f"it holds {len(documents)} documents instead of one")
        raw = documents[0].data
        version = raw.get("version") if isinstance(raw, dict) else None
        if isinstance(version, int) and version > RECORD_VERSION:
            raise ConfigError(
                f"{path} was written by a newer version of Allotment (format {version}, known is {RECORD_VERSION}); "
                "run that version or a newer one"
            )
        record = msgspec.convert(raw, AllocationRecord)
        if self._path(record.allocation.name) != path:
            raise ManifestError(0, f"it is the record of {record.allocation.name!r}, and not called so")
        return record

    def _set_aside(self, path: Path, reason: str) -> None:
        aside = path.with_name(path.name + _ASIDE)
        path.replace(aside)
        _sync_folder(path.parent)
        self.problems = (*self.problems, FileProblem(str(aside), 0, f"could not be read and was set aside: {reason}"))


def _served(cache: _Cache) -> Iterator[Served]:
    for file, objects in cache.files.items():
        for raw in objects:
            yield Served(msgspec.convert(raw, KINDS[raw["kind"]]), file)


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
