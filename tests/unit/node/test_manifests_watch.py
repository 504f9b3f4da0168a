"""The doorbell: it rings for what concerns the folder, and for nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from allotment.node.folder_watch import FolderWatch

LIMIT = 10


class Bell:
    def __init__(self) -> None:
        self.rung = asyncio.Event()

    async def rings(self) -> bool:
        async with asyncio.timeout(LIMIT):
            await self.rung.wait()
        self.rung.clear()
        return True

    async def is_still(self) -> bool:
        """Whether what has happened so far rang nothing: the loop has read all there is to read."""
        for _ in range(5):
            await asyncio.to_thread(lambda: None)
        return not self.rung.is_set()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "manifests").mkdir()
    return tmp_path / "manifests"


@pytest.fixture
async def watched(folder: Path):
    bell = Bell()
    with FolderWatch(folder, bell.rung.set) as watch:
        assert watch.renew() == ""
        yield bell, watch


async def test_each_kind_of_change_rings(watched, folder):
    bell, _ = watched
    path = folder / "a.yaml"
    path.write_text("1")
    assert await bell.rings()
    with path.open("a") as file:
        file.write("2")
    assert await bell.rings()
    path.chmod(0o600)
    assert await bell.rings()
    path.rename(folder / "b.yaml")
    assert await bell.rings()
    (folder / "b.yaml").unlink()
    assert await bell.rings()


async def test_reading_and_neighbours_do_not_ring(watched, folder):
    bell, _ = watched
    (folder / "a.yaml").write_text("1")
    assert await bell.rings()
    assert await bell.is_still()
    (folder / "a.yaml").read_text()
    list(folder.iterdir())
    (folder.parent / "neighbour").mkdir()
    (folder.parent / "neighbour" / "x").write_text("x")
    (folder.parent / "neighbour").rename(folder.parent / "other")
    assert await bell.is_still()


async def test_the_folder_itself_coming_and_going_rings(watched, folder):
    bell, watch = watched
    folder.rmdir()
    assert await bell.rings()
    assert watch.renew() == ""
    assert await bell.is_still()
    folder.mkdir()
    assert await bell.rings()
    watch.renew()
    folder.rename(folder.parent / "old")
    assert await bell.rings()
    watch.renew()
    (folder.parent / "old" / "a.yaml").write_text("1")
    assert await bell.is_still(), "what was moved away is no concern any more"


async def test_folders_above_are_waited_for_one_by_one(tmp_path):
    bell = Bell()
    folder = tmp_path / "a" / "b" / "c"
    with FolderWatch(folder, bell.rung.set) as watch:
        watch.renew()
        (tmp_path / "x").mkdir()
        assert await bell.is_still()
        for step in (tmp_path / "a", tmp_path / "a" / "b", folder, folder / "file"):
            step.mkdir()
            assert await bell.rings()
            watch.renew()


async def test_lost_events_ring(watched, folder):
    """The kernel's queue runs over with events that don't concern us; one that does may be among the lost."""
    bell, _ = watched
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 50_000:
        pytest.skip(f"the kernel queues {most} events")
    for _ in range(most // 2 + 10):
        path = folder.parent / "neighbour"
        path.touch()
        path.unlink()
    assert await bell.rings()
