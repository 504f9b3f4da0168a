"""An agent that is killed at any moment under load loses and confuses nothing (I1, I2, I3, I7).

The quick tier kills each kind of victim a few times; `-m slow` kills 500 times, or as often as ALLOTMENT_CRASHES says.
"""

import asyncio
import errno
import itertools
import os
import signal

import pytest

from crash.world import MANIFESTS, World, explained
from faults.injection import CHANGES
from faults.node import faulty_node

QUICK = 16
SLOW = int(os.environ.get("ALLOTMENT_CRASHES", "500"))
WORLDS = 3
"""Agents at a time: while one starts, callers of another wait, so that two processors are kept busy."""


class Killer:
    """Ways to end the agent of one world."""

    def __init__(self, world, control):
        self.world = world
        self.agent = world.agent
        self.random = world.random
        self.control = control
        self.kills = 0
        self.start_seconds = 0.2
        self.ways = [
            self.under_load,
            self.in_the_drain,
            self.while_it_starts,
            self.at_a_change_of_the_disk,
            self.while_the_ledger_is_replaced,
        ]

    async def kill(self, *otherwise):
        """SIGKILL; `otherwise` are exit codes with which it may have been faster."""
        code = await asyncio.to_thread(self.agent.kill)
        assert code in (-signal.SIGKILL, *otherwise), self.agent.log()
        self.kills += code == -signal.SIGKILL

    async def under_load(self):
        await self.world.spend(self.random.uniform(0.0, 0.15))
        await self.kill()

    async def in_the_drain(self):
        await self.world.spend(self.random.uniform(0.0, 0.1))
        self.agent.send(signal.SIGTERM)
        await self.world.spend(self.random.uniform(0.0, 0.02))
        await self.kill(0)

    async def while_it_starts(self):
        """With DELs in the spool, and callers that wait."""
        await self.under_load()
        for _ in range(self.random.randrange(1, 4)):
            await self.launch()
            await self.world.spend(self.random.uniform(0.0, self.start_seconds))
            await self.kill()

    async def at_a_change_of_the_disk(self):
        self.control.arm(CHANGES, first=self.random.randrange(1, 60), half=self.random.random() < 0.5)
        await self._until_it_dies()

    async def while_the_ledger_is_replaced(self):
        """One error of the disk, then the kill within the calls that put a new file in the old one's place."""
        first = self.random.randrange(1, 30)
        step = self.random.randrange(1, 45)
        self.control.arm(CHANGES, first=first, times=1, error=errno.EIO, kill=first + step)
        await self._until_it_dies()

    async def _until_it_dies(self):
        await self.world.spend(1.0)
        await self.kill()
        self.control.disarm()

    async def launch(self):
        await asyncio.to_thread(self.agent.launch)

    async def start(self):
        started = asyncio.get_running_loop().time()
        await asyncio.to_thread(self.agent.start)
        self.start_seconds = 0.8 * self.start_seconds + 0.2 * (asyncio.get_running_loop().time() - started)

    async def orderly_end(self):
        """SIGTERM under load: all in flight is answered, all who hung up keep nothing."""
        await self.world.spend(0.1)
        await asyncio.to_thread(self.agent.stop)
        self.world.read(drained=True)


async def live(seed, kills):
    """One world, until its agent was killed that often and then ended in order. Returns how much was answered."""
    with faulty_node(MANIFESTS) as agent, explained(agent):
        await asyncio.to_thread(agent.start)
        async with World(agent, seed) as world:
            killer = Killer(world, agent.disk_control)
            for number in itertools.count(1):
                world.let()
                if world.random.random() < 0.3:
                    await world.spend(0.05)
                    await world.see_taken_back()
                    world.let()
                await killer.ways[number % len(killer.ways)]()
                world.hold()
                if world.random.random() < 0.3:
                    world.read()
                await killer.start()
                await world.look()
                if killer.kills >= kills:
                    break
                if number % 20 == 0:
                    world.let()
                    await killer.orderly_end()
                    await killer.start()
            world.let()
            await killer.orderly_end()
            await killer.start()
            await world.delete_all()
            await asyncio.to_thread(agent.stop)
            assert world.read() == ()
        assert "Traceback" not in agent.log(1 << 30)
        return world.answers


async def lives(kills, seed):
    """Worlds beside each other, killed that often in all. One that goes wrong ends the others."""
    async with asyncio.TaskGroup() as group:
        worlds = [group.create_task(live(f"{seed}-{number}", kills // WORLDS + 1)) for number in range(WORLDS)]
    return sum(world.result() for world in worlds)


async def test_killed_at_any_moment():
    answers = await lives(QUICK, 7)
    assert answers > QUICK * 5, "hardly anything was answered: this proves nothing"


@pytest.mark.slow
async def test_killed_hundreds_of_times():
    answers = await lives(SLOW, os.urandom(4).hex())
    assert answers > SLOW * 5, "hardly anything was answered: this proves nothing"
