"""Pauses: how long, and that each has a bound."""

from __future__ import annotations

import asyncio

from allotment.kube.backoff import Backoff
from allotment.testing.clock import ManualClock, let_run


async def paused(clock, backoff, at_least=0.0):
    """How long one pause takes."""
    task = asyncio.create_task(backoff.pause(at_least))
    await let_run()
    began, step = clock.seconds(), 0.125
    while not task.done():
        clock.advance(step)
        await let_run()
    return clock.seconds() - began


async def test_pauses_double_up_to_a_bound_and_start_anew_after_a_reset():
    clock = ManualClock()
    backoff = Backoff(clock, first=0.5, most=4, jitter=lambda: 0.0)
    assert [await paused(clock, backoff) for _ in range(6)] == [0.5, 1, 2, 4, 4, 4]
    backoff.reset()
    assert await paused(clock, backoff) == 0.5


async def test_chance_shortens_a_pause_by_half_at_most():
    clock = ManualClock()
    assert await paused(clock, Backoff(clock, first=8, most=8, jitter=lambda: 1.0)) == 4
    lengths = {await paused(clock, Backoff(clock, first=8, most=8)) for _ in range(30)}
    assert len(lengths) > 5
    assert 4 <= min(lengths) <= max(lengths) <= 8.125


async def test_what_a_server_asks_for_is_kept_and_spread_but_not_believed_without_end():
    clock = ManualClock()
    assert await paused(clock, Backoff(clock, jitter=lambda: 0.0), at_least=7) == 7
    assert await paused(clock, Backoff(clock, jitter=lambda: 1.0), at_least=7) == 10.5
    assert await paused(clock, Backoff(clock, jitter=lambda: 0.0), at_least=86_400) == 60
