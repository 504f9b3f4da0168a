"""YAML as people write manifests in it, read as nothing but JSON with line numbers.

YAML's own ideas of types turn `no` into false, `12:30` into 750, `010` into 8 and `2026-01-01` into a date. Here a
plain word is a number, true, false or null only where JSON would write it so; everything else is the text that
stands there. Aliases are followed, but counted: a few lines can't become millions of values. Tags, merge keys and
duplicate keys are refused. JSON is read by the same parser, of which it is a subset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from allotment.addressing.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Document", "ManifestError", "read_documents"]

NODE_LIMIT = 100_000
"""Most values in one file, each use of an alias counted anew."""
DEPTH_LIMIT = 64

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's where PyYAML was built with it
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,39})(?P<fraction>(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?)")
_WORDS: dict[str, object] = {"": None, "~": None, "null": None, "true": True, "false": False}
_TEXT_TAGS = frozenset({None, "!", "tag:yaml.org,2002:str"})
_COLLECTION_TAGS = frozenset({None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})


class ManifestError(DecodeError):
    """Why a file can't be read, and on which line (from 1; 0: none in particular). It becomes a FileProblem."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class _Node:
    """A value with the line it starts on; `size` and `height` count what lies below, aliases included."""

    line: int
    value: Any
    size: int = 1
    height: int = 1


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not been read."""

    node: _Node
    anchor: str | None
    key: str | None = None


@dataclass(slots=True)
class Document:
    """One YAML document: `data` as JSON would give it, and the line of each part."""

    line: int
    data: Any
    _root: _Node = field(repr=False)

    def line_of(self, path: Iterable[str | int]) -> int:
        """The line of the value at a path, or of the nearest thing above it that exists."""
        node = self._root
        for step in path:
            try:
                node = node.value[step]
            except (KeyError, IndexError, TypeError):
                break
        return node.line


def read_documents(content: bytes) -> list[Document]:
    """All documents of a file that are not empty.

    Raises:
        ManifestError: it is not UTF-8, not YAML, or of a kind of YAML that is not read here.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ManifestError(line, f"byte {error.start} is not UTF-8 text") from error
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.feed(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        about = ", ".join(part for part in (error.problem, error.context) if part)
        # What is missing at the end is reported behind it: the last line is the one to look at.
        line = min(mark.line, len(text.splitlines()) - 1) + 1 if mark else 0
        raise ManifestError(line, f"not valid YAML: {about}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ManifestError(line, f"not valid YAML: {error.reason}") from error
    except yaml.YAMLError as error:
        raise ManifestError(0, f"not valid YAML: {error}") from error
    return [Document(root.line, _plain(root), root) for root in builder.roots if root.value is not None]


class _Builder:
    """Puts the parser's events together; works without recursion, so that no input is too deep for it."""

    def __init__(self) -> None:
        self.roots: list[_Node] = []
        self._size = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, _Node | None] = {}  # None: begun, not yet complete

    def feed(self, event: Any) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 0
        match event:
            case yaml.DocumentStartEvent():
                self._anchors = {}
            case yaml.ScalarEvent():
                self._scalar(event, line)
            case yaml.AliasEvent():
                self._alias(event.anchor, line)
            case yaml.MappingStartEvent():
                self._begin(event, line, {})
            case yaml.SequenceStartEvent():
                self._begin(event, line, [])
            case yaml.CollectionEndEvent():
                done = self._open.pop()
                if done.anchor:
                    self._anchors[done.anchor] = done.node
                self._add(done.node)
            case _:
                pass  # the stream's begin and end, a document's end

    def _begin(self, event: Any, line: int, value: Any) -> None:
        if event.tag not in _COLLECTION_TAGS:
            raise ManifestError(line, f"the tag {event.tag} is not read here; leave it out")
        if self._open and isinstance(self._open[-1].node.value, dict) and self._open[-1].key is None:
            raise ManifestError(line, "a key must be plain text, not a list or a mapping")
        if len(self._open) >= DEPTH_LIMIT:
            raise ManifestError(line, f"nested more than {DEPTH_LIMIT} deep")
        if event.anchor:
            self._anchors[event.anchor] = None
        self._open.append(_Open(_Node(line, value), event.anchor))

    def _scalar(self, event: Any, line: int) -> None:
        if event.tag not in _TEXT_TAGS:
            raise ManifestError(line, f"the tag {event.tag} is not read here; leave it out")
        if self._takes_key(event, line):
            return
        plain = event.implicit[0] and event.tag is None
        node = _Node(line, _resolve(event.value) if plain else event.value)
        if event.anchor:
            self._anchors[event.anchor] = node
        self._add(node)

    def _takes_key(self, event: Any, line: int) -> bool:
        """Whether this scalar is a mapping's next key."""
        if not self._open or not isinstance(self._open[-1].node.value, dict) or self._open[-1].key is not None:
            return False
        if event.value == "<<" and event.implicit[0]:
            raise ManifestError(line, "merge keys (<<) are not read here; write the fields out")
        if event.value in self._open[-1].node.value:
            raise ManifestError(line, f"{event.value!r} is given twice")
        self._open[-1].key = event.value
        return True

    def _alias(self, anchor: str | None, line: int) -> None:
        if self._open and isinstance(self._open[-1].node.value, dict) and self._open[-1].key is None:
            raise ManifestError(line, "a key must be plain text, not an alias")
        if anchor is None or anchor not in self._anchors:
            raise ManifestError(line, f"*{anchor} refers to nothing: there is no &{anchor} before it")
        node = self._anchors[anchor]
        if node is None:
            raise ManifestError(line, f"*{anchor} stands inside of what it refers to")
        self._add(node)

    def _add(self, node: _Node) -> None:
        if not self._open:
            self.roots.append(node)
            self._size += node.size
            _limit_size(self._size, node)
            return
        around = self._open[-1]
        parent = around.node
        parent.size += node.size
        parent.height = max(parent.height, node.height + 1)
        _limit_size(self._size + parent.size, node)
        if parent.height + len(self._open) > DEPTH_LIMIT:
            raise ManifestError(node.line, f"nested more than {DEPTH_LIMIT} deep")
        if isinstance(parent.value, dict):
            parent.value[around.key] = node
            around.key = None
        else:
            parent.value.append(node)


def _limit_size(size: int, node: _Node) -> None:
    if size > NODE_LIMIT:
        raise ManifestError(node.line, f"holds more than {NODE_LIMIT} values")


def _resolve(text: str) -> object:
    """What a plain word means."""
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    return float(text) if number["fraction"] else int(text)


def _plain(node: _Node) -> Any:
    if isinstance(node.value, dict):
        return {key: _plain(inner) for key, inner in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(inner) for inner in node.value]
    return node.value
