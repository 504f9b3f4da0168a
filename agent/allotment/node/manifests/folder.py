"""A folder of manifests, read again and again: what it says now, and what of the past still counts.

What can't be read never counts as gone:
- A file with a problem keeps the objects it had when it was last good.
- An object that is in no file any more is kept until it has been missing for a moment (an editor may be between
  two steps of saving), and as long as any file has a problem (the object may be in that file).
- A folder that is missing, can't be listed, or has no manifests left though it held objects, is doubted: all of the
  last good state is kept. A single file without objects, even one that holds a comment alone, is enough to say that
  the emptiness is meant.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from allotment.api.network import Network
from allotment.api.validate import validate_update
from allotment.node.manifests.document import ManifestError
from allotment.node.manifests.file import Found, Key, Manifest, key_of, parse_manifest, read_content
from allotment.node.view import FileProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from allotment.api.validate import Resource

__all__ = ["FILE_LIMIT", "ManifestFolder", "Reading", "Served"]

FILE_LIMIT = 10_000
"""Most files that are read."""
_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Served:
    """An object that counts, and the file it came from."""

    resource: Resource
    file: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What the folder says: `sure` when it could be read whole, so that what is not in it is gone.

    `again_in` is the number of seconds after which another look will find that something is gone; None: no need.
    """

    served: Mapping[Key, Served]
    problems: tuple[FileProblem, ...] = ()
    warnings: tuple[FileProblem, ...] = ()
    doubted: str = ""
    again_in: float | None = None

    @property
    def sure(self) -> bool:
        """Whether what is absent is gone, and what is new may be admitted."""
        return not self.problems and not self.doubted


class ManifestFolder:
    """Reads the folder; knows what counted before. Blocks on the disk, so it is used off the event loop."""

    def __init__(self, folder: Path, served: Mapping[Key, Served], *, grace: float = 1.0) -> None:
        """Start from what counted when it was last read (empty: never); `grace` in seconds."""
        self._folder = folder
        self._served = dict(served)
        self._grace = grace
        self._missing: dict[Key, float] = {}
        self._parsed: dict[str, tuple[bytes, Manifest]] = {}

    def read(self, now: float, *, expected: bool, in_use: Callable[[str], frozenset[str]]) -> Reading:
        """Look at every file. `now` in seconds of a clock that never jumps.

        `expected` says that the folder should not be empty, for other reasons than what was read from it; `in_use`
        tells which subnets of a network (by `cidr`) are in use, and so may not be removed.
        """
        try:
            names, excess = _manifest_names(self._folder)
        except OSError as error:
            why = f"the folder {self._folder} can't be read ({error.strerror or error})"
            if not self._served and not expected:
                return Reading({}, doubted=f"{why}; make it, or name another with --manifests")
            return self._doubt(why)
        if not names and not excess and (self._served or expected):
            return self._doubt(
                f"the folder {self._folder} holds no manifests, though it did before; if that is meant, put a file "
                "into it that holds a comment alone"
            )
        manifests = {name: self._manifest(name) for name in names}
        self._parsed = {name: entry for name, entry in self._parsed.items() if name in manifests}
        merged = _Merge(self._served, in_use)
        for name, manifest in manifests.items():
            merged.take(name, manifest)
        merged.keep_broken()
        merged.problems.extend(excess)
        again_in = self._keep_missing(merged, now)
        self._served = merged.served
        return Reading(
            dict(merged.served),
            tuple(sorted(merged.problems)),
            tuple(sorted(merged.warnings)),
            again_in=again_in,
        )

    def _doubt(self, why: str) -> Reading:
        self._missing.clear()
        return Reading(dict(self._served), doubted=f"{why}; what it held is still served")

    def _manifest(self, name: str) -> Manifest:
        try:
            content = read_content(self._folder / name)
        except ManifestError as error:
            return Manifest(problems=(FileProblem(name, error.line, error.message),))
        if not content and (had := sum(item.file == name for item in self._served.values())):
            message = f"is empty, though it held {had} object(s); delete the file if that is meant"
            return Manifest(problems=(FileProblem(name, 0, message),))
        digest = blake2b(content, digest_size=16).digest()
        known = self._parsed.get(name)
        if known is not None and known[0] == digest:
            return known[1]
        manifest = parse_manifest(name, content)
        self._parsed[name] = (digest, manifest)
        return manifest

    def _keep_missing(self, merged: _Merge, now: float) -> float | None:
        """Keep what is in no file any more until its time is over; says when the next one's is."""
        waits: list[float] = []
        missing: dict[Key, float] = {}
        for key, item in self._served.items():
            if key in merged.served:
                continue
            since = self._missing.get(key, now)
            left = since + self._grace - now
            if merged.problems:
                message = f"{key[0]} {key[1]} is in no file any more; kept until all files can be read"
                merged.warnings.append(FileProblem(item.file, 0, message))
            elif left <= 0:
                continue
            else:
                waits.append(left)
            missing[key] = since
            merged.served[key] = item
        self._missing = missing
        return min(waits, default=None)


