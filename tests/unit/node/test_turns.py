"""One at a time for each key, first come first served, and a wait that is given up costs nobody the turn."""

from __future__ import annotations

import asyncio

import pytest

from allotment.cni.begun import begin
from allotment.node.attaching.turns import Turns
from allotment.testing.clock import let_run


async def test_turns_are_taken_in_the_order_they_were_asked_for() -> None:
    turns, order = Turns(), []

    async def work(name: str) -> None:
        await turns.take("key")
        order.append(name)
        await let_run(2)
        turns.release("key")

    await asyncio.gather(*(work(name) for name in "abcd"))
    assert order == list("abcd")
    assert turns.try_take("key")


async def test_keys_do_not_wait_for_each_other() -> None:
    turns = Turns()
    await turns.take("one")
    await asyncio.wait_for(turns.take("two"), 1)
    assert not turns.try_take("one")


async def test_who_gives_up_waiting_is_passed_over() -> None:
    turns = Turns()
    await turns.take("key")
    first, second = asyncio.create_task(turns.take("key")), asyncio.create_task(turns.take("key"))
    await let_run()
    first.cancel()
    await let_run()
    turns.release("key")
    await second
    turns.release("key")
    assert turns.try_take("key")


async def test_who_is_cancelled_in_the_moment_of_getting_the_turn_passes_it_on() -> None:
    turns = Turns()
    await turns.take("key")
    first, second = asyncio.create_task(turns.take("key")), asyncio.create_task(turns.take("key"))
    await let_run()
    turns.release("key")  # it is first's now
    first.cancel()  # … and first never learns of it
    await asyncio.wait_for(second, 1)
    turns.release("key")
    assert turns.try_take("key")


async def test_who_gives_up_before_its_task_ran_is_passed_over() -> None:
    """A call begins in no task; its caller may hang up in the same round of the loop."""
    turns = Turns()
    await turns.take("key")
    task = asyncio.get_running_loop().create_task(begin(turns.take("key")))
    task.cancel()
    await let_run()
    assert task.cancelled()
    turns.release("key")
    assert turns.try_take("key")


async def test_a_wait_that_is_broken_off_from_within_is_passed_over() -> None:
    turns = Turns()
    await turns.take("key")
    waiting = turns.take("key")
    waiting.send(None)
    with pytest.raises(asyncio.CancelledError):
        waiting.throw(asyncio.CancelledError())
    turns.release("key")
    assert turns.try_take("key")
