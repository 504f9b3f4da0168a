"""Indexes as text: one number, or an inclusive range `first..last`."""

from __future__ import annotations

import re
from typing import NamedTuple

from allotment.addressing.errors import ConfigError

__all__ = ["INDEX_LIMIT", "IndexRun", "parse_index", "parse_indexes"]

INDEX_LIMIT = (1 << 63) - 1
"""Highest index: what fits into 64 bits with a sign, as Kubernetes' integers do."""

_NUMBER = re.compile(r"0|[1-9][0-9]*", re.ASCII)


class IndexRun(NamedTuple):
    """The numbers from `first` to `last`, both included. Ordered by `first`."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}..{self.last}"

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return self.last - self.first + 1

    def covers(self, other: IndexRun) -> bool:
        """Whether all of `other` lies inside."""
        return self.first <= other.first and other.last <= self.last

    def overlaps(self, other: IndexRun) -> bool:
        """Whether the two share a number."""
        return self.first <= other.last and other.first <= self.last


def parse_index(text: str) -> int:
    """Parse one number.

    Raises:
        ConfigError: not a number from 0 to 2^63 - 1, or with leading zeros.
    """
    if not _NUMBER.fullmatch(text) or int(text) > INDEX_LIMIT:
        raise ConfigError(f"{text!r} is not a number from 0 to {INDEX_LIMIT}, written without leading zeros")
    return int(text)


def parse_indexes(text: str) -> IndexRun:
    """Parse one number or a range such as `64512..65534`.

    Raises:
        ConfigError: neither, or reversed; the message shows the right form.
    """
    first_text, dots, last_text = text.partition("..")
    if not dots:
        if not text.isdecimal():
            raise ConfigError(f"{text!r} is not a range of numbers; write it like 7 or 64512..65534")
        number = parse_index(text)
        return IndexRun(number, number)
    first, last = parse_index(first_text), parse_index(last_text)
    if first > last:
        raise ConfigError(f"{text!r} is reversed; write {f'{last}..{first}'!r}")
    return IndexRun(first, last)
