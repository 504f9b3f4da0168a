"""Calls begin at once, and become tasks only where they wait."""

import asyncio

import pytest

from allotment.cni.begun import begin
from allotment.testing.clock import ManualClock


async def test_what_does_not_wait_is_over_at_once():
    done = []

    async def work():
        done.append(1)

    assert begin(work()) is None
    assert done == [1]


async def test_what_waits_goes_on_in_a_task_with_what_it_waited_for():
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    heard = []

    async def work():
        heard.append(await first)
        heard.append(await second)

    task = loop.create_task(begin(work()))
    first.set_result("one")  # before the task has run
    await ManualClock().sleep(0)
    second.set_result("two")
    await task
    assert heard == ["one", "two"]


async def test_a_round_of_the_loop_is_a_wait_after_which_there_is_a_task():
    async def work():
        await ManualClock().sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()

    await asyncio.get_running_loop().create_task(begin(work()))


@pytest.mark.parametrize("rounds", [0, 1, 2])
async def test_a_cancellation_reaches_it_where_it_waits(rounds):
    """Also before its task ever ran."""
    seen = []

    async def work():
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            seen.append("cleaned up")

    task = asyncio.get_running_loop().create_task(begin(work()))
    for _ in range(rounds):
        await ManualClock().sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled", "cleaned up"]


async def test_what_is_cancelled_before_its_task_ran_leaves_nobody_waiting():
    """As in a task: whoever has the future can see that nobody waits for it any more."""
    waited_for = asyncio.get_running_loop().create_future()

    async def work():
        await waited_for

    task = asyncio.get_running_loop().create_task(begin(work()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waited_for.cancelled()


async def test_an_error_before_the_first_wait_is_the_beginners_and_after_it_the_tasks():
    async def at_once():
        raise ValueError("at once")

    async def later():
        await ManualClock().sleep(0)
        raise ValueError("later")

    with pytest.raises(ValueError, match="at once"):
        begin(at_once())
    with pytest.raises(ValueError, match="later"):
        await asyncio.get_running_loop().create_task(begin(later()))


async def test_it_is_for_tasks_alone():
    begun = begin(ManualClock().sleep(0))
    with pytest.raises(TypeError, match="create_task"):
        await begun
    begun.close()
