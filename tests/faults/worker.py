"""Runs ledgers on a disk that fails; started with the environment of `Faults` and told what to do on standard input.

One line of JSON asks for one run, which happens in a child process of its own (so that it can be killed at any
point); the answer is one line of JSON with how the child ended. A run opens the ledger in `folder`, takes it over
into a lease book, and does `rounds` rounds of grants and releases, several at once. It writes to the file `journal`
what it is about to do (`ask …`) and what was acknowledged (`got …`), each with one write.
"""

import asyncio
import faulthandler
import json
import os
import random
import sys
import time
import traceback
from pathlib import Path

from allotment.addressing.address import parse_prefix
from allotment.addressing.book import Ask, LeaseBook
from allotment.addressing.errors import Exhausted, LedgerDamaged, LedgerUnavailable
from allotment.addressing.lease import Cause, Moment, Owner
from allotment.addressing.plan import BlockPlan, Layer, NetworkPlan
from allotment.ledger import Ledger
from faults.injection import Control

BOOT = "boot-1"
NETWORK = "blue"
RESUME_SECONDS = 20.0
STUCK_SECONDS = 60.0
V4, V6 = parse_prefix("10.4.1.0/28"), parse_prefix("fd00:4::/124")
PLAN = NetworkPlan(
    name=NETWORK,
    layer=Layer.L3,
    subnets=(V4, V6),
    blocks=tuple(BlockPlan(prefix, prefix.length, prefix.first + 1) for prefix in (V4, V6)),
    cooldown=0.0,
)


class Journal:
    """What the outside world was told, kept where no fault reaches."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, word, change, lease):
        line = f"{word} {change} {lease.address} {lease.owner.container_id} {lease.sequence}\n"
        os.write(self._file, line.encode())

    def note(self, text):
        os.write(self._file, f"{text}\n".encode())


class Run:
    """One run of the workload."""

    def __init__(self, folder, journal, seed):
        self.random = random.Random(seed)
        self.seed = seed
        self.journal = Journal(journal)
        self.book = LeaseBook("node-1")
        self.ledger = Ledger.open(
            Path(folder), boot=BOOT, snapshot=self.book.snapshot, ballast_bytes=256 << 10, retry_pause=0.02
        )
        state = self.ledger.load()
        self.book.load(state.leases, state.rests, sequence=state.sequence, now=self.now())
        self.book.apply([PLAN], self.now())
        self.count = 0

    def now(self):
        return Moment(BOOT, time.clock_gettime(time.CLOCK_BOOTTIME))

    async def rounds(self, count):
        for number in range(count):
            steps = [self.grant() for _ in range(self.random.randrange(1, 4))]
            leases = list(self.book.leases())
            containers = sorted({lease.owner.container_id for lease in leases})
            steps += [self.release(name) for name in self.random.sample(containers, min(len(containers), 2))]
            await asyncio.gather(*steps)
            if number % 3 == 2:
                await self.quietly(self.ledger.put_object("Network", NETWORK, b"x" * 50 * number))

    async def grant(self):
        self.count += 1
        owner = Owner(NETWORK, f"c-{self.seed}-{self.count}", "eth0", "default", f"pod-{self.count}", "uid", "conf")
        try:
            proposal = self.book.propose(Ask(owner), self.now(), time.time())  # noqa: TID251  # a test's own clock
        except Exhausted:
            return True
        return await self.write("grant", proposal, proposal.leases)

    async def release(self, container):
        leases = self.book.find((NETWORK, container, "eth0"))
        removal = self.book.remove(leases, self.now(), time.time(), Cause.DEL, "test")  # noqa: TID251
        return await self.write("release", removal, removal.leases) if removal.changes else True

    async def write(self, word, decided, leases):
        for lease in leases:
            self.journal.write("ask", word, lease)
        future = self.ledger.submit(decided.changes)

        def settle(done):
            if done.exception() is not None:
                self.book.cancel(decided)
                return
            self.book.commit(decided)
            for lease in leases:
                self.journal.write("got", word, lease)

        future.add_done_callback(settle)
        return await self.quietly(future)

    async def quietly(self, awaitable):
        """True when it went through, False when the disk could not be had; anything else is a failure."""
        try:
            await awaitable
        except LedgerUnavailable:
            return False
        return True


async def main(command, control):
    run = Run(command["folder"], command["journal"], command["seed"])
    try:
        await run.rounds(command["rounds"])
        if command.get("lift"):
            control.disarm()
            until = time.clock_gettime(time.CLOCK_BOOTTIME) + RESUME_SECONDS
            while not await run.grant():
                if time.clock_gettime(time.CLOCK_BOOTTIME) > until:
                    run.journal.note(f"stuck {run.ledger.health()}")
                    break
                await asyncio.sleep(0.01)  # noqa: TID251  # a test's own clock
            else:
                run.journal.note(f"resumed {run.ledger.health().state}")
    finally:
        await run.ledger.close()
    state = run.book.snapshot()
    run.journal.note(f"closed {len(state.leases)} {run.ledger.health().replaced}")


def child(command, control):
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    try:
        asyncio.run(main(command, control))
    except LedgerUnavailable as error:
        Journal(command["journal"]).note(f"unavailable {error}")
    except LedgerDamaged as error:
        Journal(command["journal"]).note(f"damaged {error}")
    except BaseException:
        Journal(command["journal"]).note("crashed " + json.dumps(traceback.format_exc()))
        os._exit(1)
    os._exit(0)


def serve():
    control = Control(os.environ["ALLOTMENT_FAULTS_CONTROL"])
    for line in sys.stdin:
        command = json.loads(line)
        pid = os.fork()
        if pid == 0:
            child(command, control)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    serve()
