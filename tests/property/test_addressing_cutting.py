"""`BlockCutter` against a naive list of blocks, over any order of cutting, reserving, giving back, leaving out."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from allotment.addressing.address import Address, Prefix, parse_prefix
from allotment.addressing.cutting import BlockCutter
from allotment.addressing.edges import block_gateway, unusable
from allotment.addressing.intervals import IntervalSet

SHAPES = [("10.0.0.0/25", 29), ("10.0.0.0/28", 30), ("10.0.0.0/28", 32), ("fd00::/121", 125), ("10.0.0.0/24", 24)]


class Cutting(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.cutter = None

    @precondition(lambda self: self.cutter is None)
    @rule(shape=st.sampled_from(SHAPES))
    def make(self, shape):
        self.subnet = parse_prefix(shape[0])
        self.length = shape[1]
        self.cutter = BlockCutter(self.subnet, self.length)
        size = 1 << (self.subnet.family.bits - self.length)
        self.blocks = [
            Prefix(self.subnet.family, self.subnet.value + number * size, self.length)
            for number in range(self.subnet.size // size)
        ]
        self.taken = set()
        self.hidden = set()

    def allowed(self):
        return [block for block in self.blocks if block not in self.taken | self.hidden]

    @precondition(lambda self: self.cutter is not None)
    @rule()
    def cut(self):
        expected = self.allowed()[:1]
        assert self.cutter.cut() == (expected[0] if expected else None)
        self.taken.update(expected)

    @precondition(lambda self: self.cutter is not None)
    @rule(data=st.data())
    def reserve(self, data):
        block = data.draw(st.sampled_from(self.blocks))
        assert self.cutter.reserve(block) == (block not in self.taken)
        self.taken.add(block)

    @precondition(lambda self: self.cutter is not None)
    @rule(data=st.data())
    def give_back(self, data):
        block = data.draw(st.sampled_from(self.blocks))
        assert self.cutter.give_back(block) == (block in self.taken)
        self.taken.discard(block)

    @precondition(lambda self: self.cutter is not None)
    @rule(data=st.data())
    def leave_out(self, data):
        offsets = st.tuples(*[st.integers(0, self.subnet.size - 1)] * 2).map(sorted)
        forbidden, reserved = (
            IntervalSet.of(
                *(
                    (
                        Address(self.subnet.family, self.subnet.value + first),
                        Address(self.subnet.family, self.subnet.value + last),
                    )
                    for first, last in data.draw(st.lists(offsets, max_size=2))
                )
            )
            for _ in range(2)
        )
        self.cutter.leave_out(forbidden, reserved)
        self.hidden = {
            block for block in self.blocks if IntervalSet.of(block) & forbidden or not self.useful(block) - reserved
        }

    @staticmethod
    def useful(block):
        gateway = block_gateway(block)
        return IntervalSet.of(block) - unusable(block) - IntervalSet.of(*([gateway] if gateway else []))

    @precondition(lambda self: self.cutter is not None)
    @invariant()
    def counts_agree(self):
        assert self.cutter.total == len(self.blocks)
        assert self.cutter.remaining == len(self.allowed())
        assert list(self.cutter.taken()) == sorted(self.taken)
        assert all(self.cutter.is_free(block) == (block not in self.taken) for block in self.blocks[:4])


Cutting.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestCutting = Cutting.TestCase