class _Merge:
    """Puts the files together: in the order of their names, the first that has an object counts."""

    def __init__(self, before: Mapping[Key, Served], in_use: Callable[[str], frozenset[str]]) -> None:
        self.served: dict[Key, Served] = {}
        self.problems: list[FileProblem] = []
        self.warnings: list[FileProblem] = []
        self._before = before
        self._in_use = in_use
        self._broken: set[str] = set()

    def take(self, name: str, manifest: Manifest) -> None:
        """Add a file, unless it has a problem or changes what can't be changed."""
        self.warnings.extend(manifest.warnings)
        fresh = [item for item in manifest.found if key_of(item.resource) not in self.served]
        refused = [problem for item in fresh for problem in self._refusals(name, item)]
        self.problems.extend((*manifest.problems, *refused))
        if manifest.problems or refused:
            self._broken.add(name)
            return
        for item in manifest.found:
            key = key_of(item.resource)
            if key in self.served:
                message = f"{key[0]} {key[1]} is also in {self.served[key].file}, which counts; remove one of them"
                self.problems.append(FileProblem(name, item.line_of(), message))
            else:
                self.served[key] = Served(item.resource, name)

    def _refusals(self, name: str, item: Found) -> Iterator[FileProblem]:
        old = self._before.get(key_of(item.resource))
        if old is None or old.resource == item.resource:
            return
        before = old.resource
        if isinstance(before, Network):
            used = tuple(sorted(self._in_use(before.name)))
            before = msgspec.structs.replace(before, status=msgspec.structs.replace(before.status, subnets_in_use=used))
        subject = " ".join(key_of(item.resource))
        for problem in validate_update(before, item.resource):
            yield FileProblem(name, item.line_of(problem.path), f"{subject}: {problem}")

    def keep_broken(self) -> None:
        """What the broken files had counts on, except what has moved to a good one."""
        for key, item in self._before.items():
            if item.file in self._broken:
                self.served.setdefault(key, item)


def _manifest_names(folder: Path) -> tuple[list[str], list[FileProblem]]:
    """The names of the manifests in a folder, sorted, and what is wrong with some of them."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if _is_manifest(entry.name))
    problems = [
        FileProblem(ascii(name), 0, "its name has characters that can't be shown; rename it")
        for name in names
        if not name.isprintable()
    ]
    names = [name for name in names if name.isprintable()]
    if len(names) > FILE_LIMIT:
        message = f"holds {len(names)} manifests, of which only the first {FILE_LIMIT} are read"
        problems.append(FileProblem(str(folder), 0, message))
    return names[:FILE_LIMIT], problems


def _is_manifest(name: str) -> bool:
    """Dotfiles are other programs': editors' temporary files, and the `..data` of a mounted ConfigMap."""
    return name.endswith(_SUFFIXES) and not name.startswith(".")
