"""What a run of the benchmarks finds: readings (what was measured) and figures (what is held against a bar)."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Figure", "Outcome", "Reading", "median_ratio", "percentile"]

Sense = Literal["at most", "at least"]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of the values don't exceed, by nearest rank; `values` in any order, not empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the quotients round by round.

    Both were measured in the same round, one right after the other, so what slows the machine for a while is in both
    and falls out.
    """
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


@dataclass(slots=True)
class Reading:
    """One thing measured over all rounds. Times are in microseconds, rates per second."""

    scenario: str
    what: str
    who: str
    unit: str = "µs"
    values: list[float] = field(default_factory=list)  # every single one
    rounds: list[float] = field(default_factory=list)  # the median of each round

    def add(self, values: Sequence[float]) -> None:
        """The values of one more round."""
        self.values.extend(values)
        self.rounds.append(statistics.median(values))

    @property
    def median(self) -> float:
        """The median of the rounds' medians: one disturbed round doesn't move it."""
        return statistics.median(self.rounds)

    def summary(self) -> dict[str, object]:
        """For results.json."""
        return {
            "scenario": self.scenario,
            "what": self.what,
            "who": self.who,
            "unit": self.unit,
            "median": round(self.median, 2),
            "p90": round(percentile(self.values, 0.90), 2),
            "p99": round(percentile(self.values, 0.99), 2),
            "max": round(max(self.values), 2),
            "count": len(self.values),
            "rounds": [round(value, 2) for value in self.rounds],
        }


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table of bars. `made_of` says what the value consists of: what a miss is to be looked for in."""

    scenario: str
    what: str
    value: float
    bar: float
    sense: Sense
    unit: str = "x"
    made_of: str = ""

    @property
    def met(self) -> bool:
        """Whether the bar is reached."""
        return self.value <= self.bar if self.sense == "at most" else self.value >= self.bar

    def summary(self) -> dict[str, object]:
        """For results.json."""
        return {
            "scenario": self.scenario,
            "what": self.what,
            "value": round(self.value, 4),
            "bar": round(self.bar, 4),
            "sense": self.sense,
            "unit": self.unit,
            "met": self.met,
            "made_of": self.made_of,
        }


@dataclass(slots=True)
class Outcome:
    """What one scenario found."""

    readings: list[Reading] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    problems: list[str] = field(
        default_factory=list
    )  # wrong answers and failed calls: a miss, whatever the figures say

    def reading(self, scenario: str, what: str, who: str, unit: str = "µs") -> Reading:
        """A new reading, to be filled."""
        made = Reading(scenario, what, who, unit)
        self.readings.append(made)
        return made

    def extend(self, others: Iterable[Outcome]) -> None:
        """Take over what other scenarios found."""
        for other in others:
            self.readings += other.readings
            self.figures += other.figures
            self.problems += other.problems
