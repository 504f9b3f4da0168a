"""The whole source, with real files and real inotify; every wait is for a published View."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import structlog

from allotment.addressing.errors import ConfigError, TryAgain
from allotment.addressing.plan import Layer
from allotment.api.allocation import Allocation, AllocationSpec, AllocationStatus, BlockUse
from allotment.api.meta import NODE_FINALIZER, ObjectMeta
from allotment.node.manifests import state_folder
from allotment.node.manifests.source import ManifestSource
from allotment.node.manifests.state_folder import StateFolder
from allotment.node.view import View
from allotment.observe.clock import Clock, SystemClock
from allotment.testing.clock import ManualClock
from unit.node.manifest_texts import allocation, network, reservation

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 10  # seconds that a test waits before it fails


class Agent:
    """One run of the source on a folder; `until` waits for a View that says what is asked for."""

    def __init__(self, folder: Path, clock: Clock | None = None, *, grace: float = 0.15) -> None:
        self.manifests = folder / "manifests"
        self.state = folder / "state"
        self.clock = clock or SystemClock("boot-1")
        self.source = ManifestSource(
            self.manifests, StateFolder(self.state), "n1", self.clock, structlog.get_logger(), grace=grace
        )
        self.view = View()
        self.published = 0
        self._news = asyncio.Event()

    def publish(self, view: View) -> None:
        self.view = view
        self.published += 1
        self._news.set()

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.source.run(self.publish))
        await self.until(lambda view: view.synced or view.doubted)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def until(self, said: Callable[[View], object]) -> View:
        async with asyncio.timeout(LIMIT):
            while not said(self.view):
                self._news.clear()
                news = asyncio.create_task(self._news.wait())
                await asyncio.wait({news, self.task}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if self.task.done():
                    self.task.result()
        return self.view

    def seen(self, name: str) -> Allocation:
        """The Allocation of that name as it was last published, or as one that was once."""
        found = {item.name: item for item in self.view.allocations.values()}
        spec = AllocationSpec(network="blue", node="n1", type=Layer.L3)
        return found.get(name) or Allocation(metadata=ObjectMeta(name=name), spec=spec)

    async def record(self, name: str, **what: Any) -> bool:
        return await self.source.record(self.seen(name), **what)

    async def forget(self, name: str) -> None:
        await self.source.forget(self.seen(name))

    def write(self, name: str, text: str) -> None:
        (self.manifests / name).write_text(text)

    def replace(self, name: str, text: str) -> None:
        temporary = self.manifests / f".{name}.new"
        temporary.write_text(text)
        temporary.rename(self.manifests / name)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "manifests").mkdir()
    return tmp_path


def cooldown(seconds: int) -> Callable[[View], object]:
    return lambda view: "blue" in view.networks and view.networks["blue"].spec.cooldown_seconds == seconds


def blue(seconds: int) -> str:
    return network("blue", spec=f"cooldownSeconds: {seconds}")


def drains(name: str = "blue") -> Callable[[View], object]:
    return lambda view: name in view.allocations and view.allocations[name].metadata.deleting


async def test_added_edited_replaced_and_renamed(place):
    async with Agent(place) as agent:
        assert agent.view.networks == {}
        agent.write("blue.yaml", blue(1))
        view = await agent.until(cooldown(1))
        assert view.allocations["blue"].metadata.finalizers == (NODE_FINALIZER,)
        assert [block.cidr for block in view.allocations["blue"].spec.blocks] == ["10.4.0.0/24"]
        uid = view.allocations["blue"].metadata.uid
        agent.write("blue.yaml", blue(2))
        await agent.until(cooldown(2))
        agent.replace("blue.yaml", blue(3))
        await agent.until(cooldown(3))
        (agent.manifests / "blue.yaml").rename(agent.manifests / "other.yml")
        agent.write("keep.yaml", reservation())
        view = await agent.until(lambda view: "keep" in view.reservations)
        assert view.networks["blue"].spec.cooldown_seconds == 3
        assert view.allocations["blue"].metadata.uid == uid
        assert not view.allocations["blue"].metadata.deleting
        assert view.problems == view.warnings == ()


async def test_networks_that_overlap_are_both_served_with_a_warning(place):
    async with Agent(place) as agent:
        agent.write("a.yaml", network("blue", "10.4.0.0/16", "fd00:4::/56"))
        agent.write("b.yaml", network("red", "10.4.7.0/24", "10.5.0.0/24", "fd00:5::/56"))
        agent.write("c.yaml", network("tan", "10.4.7.128/25", "10.3.0.0/24"))
        view = await agent.until(lambda view: len(view.allocations) == 3)
        told = {(warning.file, warning.message.partition(";")[0]) for warning in view.warnings}
        assert told == {
            ("b.yaml", "Network red: its subnet 10.4.7.0/24 overlaps 10.4.0.0/16 of Network blue"),
            ("c.yaml", "Network tan: its subnet 10.4.7.128/25 overlaps 10.4.7.0/24 of Network red"),
        }


async def test_a_removed_network_drains_until_it_is_let_go(place):
    async with Agent(place) as agent:
        agent.write("keep.yaml", reservation())
        agent.write("blue.yaml", blue(1))
        await agent.until(cooldown(1))
        (agent.manifests / "blue.yaml").unlink()
        view = await agent.until(drains())
        assert view.networks["blue"].metadata.deleting, "it is shown until the node has left it"
        agent.write("blue.yaml", blue(2))
        view = await agent.until(lambda view: any("still drains" in str(warning) for warning in view.warnings))
        assert view.networks["blue"].spec.cooldown_seconds == 1
        old = view.allocations["blue"].metadata.uid
        assert await agent.record("blue.n1", finalizers=[])
        view = await agent.until(cooldown(2))
        assert view.allocations["blue"].metadata.uid != old
        assert not view.allocations["blue"].metadata.deleting
        await agent.forget("blue.n1")
        assert agent.view.allocations == view.allocations, "what isn't being deleted isn't let go"


async def test_a_broken_file_is_reported_and_the_last_good_state_served_over_a_restart(place):
    async with Agent(place) as agent:
        agent.write("keep.yaml", reservation())
        agent.write("blue.yaml", blue(1))
        await agent.until(cooldown(1))
        agent.write("keep.yaml", reservation().replace("10.4.0.0/30", "10.4.0.1/30"))
        agent.write("blue.yaml", "kind: [")
        view = await agent.until(lambda view: len(view.problems) == 2)
        assert {(problem.file, problem.line) for problem in view.problems} == {("blue.yaml", 1), ("keep.yaml", 4)}
        before = view
    async with Agent(place) as agent:
        assert agent.view == before
        agent.write("red.yaml", network("red", "10.9.0.0/24"))
        view = await agent.until(lambda view: "red" in view.networks)
        assert "red" not in view.allocations, "while any file is unreadable nobody is newly admitted"
        assert "blue.yaml" in view.unadmitted["red"]
        agent.write("blue.yaml", blue(1))
        agent.write("keep.yaml", reservation())
        view = await agent.until(lambda view: "red" in view.allocations)
        assert view.unadmitted == {}
        assert view.allocations["blue"] == before.allocations["blue"]


async def test_a_change_that_is_not_allowed_is_refused_over_a_restart(place):
    async with Agent(place) as agent:
        agent.write("blue.yaml", network("blue"))
        await agent.until(lambda view: view.allocations)
    agent.write("blue.yaml", network("blue", layer="L2"))
    async with Agent(place) as agent:
        assert (6, True) in {(problem.line, "spec.type" in problem.message) for problem in agent.view.problems}
        assert agent.view.networks["blue"].spec.type == "L3"


@pytest.mark.parametrize("gone", ["empty", "missing", "not mounted"])
async def test_an_emptied_folder_is_doubted_also_at_a_start(place, gone):
    """I15, C15: an empty answer from a source that should not be empty."""
    async with Agent(place) as agent:
        agent.write("blue.yaml", blue(1))
        agent.write("keep.yaml", reservation())
        before = await agent.until(lambda view: cooldown(1)(view) and view.reservations)
        if gone != "empty":
            agent.manifests.rename(place / "aside")
            if gone == "not mounted":
                agent.manifests.mkdir()
        else:
            for path in agent.manifests.iterdir():
                path.unlink()
        view = await agent.until(lambda view: view.doubted)
        assert view.networks == before.networks
        assert view.allocations == before.allocations
        assert view.reservations == before.reservations
    async with Agent(place) as agent:
        assert agent.view.doubted
        assert agent.view.synced
        assert agent.view.networks == before.networks
        assert agent.view.allocations == before.allocations
        agent.manifests.mkdir(exist_ok=True)
        agent.write("blue.yaml", blue(4))
        agent.write("keep.yaml", reservation())
        view = await agent.until(cooldown(4))
        assert not view.doubted
        assert not view.allocations["blue"].metadata.deleting


async def test_a_missing_folder_at_the_first_start_is_waited_for(place):
    (place / "manifests").rmdir()
    async with Agent(place) as agent:
        assert agent.view.doubted
        assert not agent.view.synced
        staging = place / "staging"
        staging.mkdir()
        (staging / "blue.yaml").write_text(blue(1))
        staging.rename(agent.manifests)
        view = await agent.until(cooldown(1))
        assert view.synced
        assert not view.doubted


async def test_a_replaced_folder_is_watched_in_its_stead(place):
    async with Agent(place) as agent:
        agent.write("blue.yaml", blue(1))
        await agent.until(cooldown(1))
        new = place / "new"
        new.mkdir()
        (new / "blue.yaml").write_text(blue(2))
        agent.manifests.rename(place / "old")
        new.rename(agent.manifests)
        await agent.until(cooldown(2))
        (place / "old" / "blue.yaml").write_text(blue(9))
        agent.write("blue.yaml", blue(3))
        await agent.until(cooldown(3))


async def test_a_folder_far_below_what_exists_is_waited_for(place):
    agent = Agent(place)
    agent.manifests = place / "a" / "b" / "manifests"
    agent.source = ManifestSource(agent.manifests, StateFolder(agent.state), "n1", agent.clock, structlog.get_logger())
    async with agent:
        agent.manifests.mkdir(parents=True)
        agent.write("blue.yaml", blue(1))
        await agent.until(cooldown(1))


async def test_many_quick_edits_end_in_the_last_state_with_few_looks(place):
    async with Agent(place) as agent:
        for seconds in range(200):
            agent.write("blue.yaml", blue(seconds))
            agent.replace("keep.yaml", reservation("keep", f"10.4.{seconds}.0/24"))
        view = await agent.until(lambda view: cooldown(199)(view) and "keep" in view.reservations)
        assert view.problems == ()
        assert view.reservations["keep"].spec.reserved_cidrs == ("10.4.199.0/24",)
        assert agent.published < 20


async def test_a_file_written_in_pieces_disturbs_nothing(place):
    text = blue(7) + "---\n" + reservation()
    async with Agent(place, grace=LIMIT) as agent:
        agent.write("all.yaml", blue(1) + "---\n" + reservation())
        await agent.until(cooldown(1))
        seen: list[View] = []
        with (agent.manifests / "all.yaml").open("w") as file:
            for start in range(0, len(text), 40):
                file.write(text[start : start + 40])
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
                seen.append(agent.view)
        seen.append(await agent.until(lambda view: cooldown(7)(view) and not view.problems))
        assert all("keep" in view.reservations for view in seen)
        assert all(not view.allocations["blue"].metadata.deleting for view in seen)


async def test_a_look_every_30_seconds_finds_what_inotify_can_not_see(place):
    clock = ManualClock()
    target = place / "elsewhere.yaml"
    target.write_text(blue(1))
    (place / "manifests" / "blue.yaml").symlink_to(target)
    async with Agent(place, clock) as agent:
        await agent.until(cooldown(1))
        target.write_text(blue(2))  # behind the symlink: nothing rings
        async with asyncio.timeout(LIMIT):
            while not cooldown(2)(agent.view):
                clock.advance(30)
                for _ in range(10):
                    await asyncio.to_thread(lambda: None)


async def test_an_allocation_file_seen_once_decides_over_restarts(place):
    async with Agent(place) as agent:
        agent.write("blue.yaml", blue(1))
        agent.write("alloc.json", allocation("blue", "n1", "10.4.0.16/28"))
        view = await agent.until(lambda view: view.allocations)
        if view.allocations["blue"].metadata.finalizers:  # seen between the two writes: it was our own for a moment
            await agent.until(lambda view: view.allocations["blue"].spec.blocks[0].cidr == "10.4.0.16/28")
        assert await agent.record("blue.n1", finalizers=[NODE_FINALIZER])
        assert agent.view.allocations["blue"].metadata.finalizers == (NODE_FINALIZER,)
    agent.manifests.joinpath("alloc.json").unlink()
    async with Agent(place) as agent:
        await agent.until(drains())
        await agent.forget("blue.n1")
        assert agent.view.allocations == {}
        assert "was removed" in agent.view.unadmitted["blue"]
    async with Agent(place) as agent:
        assert agent.view.allocations == {}
        agent.write("alloc.json", allocation("blue", "n1", "10.4.0.32/28"))
        view = await agent.until(lambda view: view.allocations)
        assert view.allocations["blue"].metadata.finalizers == ()


async def test_what_is_recorded_is_durable_and_shown_when_it_returns(place):
    status = AllocationStatus(ledger_id="L1", blocks=(BlockUse("10.4.0.0/24", in_use="2"),))
    async with Agent(place) as agent:
        assert not await agent.record("blue.n1", status=status), "there is no such Allocation"
        agent.write("blue.yaml", blue(1))
        await agent.until(cooldown(1))
        assert await agent.record("blue.n1", status=status)
        assert agent.view.allocations["blue"].status == status
        published = agent.published
        assert await agent.record("blue.n1", status=status)
        assert agent.published == published, "the same again is no news"
    assert StateFolder(agent.state).load()["blue.n1"].allocation.status == status
    async with Agent(place) as agent:
        assert agent.view.allocations["blue"].status == status


async def test_recording_before_the_first_look_looks_first(place):
    async with Agent(place) as agent:
        agent.write("blue.yaml", blue(1))
        await agent.until(cooldown(1))
    fresh = Agent(place)
    assert await fresh.record("blue.n1", status=AllocationStatus(ledger_id="L2"))
    assert not StateFolder(agent.state).load()["blue.n1"].allocation.metadata.deleting


async def test_a_cancelled_record_is_still_finished(place):
    async with Agent(place) as agent:
        agent.write("blue.yaml", blue(1))
        await agent.until(cooldown(1))
        call = asyncio.create_task(agent.record("blue.n1", status=AllocationStatus(ledger_id="L3")))
        await asyncio.to_thread(lambda: None)
        call.cancel()
        await agent.until(lambda view: view.allocations["blue"].status.ledger_id == "L3")
        assert StateFolder(agent.state).load()["blue.n1"].allocation.status.ledger_id == "L3"


async def test_records_at_once_all_count(place):
    names = [f"net{number}" for number in range(12)]
    async with Agent(place) as agent:
        for number, name in enumerate(names):
            agent.write(f"{name}.yaml", network(name, f"10.{number}.0.0/24"))
        await agent.until(lambda view: len(view.allocations) == len(names))
        await asyncio.gather(*(agent.record(f"{name}.n1", status=AllocationStatus(ledger_id=name)) for name in names))
        assert {name: agent.view.allocations[name].status.ledger_id for name in names} == {n: n for n in names}
    kept = StateFolder(agent.state).load()
    assert {record.allocation.status.ledger_id for record in kept.values()} == set(names)


@pytest.fixture
def disk(monkeypatch):
    """A disk that is full while `full` is set."""

    class Disk:
        full = False

    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if Disk.full:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(state_folder.os, "write", write)
    return Disk


@pytest.mark.slow
async def test_a_full_disk_admits_nobody_and_drains_all_the_same(place, disk):
    """I2, I4 for admissions: written down first. A drain stops giving at once, written or not."""
    async with Agent(place) as agent:
        agent.write("keep.yaml", reservation())
        agent.write("blue.yaml", blue(1))
        await agent.until(cooldown(1))
        disk.full = True
        agent.write("red.yaml", network("red", "10.9.0.0/24"))
        view = await agent.until(lambda view: "red" in view.networks)
        assert "red" not in view.allocations
        assert "can't be recorded" in view.unadmitted["red"]
        assert any("No space" in str(problem) for problem in view.problems)
        with pytest.raises(TryAgain, match="No space"):
            await agent.record("blue.n1", finalizers=[])
        assert agent.view.allocations["blue"].metadata.finalizers == (NODE_FINALIZER,)
        agent.write(
            "blue.yaml", network("blue", spec="cooldownSeconds: 1", meta="deletionTimestamp: 2026-01-01T00:00:00Z")
        )
        await agent.until(drains())
        disk.full = False  # and nobody touches the manifests
        view = await agent.until(lambda view: "red" in view.allocations)
        assert view.problems == ()
        assert StateFolder(agent.state).load()["blue.n1"].allocation.metadata.deleting


async def test_a_damaged_record_admits_nobody_until_a_person_says_so(place):
    async with Agent(place) as agent:
        agent.write("blue.yaml", blue(1))
        await agent.until(cooldown(1))
    (agent.state / "allocations" / "blue.n1.yaml").write_bytes(b"\0" * 100)
    async with Agent(place) as agent:
        assert agent.view.allocations == {}
        assert "damaged" in agent.view.unadmitted["blue"]
        assert any("set aside" in warning.message for warning in agent.view.warnings)
        (agent.state / "allocations" / "blue.n1.yaml.set-aside").unlink()
        agent.write("blue.yaml", blue(2))
        await agent.until(lambda view: view.allocations)


async def test_a_lost_last_good_state_ends_nothing_in_an_empty_folder(place):
    async with Agent(place) as agent:
        agent.write("blue.yaml", blue(1))
        before = await agent.until(cooldown(1))
    (agent.state / "manifests.json").unlink()
    (agent.manifests / "blue.yaml").unlink()
    async with Agent(place) as agent:
        assert agent.view.doubted
        assert agent.view.allocations == before.allocations
        assert agent.view.networks == before.networks


async def test_a_state_folder_that_can_not_be_used_ends_the_source(place):
    (place / "state").write_text("a file")
    agent = Agent(place)
    with pytest.raises(ConfigError, match="state folder"):
        async with agent:
            pass


async def test_a_subnet_in_use_by_the_recorded_status_can_not_be_removed(place):
    async with Agent(place) as agent:
        agent.write("blue.yaml", network("blue", "10.4.0.0/24", "10.5.0.0/24 closed: true"))
        await agent.until(lambda view: view.allocations)
        uses = (BlockUse("10.4.0.0/24"), BlockUse("10.5.0.0/24", in_use="1"))
        await agent.record("blue.n1", status=AllocationStatus(blocks=uses))
        agent.write("blue.yaml", network("blue", "10.4.0.0/24"))
        view = await agent.until(lambda view: view.problems)
        assert "10.5.0.0/24 is still in use" in view.problems[0].message
        assert len(view.networks["blue"].spec.subnets) == 2
        await agent.record(
            "blue.n1", status=AllocationStatus(blocks=(BlockUse("10.4.0.0/24"), BlockUse("10.5.0.0/24")))
        )
        agent.write("other.yaml", "# look again\n")
        view = await agent.until(lambda view: not view.problems)
        assert len(view.networks["blue"].spec.subnets) == 1


async def test_without_inotify_changes_are_still_found(place, monkeypatch):
    from allotment.node import folder_watch

    class NoMore:
        @staticmethod
        def inotify_init1(_flags: int) -> int:
            folder_watch.ctypes.set_errno(24)
            return -1

    monkeypatch.setattr(folder_watch, "_libc", NoMore)
    clock = ManualClock()
    async with Agent(place, clock) as agent:
        assert any("max_user_instances" in warning.message for warning in agent.view.warnings)
        agent.write("blue.yaml", blue(1))
        async with asyncio.timeout(LIMIT):
            while not cooldown(1)(agent.view):
                clock.advance(30)
                for _ in range(10):
                    await asyncio.to_thread(lambda: None)


async def test_nothing_is_left_behind(place):
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async with Agent(place):
        pass
    before = descriptors()
    for _ in range(5):
        async with Agent(place) as agent:
            agent.write("blue.yaml", blue(1))
            await agent.until(cooldown(1))
    assert descriptors() == before
