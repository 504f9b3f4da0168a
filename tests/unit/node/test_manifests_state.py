"""The state folder: whole at any moment, and damage is said, not guessed over."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from allotment.addressing.errors import ConfigError
from allotment.api.allocation import Allocation, AllocationSpec
from allotment.api.decoding import decode
from allotment.api.meta import ObjectMeta
from allotment.api.names import allocation_name
from allotment.node.manifests.document import read_documents
from allotment.node.manifests.folder import Served
from allotment.node.manifests.standalone import AllocationRecord, changed
from allotment.node.manifests.state_folder import StateFolder
from unit.node.manifest_texts import network
from unit.node.test_manifests_standalone import net, run, told

if TYPE_CHECKING:
    from pathlib import Path

RECORD = run(told(net(), uid="u1"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def loaded(folder: Path) -> dict[str, AllocationRecord]:
    return StateFolder(folder).load()


def opened(folder: Path) -> StateFolder:
    state = StateFolder(folder)
    state.load()
    return state


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_records_are_kept_replaced_and_dropped(folder):
    state = opened(folder)
    state.save(RECORD)
    assert loaded(folder) == {"blue.n1": RECORD}
    other = changed(RECORD, (), None)
    state.save(other)
    assert loaded(folder) == {"blue.n1": other}
    assert files(folder) == ["allocations/blue.n1.yaml"]
    state.drop("blue.n1")
    state.drop("blue.n1")
    assert loaded(folder) == {}
    assert files(folder) == []


def test_a_person_can_read_a_record(folder):
    opened(folder).save(RECORD)
    text = (folder / "allocations/blue.n1.yaml").read_text()
    assert "allotment.dev/node" in text
    assert "kind: Allocation" in text


def test_two_long_names_do_not_meet(folder):
    state = opened(folder)
    for end in ("a", "b"):
        node = "n" * 200 + end
        spec = AllocationSpec("blue", node, RECORD.allocation.spec.type)
        state.save(AllocationRecord(1, Allocation(ObjectMeta(allocation_name("blue", node)), spec)))
    assert len(loaded(folder)) == 2


@pytest.mark.parametrize("content", [b"", b"\0" * 400, b"version: 1\nallocation: {", b"version: 1\n", b"[1]", b"\xff"])
def test_a_damaged_record_is_set_aside_and_said(folder, content):
    opened(folder).save(RECORD)
    path = folder / "allocations/blue.n1.yaml"
    path.write_bytes(content)
    state = StateFolder(folder)
    assert state.load() == {}
    (problem,) = state.problems
    aside = folder / "allocations/blue.n1.yaml.set-aside"
    assert problem.file == str(aside)
    assert aside.read_bytes() == content
    assert state.set_aside("blue.n1") == aside
    assert state.set_aside("red.n1") is None
    aside.unlink()
    assert state.set_aside("blue.n1") is None


def test_a_record_under_a_foreign_name_is_set_aside(folder):
    opened(folder).save(RECORD)
    (folder / "allocations/blue.n1.yaml").rename(folder / "allocations/red.n1.yaml")
    state = StateFolder(folder)
    assert state.load() == {}
    assert "it is the record of 'blue.n1'" in state.problems[0].message


def test_a_record_of_a_newer_version_stops_the_start(folder):
    opened(folder).save(RECORD)
    path = folder / "allocations/blue.n1.yaml"
    path.write_text(path.read_text().replace("version: 1", "version: 2"))
    with pytest.raises(ConfigError, match="newer version"):
        loaded(folder)
    assert files(folder) == ["allocations/blue.n1.yaml"]


def served() -> dict:
    resource = decode(read_documents(network().encode())[0].data).resource
    return {("Network", "blue"): Served(resource, "a.yaml")}


def test_the_manifests_last_good_state(folder):
    state = opened(folder)
    assert state.load_manifests() == {}
    state.save_manifests(served())
    assert StateFolder(folder).load_manifests() == served()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version":9,"files":{}}', b'{"version":1,"files":{"a":[{"kind":"X"}]}}']
)
def test_a_damaged_last_good_state_is_set_aside(folder, content):
    state = opened(folder)
    (folder / "manifests.json").write_bytes(content)
    assert state.load_manifests() == {}
    assert state.problems
    assert (folder / "manifests.json.set-aside").read_bytes() == content


CHILD = """
import os, sys
from pathlib import Path
from allotment.node.manifests.state_folder import StateFolder
from allotment.node.manifests.standalone import changed
folder, call, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
state = StateFolder(folder)
(record,) = state.load().values()
real, left = getattr(os, call), [count]
def fatal(*arguments, **named):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), 9)
    return real(*arguments, **named)
setattr(os, call, fatal)
state.save(changed(record, ("new",), None))
print("saved")
"""


@pytest.mark.parametrize(
    ("call", "count"), [("open", 0), ("write", 0), ("fsync", 0), ("replace", 0), ("open", 1), ("fsync", 1)]
)
def test_killed_at_any_step_of_a_write_the_record_is_whole(folder, call, count):
    """SIGKILL before the step; whatever it leaves, the next start finds the old record or the new, and clears up."""
    opened(folder).save(RECORD)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), call, str(count)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == -9, done.stderr
    state = StateFolder(folder)
    (record,) = state.load().values()
    renamed = (call, count) in {("open", 1), ("fsync", 1)}
    assert record == (changed(RECORD, ("new",), None) if renamed else RECORD)
    assert state.problems == ()
    assert files(folder) == ["allocations/blue.n1.yaml"]


def test_a_record_is_written_where_its_folder_was_removed_meanwhile(folder):
    state = opened(folder)
    (folder / "allocations").rmdir()
    state.save(RECORD)
    assert loaded(folder) == {"blue.n1": RECORD}


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_record_and_nothing_beside(folder, call, monkeypatch):
    state = opened(folder)
    state.save(RECORD)

    def fails(*_arguments, **_named):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(OSError, match="No space"):
            state.save(changed(RECORD, ("new",), None))
    assert files(folder) == ["allocations/blue.n1.yaml"]
    assert loaded(folder) == {"blue.n1": RECORD}


def test_a_short_write_is_continued(folder, monkeypatch):
    real = os.write
    state = opened(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data[:7])))
        state.save(RECORD)
    assert loaded(folder) == {"blue.n1": RECORD}
