"""An agent that dies at any single change of the disk, of whatever part of it, comes up again and is right.

One life with everything in it is played again and again: a first start, admission, ADD, DEL, a kept DEL, edits of the
manifests, drain, an orderly end. In each play the agent is killed at another write, sync, rename, truncate or removal.
Then the disk itself is judged, and the agent started again to live its life to the end (I1, I2, I3, I4, I5, I7).
The quick tier samples the points; `-m slow` takes every one.
"""

import concurrent.futures
import contextlib
import copy
import json
import queue
import shutil
import signal

import pytest
import yaml

import agents
import nodes
from agents import Agent, now
from allotment.addressing.address import parse_prefix
from allotment.addressing.errors import AllotmentError
from allotment.api.meta import NODE_FINALIZER
from allotment.cni.exchange import SPOOL
from allotment.cni.frames import encode_call, encode_spool_entry
from allotment.ledger import LedgerReader
from crash.stage import Died, DiskStage
from crash.told import Told
from crash.world import COOLDOWN

WORKERS = 3
BLUE, GREEN = "blue", "green"
BOOT, NEXT_BOOT = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
DRAINING = ', deletionTimestamp: "2026-01-01T00:00:00Z"'
REFUSED = 7


def manifest(network, **more):
    third = {BLUE: 4, GREEN: 5}[network]
    return agents.network(network, v4=f"10.{third}.0.0/24", v6=f"fd00:{third}::/120", cooldown=COOLDOWN, **more)


class Life:
    """What happens to one agent. Each step can be repeated, and `told` knows what callers know."""

    def __init__(self, agent):
        self.agent = agent
        self.told = Told(COOLDOWN)
        self.boot_file = agent.folder / "boot"
        if not self.boot_file.exists():
            self.boot_file.write_text(BOOT)

    def prepare(self):
        """What happened before."""

    def live(self):
        """What is to be interrupted; raises Died when it is."""
        self.start()
        for container in ("c1", "c2", "c3"):
            self.add(BLUE, container)
        self.delete(BLUE, "c2")
        self.edit(GREEN)
        self.until(lambda: self.record(GREEN) and NODE_FINALIZER in self.record(GREEN)["metadata"]["finalizers"])
        self.add(GREEN, "g1")
        self.add(GREEN, "g2")
        self.keep_delete(GREEN, "g1")
        self.until(lambda: not self.kept())
        self.edit(BLUE, reserved="10.4.0.128/25")
        self.delete(BLUE, "c1")
        self.drain(BLUE)
        assert NODE_FINALIZER in self.record(BLUE)["metadata"]["finalizers"], "a lease is left (I5)"
        self.delete(BLUE, "c3")
        self.until(lambda: self.record(BLUE) is None)
        self.stop()

    def finish(self):
        """Whatever point it came to: started again it is right, and everything comes to its end."""
        self.start()
        self.look()
        for item in list(self.told.attachments.values()):
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
        reply = self.added(network, container)
        assert reply.exit_code == 0, reply.body
        self.told.add_answered(item, agents.told(reply.body), now())

    def added(self, network, container):
        return self.ask("ADD", network, container)

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
        self.told.delete_sent(item, now())
        item.ending = True
        frame = encode_call(agents.environment("DEL", container), agents.conf(network))
        self.agent.spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp = int(now() * 1e9)
        temporary = self.agent.spool / ".tmp-1"
        temporary.write_bytes(encode_spool_entry(BOOT, stamp, frame))
        temporary.rename(self.agent.spool / f"{stamp:020d}-1.del")

    def kept(self):
        return list(self.agent.spool.glob("*.del"))

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
        self.until(lambda: not self.kept())
        try:
            leases = self.agent.leases()
        except AllotmentError:
            self.died()
        self.told.judge(leases, settle=True)

    def judge_disk(self):
        """What a dead agent left: acknowledged leases, each from a confirmed block of an Allocation that is held."""
        leases = ()
        if (self.agent.state / "ledger.rebuild").exists():
            return  # and it says so: a start that comes will not serve before it is whole
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


