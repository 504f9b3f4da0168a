"""The one address-range type: an immutable set of addresses of both families, kept as runs.

All work is done on runs; nothing ever walks over addresses, so a set that covers IPv6 whole costs what a set of
one address costs. Both families lie on one number line, IPv4 first, with a gap between them that no address maps
into, so that no run can reach from one family into the other.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allotment.addressing.address import Address, Family, Prefix, parse_address, parse_prefix
from allotment.addressing.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["IntervalItem", "IntervalSet", "parse_range"]

_SIX = 1 << 33  # where IPv6 begins on the number line
_BEYOND = 1 << 130  # above every point of it

_Run = tuple[int, int]


@dataclass(frozen=True, slots=True)
class IntervalSet:
    """A set of addresses. Equal sets are equal whatever they were built from; `IntervalSet()` is the empty one.

    `points` are the runs (first, last) on the number line: ascending, disjoint, never adjacent. Use `of` to build.
    """

    points: tuple[_Run, ...] = ()

    @classmethod
    def of(cls, *items: IntervalItem) -> IntervalSet:
        """The union of prefixes, addresses, (first, last) pairs and other sets.

        Raises:
            ValueError: a pair is reversed or mixes families (text is checked by `parse_range`).
        """
        runs: list[_Run] = []
        for item in items:
            if isinstance(item, IntervalSet):
                runs.extend(item.points)
            elif isinstance(item, Prefix):
                first = _point(item.family, item.value)
                runs.append((first, first + item.size - 1))
            elif isinstance(item, Address):
                first = _point(item.family, item.value)
                runs.append((first, first))
            else:
                runs.append(_pair(*item))
        return cls(_joined(runs))

    @classmethod
    def of_numbers(cls, family: Family, runs: Iterable[_Run]) -> IntervalSet:
        """The union of runs of one family, given as numbers (first, last): the quick way in for many of them."""
        base = _point(family, 0)
        return cls(_joined([(first + base, last + base) for first, last in runs]))

    def numbers(self, family: Family) -> tuple[_Run, ...]:
        """The runs of one family as numbers (first, last), ascending."""
        if family is Family.V4:
            return tuple(run for run in self.points if run[0] < _SIX)
        return tuple((first - _SIX, last - _SIX) for first, last in self.points if first >= _SIX)

    def __or__(self, other: IntervalSet) -> IntervalSet:
        if not other.points or self.points == other.points:
            return self
        if not self.points:
            return other
        return IntervalSet(_joined([*self.points, *other.points]))

    def __and__(self, other: IntervalSet) -> IntervalSet:
        mine, theirs = self.points, other.points
        runs: list[_Run] = []
        i = j = 0
        while i < len(mine) and j < len(theirs):
            first = max(mine[i][0], theirs[j][0])
            last = min(mine[i][1], theirs[j][1])
            if first <= last:
                runs.append((first, last))
            if mine[i][1] < theirs[j][1]:
                i += 1
            else:
                j += 1
        return IntervalSet(tuple(runs))

    def __sub__(self, other: IntervalSet) -> IntervalSet:
        theirs = other.points
        if not theirs or not self.points:
            return self
        runs: list[_Run] = []
        j = 0
        for start, last in self.points:
            first = start
            while j < len(theirs) and theirs[j][1] < first:
                j += 1
            k = j
            while k < len(theirs) and theirs[k][0] <= last:
                if first < theirs[k][0]:
                    runs.append((first, theirs[k][0] - 1))
                first = theirs[k][1] + 1
                k += 1
            if first <= last:
                runs.append((first, last))
            j = max(j, k - 1)  # the last one looked at may reach into the next run
        return IntervalSet(tuple(runs))

    def __contains__(self, item: object) -> bool:
        """Whether an `Address`, or every address of a `Prefix`, is in the set."""
        if isinstance(item, Prefix):
            first = _point(item.family, item.value)
            run = self._run_at(first)
            return run is not None and first + item.size - 1 <= run[1]
        if isinstance(item, Address):
            return self._run_at(_point(item.family, item.value)) is not None
        return False

    def __iter__(self) -> Iterator[tuple[Address, Address]]:
        """The runs as (first, last), ascending, IPv4 before IPv6."""
        return ((_address(first), _address(last)) for first, last in self.points)

    def __bool__(self) -> bool:
        return bool(self.points)

    def count(self, family: Family | None = None) -> int:
        """How many addresses there are, of one family or of both."""
        return sum(
            last - first + 1 for first, last in self.points if family is None or (first < _SIX) == (family is Family.V4)
        )

    def within(self, prefix: Prefix) -> IntervalSet:
        """The part that lies inside a prefix; costs what that part costs."""
        first = _point(prefix.family, prefix.value)
        last = first + prefix.size - 1
        begin = bisect_right(self.points, (first, _BEYOND))
        if begin and self.points[begin - 1][1] >= first:
            begin -= 1
        end = bisect_right(self.points, (last, _BEYOND))
        if begin >= end:
            return _EMPTY
        runs = list(self.points[begin:end])
        runs[0] = (max(first, runs[0][0]), runs[0][1])
        runs[-1] = (runs[-1][0], min(last, runs[-1][1]))
        return IntervalSet(tuple(runs))

    def __str__(self) -> str:
        return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in self)

    def _run_at(self, point: int) -> _Run | None:
        index = bisect_right(self.points, (point, _BEYOND)) - 1
        return self.points[index] if index >= 0 and self.points[index][1] >= point else None


IntervalItem = IntervalSet | Prefix | Address | tuple[Address, Address]
"""What an `IntervalSet` can be built from."""

_EMPTY = IntervalSet()


def parse_range(text: str) -> IntervalSet:
    """Parse an address, a CIDR block, or `first-last`, as exclusions and reservations are written.

    Raises:
        ConfigError: none of these, host bits set, reversed, or of two families; the message shows the right form.
    """
    plain = "".join(text.split())
    if plain != text:
        raise ConfigError(f"{text!r} has blanks in it; write {plain!r}")
    first_text, dash, last_text = text.partition("-")
    if not dash:
        return IntervalSet.of(parse_prefix(text) if "/" in text else parse_address(text))
    first = parse_address(first_text)
    if first.family is Family.V4 and re.fullmatch(r"[0-9]{1,3}", last_text):
        whole = f"{first_text.rpartition('.')[0]}.{last_text}"
        raise ConfigError(f"{text!r} cuts its last address short; write {f'{first_text}-{whole}'!r}")
    last = parse_address(last_text)
    if first.family is not last.family:
        raise ConfigError(
            f"{text!r} begins in {first.family} and ends in {last.family}; "
            "write one range for each family, like 10.1.2.3-10.1.2.9 and fd00::3-fd00::9"
        )
    if first > last:
        raise ConfigError(f"{text!r} is reversed; write {f'{last}-{first}'!r}")
    return IntervalSet.of((first, last))


def _point(family: Family, value: int) -> int:
    return value if family is Family.V4 else value + _SIX


def _address(point: int) -> Address:
    return Address(Family.V4, point) if point < _SIX else Address(Family.V6, point - _SIX)


def _pair(first: Address, last: Address) -> _Run:
    if first.family is not last.family or first > last:
        raise ValueError(f"{first}-{last} is not an ascending range of one family")
    return (_point(first.family, first.value), _point(last.family, last.value))


def _joined(runs: list[_Run]) -> tuple[_Run, ...]:
    """Sort runs and join what overlaps or touches."""
    runs.sort()
    joined: list[_Run] = []
    begin = end = -2
    for first, last in runs:
        if first > end + 1:
            if end >= 0:
                joined.append((begin, end))
            begin, end = first, last
        elif last > end:
            end = last
    if end >= 0:
        joined.append((begin, end))
    return tuple(joined)
