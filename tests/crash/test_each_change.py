"""An agent that dies at any single change of the disk, of whatever part of it, comes up again and is right.

One life with everything in it is played again and again: a first start, admission, ADD, DEL, a kept DEL, edits of the
manifests, drain, an orderly end. In each play the agent is killed at another write, sync, rename, truncate or removal.
Then the disk itself is judged, and the agent started again to live its life to the end (I1, I2, I3, I4, I5, I7).
The quick tier samples the points; `-m slow` takes every one.
"""

import concurrent.futures
import contextlib
import json
import queue
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
import yaml

import agents
from agents import Agent, Launcher, now
from allotment.addressing.address import parse_prefix
from allotment.addressing.errors import AllotmentError
from allotment.api.meta import NODE_FINALIZER
from allotment.cni.exchange import SPOOL
from allotment.cni.frames import encode_call, encode_spool_entry
from allotment.ledger import LedgerReader
from allotment.observe.clock import read_boot_id
from crash.told import Told
from crash.world import COOLDOWN
from faults.injection import CHANGES, Faults

WORKERS = 3
BLUE, GREEN = "blue", "green"
DRAINING = ', deletionTimestamp: "2026-01-01T00:00:00Z"'
REFUSED = 7


class Died(Exception):  # noqa: N818  # no error: it is what was to happen
    """The agent was killed, as it was to be."""


def manifest(network, **more):
    third = {BLUE: 4, GREEN: 5}[network]
    return agents.network(network, v4=f"10.{third}.0.0/24", v6=f"fd00:{third}::/120", cooldown=COOLDOWN, **more)


class Life:
    """What happens to one agent. Each step can be repeated, and `told` knows what callers know."""

    def __init__(self, agent):
        self.agent = agent
        self.told = Told(COOLDOWN)

    def live(self):
        """From the first start to the end; raises Died where the agent does."""
        self.start()
        for container in ("c1", "c2", "c3"):
            self.add(BLUE, container)
        self.delete(BLUE, "c2")
        self.edit(GREEN)
        self.until(lambda: self.record(GREEN) and NODE_FINALIZER in self.record(GREEN)["metadata"]["finalizers"])
        self.add(GREEN, "g1")
        self.add(GREEN, "g2")
        self.keep_delete(GREEN, "g1")
        self.edit(BLUE, reserved="10.4.0.128/25")
        self.delete(BLUE, "c1")
        self.drain(BLUE)
        self.delete(BLUE, "c3")
        self.until(lambda: self.record(BLUE) is None)
        self.stop()

    def finish(self):
        """Whatever point it came to: started again it is right, and everything comes to its end."""
        self.start()
        self.look()
        for item in list(self.told.attachments.values()):
            if item.certain:
                self.add(item.network, item.container)
        for network in (BLUE, GREEN):
            self.drain(network)
        for network, container in list(self.told.attachments):
            self.delete(network, container)
        self.until(lambda: self.record(BLUE) is None and self.record(GREEN) is None)
        self.look()
        self.stop()
        self.judge_disk()
        assert self.told.attachments == {}

    # -- steps

    def start(self):
        self.agent.launch()
        if not self.agent.await_notice("READY"):
            self.died()

    def stop(self):
        self.agent.send(signal.SIGTERM)
        code = self.agent.wait()
        if code:
            self.died()

    def died(self):
        assert self.agent.wait() == -signal.SIGKILL, self.agent.log()
        raise Died

    def add(self, network, container):
        item = self.told.attachment(network, container)
        self.told.add_sent(item)
        reply = self.ask("ADD", network, container)
        assert reply.exit_code == 0, reply.body
        self.told.add_answered(item, agents.told(reply.body), now())

    def delete(self, network, container):
        item = self.told.attachment(network, container)
        self.told.delete_sent(item, now())
        reply = self.ask("DEL", network, container)
        assert (reply.exit_code, reply.flags & SPOOL) == (0, 0), reply.body
        self.told.delete_answered(item)

    def ask(self, verb, network, container):
        try:
            return self.agent.ask(verb, container, network=network)
        except AllotmentError:
            self.died()

    def keep_delete(self, network, container):
        """A DEL that a shim keeps, as one does that found nobody."""
        item = self.told.attachment(network, container)
        item.spooled = True
        self.told.delete_sent(item, now())
        frame = encode_call(agents.environment("DEL", container), agents.conf(network))
        self.agent.spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp = int(now() * 1e9)
        kept = self.agent.spool / f"{stamp:020d}-1.del"
        temporary = kept.with_name(".tmp-1")
        temporary.write_bytes(encode_spool_entry(read_boot_id(), stamp, frame))
        temporary.rename(kept)
        self.until(lambda: not kept.exists())

    def edit(self, network, reserved="", **more):
        text = manifest(network, **more)
        if reserved:
            reservation = {
                "apiVersion": "allotment.dev/v1alpha1",
                "kind": "IPReservation",
                "metadata": {"name": "kept-back"},
                "spec": {"reservedCIDRs": [reserved]},
            }
            text += "---\n" + json.dumps(reservation) + "\n"
        draft = self.agent.manifests / f".{network}.draft"
        draft.write_text(text)
        draft.rename(self.agent.manifests / f"{network}.yaml")

    def drain(self, network):
        """Delete the Network; wait until nobody new gets an address of it."""
        self.edit(network, metadata=DRAINING)
        self.until(lambda: self.is_draining(self.record(network)))
        self.until(lambda: self.is_refused(network, "late"))

    def is_refused(self, network, container):
        reply = self.ask("ADD", network, container)
        if reply.exit_code == 0:  # the edit was not seen yet
            self.told.add_sent(self.told.attachment(network, container))
            self.delete(network, container)
        return reply.exit_code != 0 and json.loads(reply.body)["code"] == REFUSED

    def is_draining(self, record):
        return record is None or any(
            condition["type"] == "Draining" for condition in record.get("status", {}).get("conditions", ())
        )

    def until(self, condition):
        """Wait for it, as long as the agent lives."""
        end = now() + agents.PATIENCE
        while not condition():
            assert now() < end, self.agent.log()
            if self.agent.process.wait(0.01) is not None:
                self.died()

    # -- what is true

    def record(self, network):
        """The network's Allocation as recorded on the disk; None when there is none, or it has ended."""
        with contextlib.suppress(FileNotFoundError):
            record = yaml.safe_load((self.agent.state / "allocations" / f"{network}.n1.yaml").read_text())
            return None if record.get("released") else record["allocation"]
        return None

    def look(self):
        spool = self.agent.spool
        self.until(lambda: not any(path.suffix == ".del" for path in spool.iterdir()))
        self.told.judge(self.agent.leases(), settle=True)

    def judge_disk(self):
        """What a dead agent left: acknowledged leases, each from a confirmed block of an Allocation that is held."""
        leases = ()
        if (self.agent.state / "ledger.db").exists():
            with LedgerReader(self.agent.state) as reader:
                assert reader.problems() == []
                leases = reader.content().book.leases
        self.told.judge(leases, settle=False)
        for lease in leases:
            record = self.record(lease.owner.network)
            assert record, f"{lease} is held, and its Allocation has gone (I5)"
            assert NODE_FINALIZER in record["metadata"]["finalizers"], f"{lease} is held, the finalizer is off (I4, I5)"
            blocks = [block["cidr"] for block in record["spec"]["blocks"] if block["state"] == "Confirmed"]
            assert any(lease.address in parse_prefix(block) for block in blocks), f"{lease} is of no block of {blocks}"