class Restart(Life):
    """A start with DELs in the spool: for what is held, twice, for what nobody knows, and one that can't be read."""

    def prepare(self):
        self.start()
        for container in ("c1", "c2", "c3"):
            self.add(BLUE, container)
        self.agent.kill()
        for container in ("c1", "c2", "c1", "unknown"):
            self.keep_delete(BLUE, container)
        (self.agent.spool / "00000000000000000001-1.del").write_bytes(b"ALS1")

    def live(self):
        self.start()
        self.look()
        self.stop()


class Reboot(Life):
    """The first start after the machine was restarted."""

    def prepare(self):
        self.start()
        for container in ("c1", "c2", "c3"):
            self.add(BLUE, container)
        self.delete(BLUE, "c2")
        self.agent.kill()
        self.boot_file.write_text(NEXT_BOOT)

    def live(self):
        self.told.rebooted(now())
        self.start()
        self.look()
        for container in ("c4", "c5", "c6"):
            self.add(BLUE, container)
        self.stop()


class Loss(Life):
    """A start that finds the ledger gone, and makes it again from what the runtime's library remembers."""

    def prepare(self):
        self.start()
        for container in ("c1", "c2", "c3"):
            self.add(BLUE, container)
        for container in ("c1", "c2"):
            addresses = self.told.attachment(BLUE, container).certain
            nodes.cni_cache_entry(self.agent.cache, container, addresses)
        self.agent.kill()
        for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
            (self.agent.state / name).unlink()
        self.told.lost(*(self.told.attachment(BLUE, container) for container in ("c1", "c2")))

    def live(self):
        self.start()
        self.look()
        self.add(BLUE, "c4")
        self.stop()

    def added(self, network, container):
        """What nobody holds rests for a cooldown once the ledger was lost (I3): a runtime tries again."""
        replies = []
        self.until(lambda: self._given(network, container, replies))
        return replies[-1]

    def _given(self, network, container, replies):
        replies.append(self.ask("ADD", network, container))
        return replies[-1].exit_code == 0 or b"cooling" not in replies[-1].body

    def judge_disk(self):
        if (self.agent.state / "ledger.db").exists():
            super().judge_disk()


class Stage(DiskStage):
    """Where lives are played, one after the other."""

    def __init__(self):
        self._prepared = {}

    @contextlib.contextmanager
    def _life(self, kind):
        """An agent of this kind on a disk as `prepare` left it."""
        shutil.rmtree(self._home, ignore_errors=True)
        before = self._folder / kind.__name__
        told = self._prepared.get(kind)
        if told is not None:
            shutil.copytree(before, self._home)
        flags = ["--boot-id-file", self._home / "boot"]
        with Agent(self._launcher, folder=self._home, manifests={}, flags=flags) as agent:
            life = kind(agent)
            if told is None:
                life.edit(BLUE)
                life.prepare()
                shutil.copytree(self._home, before, ignore=shutil.ignore_patterns("notify", "*.sock"))
                told = self._prepared[kind] = life.told
            life.told = copy.deepcopy(told)
            try:
                yield life
            finally:
                self._control.disarm()


@pytest.fixture(scope="module")
def stages():
    """As many stages as are asked for; they serve several tests."""
    with contextlib.ExitStack() as stack:
        made = []

        def give(count):
            while len(made) < count:
                made.append(stack.enter_context(Stage()))
            return made[:count]

        yield give


@pytest.mark.parametrize("kind", [Life, Restart, Reboot, Loss])
@pytest.mark.parametrize("step", [47, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_each_change_of_the_disk(stages, kind, step):
    """A life from the first start on, and three starts that find a lot to do."""
    free = queue.SimpleQueue()
    for stage in stages(WORKERS if step == 1 else 1):
        free.put(stage)

    def play(point):
        stage = free.get()
        try:
            return stage.play(point, kind, half=bool(point % 2))
        except BaseException as error:
            error.add_note(f"killed at change {point}")
            raise
        finally:
            free.put(stage)

    stage = free.get()
    points = list(range(1, stage.count(kind) + 1, step))
    free.put(stage)
    with concurrent.futures.ThreadPoolExecutor(free.qsize()) as pool:
        died = sum(pool.map(play, points))
    assert died >= 0.8 * len(points)
