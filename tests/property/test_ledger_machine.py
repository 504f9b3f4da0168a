"""I1, I2, I3, I7 for the ledger: whatever is done in whatever order, the disk holds exactly what was acknowledged.

A plain model is kept beside a real ledger through grants, releases, coalesced rests, crashes (the files as a killed
process leaves them), restarts and failures of the disk.
"""

import asyncio
import shutil
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from allotment.addressing.address import parse_prefix
from allotment.addressing.book import BookState
from allotment.addressing.errors import InternalError
from allotment.addressing.lease import Cause, Forgotten, Granted, Lease, Moment, Owner, Released, Rest, Rested
from allotment.ledger import Ledger, LedgerState, RowsQuery
from unit.ledger.examples import copy_as_killed, until

BLOCKS = (parse_prefix("10.4.1.0/29"), parse_prefix("fd00:4::/125"))
NETWORKS = ("blue", "red")
PLACES = [(network, block.first + number, block) for network in NETWORKS for block in BLOCKS for number in range(8)]
places = st.sampled_from(PLACES)
several = st.lists(places, min_size=1, max_size=6, unique_by=lambda place: place[:2])


class LedgerMachine(RuleBasedStateMachine):
    """The ledger and its model: `held` by place, `resting` by place, `past` sequence numbers, `objects`."""

    @initialize()
    def start(self):
        self.home = Path(tempfile.mkdtemp(prefix="allotment-test-", dir="/dev/shm"))
        self.folder = self.home / "0"
        self.folder.mkdir()
        self.lives = 0
        self.runner = asyncio.Runner()
        self.held, self.resting, self.past, self.objects = {}, {}, [], {}
        self.sequence = 0
        self.time = 100.0
        self.open()

    def teardown(self):
        if hasattr(self, "runner"):
            try:
                self.check()
                self.runner.run(self.ledger.close())
            finally:
                self.runner.close()
                shutil.rmtree(self.home)

    # -- parts ----------------------------------------------------------------------------------------------------

    def run(self, awaitable):
        async def wait():
            return await awaitable()

        return self.runner.run(wait())

    def open(self):
        self.ledger = Ledger.open(
            self.folder, boot="boot-1", snapshot=self.snapshot, ballast_bytes=0, retry_pause=0.005
        )
        self.failures = 0
        self.compare(self.ledger.load())
        assert self.ledger.objects() == self.objects

    def snapshot(self):
        return BookState(tuple(self.held.values()), tuple(self.resting.values()), self.sequence)

    def compare(self, state):
        found = {(lease.owner.network, lease.address): lease for lease in state.leases}
        assert len(found) == len(state.leases)
        assert found == self.held
        resting = {}
        for rest in state.rests:
            for step in range(rest.last.value - rest.first.value + 1):
                place = (rest.network, rest.first + step)
                assert place not in resting, f"{place} rests twice"
                resting[place] = rest.released
        assert resting == {place: rest.released for place, rest in self.resting.items()}
        assert state.sequence >= max((lease.sequence for lease in self.held.values()), default=0)
        assert state.sequence >= max(self.past, default=0)

    def new_lease(self, network, address, block):
        self.sequence += 1
        self.time += 1.0
        owner = Owner(network, f"c-{self.sequence}", "eth0", "default", f"pod-{self.sequence}", "uid", "conf")
        return Lease(address, block, owner, self.sequence, Moment("boot-1", self.time), self.time, "/run/netns/x")

    def release_of(self, lease):
        self.time += 1.0
        return Released(lease, Moment("boot-1", self.time), self.time, Cause.DEL, "")

    def took_effect(self, changes):
        for change in changes:
            lease = change.lease
            place = (lease.owner.network, lease.address)
            if isinstance(change, Granted):
                assert place not in self.held
                self.held[place] = lease
                self.resting.pop(place, None)
            else:
                assert self.held.pop(place) == lease
                self.resting[place] = Rest(*place[:1], lease.block, place[1], place[1], change.at, change.wall)
                self.past.append(lease.sequence)

    # -- what can happen ------------------------------------------------------------------------------------------

    @rule(chosen=several, together=st.booleans())
    def change(self, chosen, together):
        """Each chosen place changes its state: in one request, or in one each at the same time."""
        changes = []
        for network, address, block in chosen:
            lease = self.held.get((network, address))
            changes.append(
                Granted(self.new_lease(network, address, block)) if lease is None else self.release_of(lease)
            )
        requests = [changes] if together else [[change] for change in changes]

        async def write():
            futures = []
            for request in requests:
                future = self.ledger.submit(request)
                future.add_done_callback(lambda done, request=request: done.exception() or self.took_effect(request))
                futures.append(future)
            await asyncio.gather(*futures)

        self.run(write)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), vm=st.sampled_from(["", "db"]))
    def hand_over(self, data, vm):
        """A lease ends and another begins at its address, in one change: nothing rests in between."""
        before = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        after = self.new_lease(before.owner.network, before.address, before.block)
        after = replace(after, owner=replace(after.owner, vm=vm))
        changes = [self.release_of(before), Granted(after)]
        self.run(lambda: self.ledger.commit(changes))
        self.took_effect(changes)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), place=places)
    def contradict(self, data, place):
        """I1, I7: a second owner, or the release of a lease that is not this one, takes nothing else along."""
        lease = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        rival = self.new_lease(lease.owner.network, lease.address, lease.block)
        wrong = data.draw(st.sampled_from([Granted(rival), self.release_of(rival)]))
        network, address, block = place
        others = [] if (network, address) in self.held else [Granted(self.new_lease(network, address, block))]

        async def write():
            return await asyncio.gather(
                self.ledger.submit(others), self.ledger.submit([*others[:0], wrong]), return_exceptions=True
            )

        good, bad = self.run(write)
        assert good is None
        assert isinstance(bad, InternalError)
        self.took_effect(others)

    @precondition(lambda self: self.resting)
    @rule(data=st.data())
    def coalesce(self, data):
        """Neighbours at rest become one run that was released when the latest of them was."""
        network, first = data.draw(st.sampled_from(sorted(self.resting)))
        while (network, first + -1) in self.resting:  # a run that the disk holds is only ever taken whole
            first += -1
        run = [self.resting[network, first]]
        while (after := self.resting.get((network, run[-1].last + 1))) is not None and after.block == run[0].block:
            run.append(after)
        latest = max(run, key=lambda rest: rest.released.seconds)
        joined = Rest(network, run[0].block, first, run[-1].last, latest.released, latest.wall)
        self.run(lambda: self.ledger.commit([Rested(tuple(run), joined)]))
        for rest in run:
            place = (network, rest.first)
            self.resting[place] = Rest(network, rest.block, rest.first, rest.last, latest.released, latest.wall)

    @rule(network=st.sampled_from(NETWORKS), block=st.sampled_from(BLOCKS))
    def forget(self, network, block):
        self.run(lambda: self.ledger.commit([Forgotten(network, block)]))
        self.resting = {
            place: rest for place, rest in self.resting.items() if (place[0], rest.block) != (network, block)
        }

    @rule(name=st.sampled_from(["a", "b"]), body=st.none() | st.binary(max_size=9000))
    def keep(self, name, body):
        if body is None:
            self.run(lambda: self.ledger.delete_object("Network", name))
            self.objects.pop(("Network", name), None)
        else:
            self.run(lambda: self.ledger.put_object("Network", name, body))
            self.objects["Network", name] = body

    @rule()
    def crash(self):
        """Go on with the files as a killed process leaves them (I2)."""
        self.lives += 1
        left = self.home / str(self.lives)
        copy_as_killed(self.folder, left)
        self.runner.run(self.ledger.close())
        self.folder = left
        self.open()

    @rule()
    def restart(self):
        self.runner.run(self.ledger.close())
        self.open()

    @precondition(lambda self: self.failures < 3)  # the pauses between them grow
    @rule()
    def fail(self):
        """The disk fails; what was acknowledged goes on in a new file."""

        async def broken():
            ledger = self.ledger
            await ledger.commit([])
            before = ledger.health().replaced
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
            ledger._writer.fail(ledger._disk.database, error)
            await until(lambda: ledger.health().replaced > before and ledger.health().state is LedgerState.OPEN)

        self.run(broken)
        self.failures += 1
        self.past = []

    @rule()
    def check(self):
        """The history tells of every ended lease, newest first."""
        rows = self.run(lambda: self.ledger.history(RowsQuery(limit=10_000)))
        assert [row.sequence for row in rows] == self.past[::-1]


LedgerMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
test_ledger_machine = LedgerMachine.TestCase