class Stage:
    """Where lives are played, one after the other; a context manager."""

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.home = Path(tempfile.mkdtemp(prefix="al-", dir="/dev/shm"))
            stack.callback(shutil.rmtree, self.home)
            faults = stack.enter_context(Faults(self.home / "disk"))
            self.control = faults.control
            self.launcher = stack.enter_context(Launcher(faults.environment()))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    @contextlib.contextmanager
    def life(self):
        """A new agent on an empty disk."""
        for leftover in self.home.iterdir():
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        with Agent(self.launcher, folder=self.home, manifests={"blue.yaml": manifest(BLUE)}) as agent:
            try:
                yield Life(agent)
            finally:
                self.control.disarm()

    def count(self):
        """How many changes of the disk one whole life makes; it varies a little with what shares a transaction."""
        with self.life() as life:
            self.control.count(CHANGES)
            life.live()
            life.judge_disk()
            return self.control.seen

    def play(self, point, *, half):
        """One life that ends at that change of the disk; False when it was over before."""
        with self.life() as life:
            self.control.arm(CHANGES, first=point, half=half)
            try:
                life.live()
            except Died:
                self.control.disarm()
                life.judge_disk()
                life.finish()
                return True
            return False


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_each_change_of_the_disk(step):
    with contextlib.ExitStack() as stack:
        stages = queue.SimpleQueue()
        for _ in range(WORKERS):
            stages.put(stack.enter_context(Stage()))

        def play(point):
            stage = stages.get()
            try:
                return stage.play(point, half=bool(point % 2))
            except BaseException as error:
                error.add_note(f"killed at change {point}")
                raise
            finally:
                stages.put(stage)

        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(WORKERS))
        stage = stages.get()
        total = stage.count()
        stages.put(stage)
        points = list(range(1, total + 1, step))
        reached = sum(pool.map(play, points))
        assert reached >= 0.9 * len(points)
