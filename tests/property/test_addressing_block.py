"""I3: `BlockSpace` against a naive model of one block, address by address.

Over any order of taking, taking by name, hang-ups, releases, changed exclusions, time, and housekeeping. With a
large limit the next address is exactly the model's; with a tiny one, where old rests are joined and their order is
forgotten, everything but that order is.
"""

import itertools

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allotment.addressing.address import Address, parse_prefix
from allotment.addressing.block import BlockSpace
from allotment.addressing.idle import Idle
from allotment.addressing.intervals import IntervalSet

PREFIXES = ["10.0.0.0/28", "255.255.255.240/28", "fd00::/124"]


class Block(RuleBasedStateMachine):
    limit = 16_384

    @initialize(
        prefix=st.sampled_from(PREFIXES), taken=st.sets(st.integers(0, 15)), cooldown=st.sampled_from([0, 5, 30])
    )
    def make(self, prefix, taken, cooldown):
        self.prefix = parse_prefix(prefix)
        self.numbers = range(self.prefix.value, self.prefix.value + 16)
        self.space = BlockSpace("blue", self.prefix, "boot", limit=self.limit)
        self.space.fill([self.prefix.value + step for step in taken], [])
        self.cooldown = cooldown
        self.now = 100
        self.leased = {self.prefix.value + step for step in taken}
        self.rests = {}  # number -> (when, how many releases before)
        self.open = {}  # number -> what undoes its taking
        self.blocked = set()
        self.releases = 0

    @property
    def since(self):
        return self.now - self.cooldown

    def never_used(self):
        return [n for n in self.numbers if n not in self.leased and n not in self.open and n not in self.rests]

    def expected(self):
        fresh = [number for number in self.never_used() if number not in self.blocked]
        if fresh:
            return fresh[0]
        idle = sorted((self.rests[n], n) for n in self.rests if n not in self.blocked)
        return idle[0][1] if idle and idle[0][0][0] <= self.since else None

    @rule()
    def take(self):
        expected = self.expected()
        taken = self.space.take(self.since)
        assert (taken is None) == (expected is None)
        if taken is None:
            return
        number = taken[0]
        self.check(number, expected)
        self.take_note(taken)

    def check(self, number, expected):
        assert number == expected, "I3"

    def take_note(self, taken):
        number, idle = taken
        self.open[number] = (taken, self.rests.pop(number, None))
        assert (idle is None) == (self.open[number][1] is None)

    @rule(step=st.integers(0, 15))
    def take_this(self, step):
        number = self.prefix.value + step
        taken = self.space.take_this(number, self.since)
        free = number in self.never_used() or (number in self.rests and self.rested(number))
        assert (taken is not None) == free
        if taken is not None:
            assert taken[0] == number
            self.take_note(taken)

    def rested(self, number):
        return self.rests[number][0] <= self.since

    @precondition(lambda self: self.open)
    @rule(data=st.data(), kept=st.booleans())
    def settle(self, data, kept):
        number = data.draw(st.sampled_from(sorted(self.open)))
        taken, rest = self.open.pop(number)
        if kept:
            if taken[1] is not None:
                taken[1].mend()
            self.leased.add(number)
            return
        self.space.undo(taken)
        if rest is not None:
            self.rests[number] = rest

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def release(self, data):
        number = data.draw(st.sampled_from(sorted(self.leased)))
        self.leased.discard(number)
        self.space.release(Idle(number, number, self.now, wall=0.0, block=self.prefix))
        self.rests[number] = (self.now, self.releases)
        self.releases += 1

    @rule(steps=st.sets(st.integers(0, 15)))
    def block(self, steps):
        self.blocked = {self.prefix.value + step for step in steps}
        self.space.block(IntervalSet.of(*(Address(self.prefix.family, number) for number in self.blocked)))

    @rule(seconds=st.sampled_from([1, 4, 5, 29, 30, -2]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule(cooldown=st.sampled_from([0, 5, 30]))
    def change_cooldown(self, cooldown):
        self.cooldown = cooldown

    @rule()
    def keep_house(self):
        assert self.space.housekeeping(self.since, 100) == [], "nothing is above the limit"

    @invariant()
    def counts_agree(self):
        assert self.space.taken == len(self.leased) + len(self.open)
        assert self.space.blocked == len(self.blocked)
        assert self.space.cooling(self.since) == sum(not self.rested(number) for number in self.rests)
        remembered = {n: idle.seconds for idle in self.space.resting() for n in range(idle.first, idle.last + 1)}
        assert remembered.keys() == self.rests.keys()
        assert all(remembered[number] >= when for number, (when, _) in self.rests.items())


class SmallBlock(Block):
    limit = 3

    def check(self, number, expected):
        assert number not in self.blocked
        if expected in self.never_used():
            assert number == expected, "I3: never-used ones first, ascending"
        else:
            assert self.rested(number), "I3: not before its cooldown"

    def expected(self):
        fresh = [number for number in self.never_used() if number not in self.blocked]
        idle = [number for number in self.rests if number not in self.blocked and self.rested(number)]
        return min(fresh) if fresh else min(idle, default=None)

    @invariant()
    def counts_agree(self):
        # A cooldown that grew may make a joined run cool for as long as its youngest.
        assert self.space.taken == len(self.leased) + len(self.open)

    @rule()
    def change_cooldown(self):
        """A longer cooldown would make runs cool that are joined already; their order is forgotten, so leave it."""

    @rule(seconds=st.sampled_from([1, 4, 5, 29, 30]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule()
    def keep_house(self):
        before = {n: idle for idle in self.space.resting() for n in range(idle.first, idle.last + 1)}
        for change in self.space.housekeeping(self.since, 100):
            pieces = [(rest.first.value, rest.last.value) for rest in change.before]
            assert pieces[0][0] == change.after.first.value
            assert pieces[-1][1] == change.after.last.value
            assert all(last + 1 == first for (_, last), (first, _) in itertools.pairwise(pieces))
            assert all(rest.released.seconds <= change.after.released.seconds <= self.since for rest in change.before)
        after = {n: idle for idle in self.space.resting() for n in range(idle.first, idle.last + 1)}
        assert before.keys() == after.keys()


for machine in (Block, SmallBlock):
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestBlock = Block.TestCase
TestBlockWithJoinedRests = SmallBlock.TestCase
