"""The folder, looked at step by step: what can't be read never counts as gone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from allotment.node.manifests import folder as manifest_folder
from allotment.node.manifests.file import SIZE_LIMIT
from allotment.node.manifests.folder import ManifestFolder
from unit.node.manifest_texts import allocation, network, reservation

if TYPE_CHECKING:
    from pathlib import Path

BLUE = ("Network", "blue")
RED = ("Network", "red")
KEEP = ("IPReservation", "keep")


class World:
    """A folder and its reader, with a clock that moves when told to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.reader = ManifestFolder(folder, {}, grace=1.0)
        self.now = 100.0
        self.used: frozenset[str] = frozenset()
        self.expected = False

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def look(self, seconds: float = 0.0):
        self.now += seconds
        self.reading = self.reader.read(self.now, expected=self.expected, in_use=lambda _: self.used)
        return self.reading

    @property
    def kinds(self) -> set:
        return set(self.reading.served)


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "manifests"
    folder.mkdir()
    return World(folder)


def test_objects_of_all_files_and_documents(world):
    world.write("a.yaml", network("blue") + "---\n" + reservation())
    world.write("b.yml", network("red"))
    world.write("c.json", allocation("blue"))
    world.write("d.txt", "not a manifest: [")
    world.look()
    assert world.kinds == {BLUE, RED, KEEP, ("Allocation", "blue.n1")}
    assert world.reading.sure
    assert world.reading.warnings == ()


def test_lists_as_kubectl_prints_them(world):
    inner = network("blue").replace("\n", "\n    ")
    world.write("a.yaml", f"apiVersion: v1\nkind: List\nitems:\n  - {inner}")
    world.look()
    assert world.kinds == {BLUE}


def test_other_kinds_are_passed_over_with_a_warning(world):
    world.write("a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n---\n" + network())
    world.look()
    assert world.kinds == {BLUE}
    assert world.reading.sure
    assert [(warning.line, "ConfigMap" in warning.message) for warning in world.reading.warnings] == [(1, True)]


def test_dotfiles_and_editors_leavings_are_no_manifests(world):
    world.write("a.yaml", network())
    for name in (".a.yaml.swp", ".#a.yaml", "#a.yaml#", "a.yaml~", "a.yaml.bak", "4913", ".hidden.yaml"):
        world.write(name, "kind: [")
    (world.path / "sub").mkdir()
    world.look()
    assert world.kinds == {BLUE}
    assert world.reading.sure


def test_a_mounted_config_map_and_its_atomic_swap(world):
    def mount(stamp: str, text: str) -> None:
        (world.path / stamp).mkdir()
        (world.path / stamp / "blue.yaml").write_text(text)
        (world.path / "..data_tmp").symlink_to(stamp)
        (world.path / "..data_tmp").rename(world.path / "..data")

    mount("..2026_01", network("blue"))
    (world.path / "blue.yaml").symlink_to("..data/blue.yaml")
    world.look()
    assert world.kinds == {BLUE}
    mount("..2026_02", network("blue", spec="cooldownSeconds: 7"))
    world.look()
    assert world.reading.served[BLUE].resource.spec.cooldown_seconds == 7
    assert world.reading.sure


BROKEN = {
    "syntax": ("kind: [", 1, "not valid YAML"),
    "half written": (network()[:70], 1, "is required and missing"),
    "zeros after a crash": ("\0" * 300, 1, "control characters"),
    "a rule": (network("blue", "10.4.0.7/24"), 8, "host bits"),
    "a list": ("- 1\n- 2\n", 1, "an object is expected"),
    "no kind": ("metadata: {name: blue}\n", 1, "apiVersion and kind"),
    "another version": (network().replace("v1alpha1", "v9"), 1, "allotment.dev/v1alpha1"),
    "no text": (b"\xff\xfe", 1, "UTF-8"),
    "too large": ("#" * (SIZE_LIMIT + 1), 0, "larger than 1 MiB"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_named_with_its_line_and_its_last_good_objects_stay(world, fault):
    content, line, words = BROKEN[fault]
    world.write("a.yaml", network("blue", spec="cooldownSeconds: 5") + "---\n" + reservation())
    before = world.look().served
    (world.path / "a.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    world.look()
    (problem,) = {(p.file, p.line) for p in world.reading.problems}
    assert problem == ("a.yaml", line)
    assert any(words in p.message for p in world.reading.problems)
    world.look(1000)
    assert world.reading.served == before
    assert not world.reading.sure
    world.write("a.yaml", network("blue", spec="cooldownSeconds: 6") + "---\n" + reservation())
    world.look()
    assert world.reading.sure
    assert world.reading.served[BLUE].resource.spec.cooldown_seconds == 6


def make_directory(path: Path) -> None:
    path.mkdir()


def make_dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [make_directory, make_dangling, make_loop, make_pipe])
def test_what_can_not_be_read_keeps_what_it_held(world, make):
    world.write("a.yaml", network())
    world.write("b.yaml", network("red", "10.5.0.0/24"))
    world.look()
    (world.path / "a.yaml").unlink()
    make(world.path / "a.yaml")
    world.look()
    world.look(1000)
    assert world.kinds == {BLUE, RED}
    assert [(problem.file, problem.line) for problem in world.reading.problems] == [("a.yaml", 0)]


def test_a_truncated_file_keeps_what_it_held(world):
    world.write("new.yaml", "")
    assert world.look().sure  # never held anything: just created
    world.write("a.yaml", network())
    world.look()
    world.write("a.yaml", "")
    world.look(1000)
    assert world.kinds == {BLUE}
    assert "is empty, though it held 1 object" in world.reading.problems[0].message


def test_a_comment_alone_says_that_nothing_is_meant(world):
    world.write("a.yaml", network())
    world.look()
    world.write("a.yaml", "# nothing any more\n")
    assert world.look().again_in == 1.0
    world.look(1.0)
    assert world.kinds == set()
    assert world.reading.sure


def test_a_removed_file_counts_only_after_a_moment(world):
    world.write("a.yaml", network())
    world.write("b.yaml", network("red", "10.5.0.0/24"))
    world.look()
    (world.path / "a.yaml").unlink()
    assert world.look().again_in == 1.0
    assert world.kinds == {BLUE, RED}
    world.look(0.5)
    assert world.kinds == {BLUE, RED}
    world.look(0.5)
    assert world.kinds == {RED}
    assert world.reading.again_in is None


def test_an_editor_between_two_steps_of_saving_removes_nothing(world):
    world.write("a.yaml", network())
    world.write("b.yaml", network("red", "10.5.0.0/24"))
    world.look()
    (world.path / "a.yaml").rename(world.path / "a.yaml~")
    world.look(0.9)
    world.write("a.yaml", network("blue", spec="cooldownSeconds: 9"))
    world.look(0.9)
    assert world.kinds == {BLUE, RED}
    assert world.reading.again_in is None
    (world.path / "a.yaml").unlink()
    world.look(0.9)  # the moment begins anew
    assert BLUE in world.kinds


def test_nothing_is_taken_for_removed_while_a_file_can_not_be_read(world):
    """I8: the object may be in the file that can't be read."""
    world.write("a.yaml", network())
    world.write("b.yaml", network("red", "10.5.0.0/24"))
    world.look()
    (world.path / "a.yaml").unlink()
    world.write("c.yaml", "{")
    world.look(100)
    assert world.kinds == {BLUE, RED}
    assert any("Network blue is in no file any more" in warning.message for warning in world.reading.warnings)
    world.write("c.yaml", network("blue", spec="cooldownSeconds: 1"))
    world.look()
    assert world.reading.served[BLUE].file == "c.yaml"
    assert world.reading.sure
    assert world.reading.warnings == ()


def test_a_renamed_file_changes_nothing(world):
    world.write("a.yaml", network())
    before = world.look().served[BLUE].resource
    (world.path / "a.yaml").rename(world.path / "z.yaml")
    world.look()
    assert world.reading.served[BLUE].resource == before
    assert world.reading.problems == world.reading.warnings == ()


def test_of_two_files_with_one_object_the_first_by_name_counts(world):
    world.write("b.yaml", network("blue", spec="cooldownSeconds: 2"))
    world.write("c.yaml", "\n" + network("blue", spec="cooldownSeconds: 3"))
    world.look()
    assert world.reading.served[BLUE].resource.spec.cooldown_seconds == 2
    assert [(p.file, p.line, "also in b.yaml" in p.message) for p in world.reading.problems] == [("c.yaml", 2, True)]


def test_an_object_twice_in_one_file(world):
    world.write("a.yaml", network() + "---\n" + network())
    world.look()
    assert world.kinds == set()
    assert "first on line 1" in world.reading.problems[0].message
    assert world.reading.problems[0].line == 11


CHANGES = {
    "type": (network("blue", layer="L2"), 6),
    "block size": (network("blue", "10.4.0.0/24", "10.5.0.0/24 closed: true").replace(": 28", ": 27", 1), 9),
    "an open subnet removed": (network("blue", "10.5.0.0/24 closed: true"), 8),
    "a used subnet removed": (network("blue", "10.4.0.0/24"), 8),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_is_not_allowed_is_refused_by_line_and_the_rest_stays(world, change):
    text, line = CHANGES[change]
    world.used = frozenset({"10.5.0.0/24"})
    world.write("a.yaml", network("blue", "10.4.0.0/24", "10.5.0.0/24 closed: true"))
    before = world.look().served[BLUE]
    world.write("a.yaml", text)
    for _ in range(2):  # it is refused for as long as it stands there
        world.look(10)
        assert world.reading.served[BLUE] == before
        assert ("a.yaml", line) in {(problem.file, problem.line) for problem in world.reading.problems}
    world.write("a.yaml", network("blue", "10.4.0.0/24", "10.5.0.0/24"))
    assert world.look().sure


def test_a_closed_subnet_may_go_once_it_is_not_in_use(world):
    world.used = frozenset({"10.5.0.0/24"})
    world.write("a.yaml", network("blue", "10.4.0.0/24", "10.5.0.0/24 closed: true"))
    world.look()
    world.write("a.yaml", network("blue", "10.4.0.0/24"))
    assert not world.look().sure
    world.used = frozenset()
    assert world.look().sure  # the file did not change, the use did
    assert len(world.reading.served[BLUE].resource.spec.subnets) == 1


def test_a_folder_that_is_empty_all_at_once_is_doubted(world):
    """I15: an empty answer from a source that should not be empty."""
    world.write("a.yaml", network())
    before = world.look().served
    (world.path / "a.yaml").unlink()
    for _ in range(3):
        world.look(100)
        assert world.reading.served == before
        assert "holds no manifests, though it did before" in world.reading.doubted
        assert not world.reading.sure
    world.write("empty.yaml", "# it is meant")
    world.look()
    assert world.reading.doubted == ""
    world.look(1)
    assert world.kinds == set()


def test_a_missing_folder_is_doubted_and_its_return_believed(world):
    world.write("a.yaml", network())
    world.look()
    world.path.rename(world.path.with_name("aside"))
    world.look(100)
    assert world.kinds == {BLUE}
    assert "No such file" in world.reading.doubted
    world.path.mkdir()
    world.look(100)
    assert "no manifests" in world.reading.doubted
    world.write("b.yaml", network("red", "10.5.0.0/24"))
    assert world.look().doubted == ""
    assert world.kinds == {BLUE, RED}  # blue's moment begins now
    world.look(1)
    assert world.kinds == {RED}


def test_a_folder_that_never_held_anything_is_not_doubted_unless_it_should_have(world):
    assert world.look().doubted == ""
    world.expected = True
    assert world.look().doubted


def test_a_folder_that_never_was_there_is_asked_for(world):
    world.path.rmdir()
    assert world.look().doubted.endswith("; make it, or name another with --manifests")
    world.expected = True
    assert world.look().doubted.endswith("; what it held is still served")


def test_a_file_in_the_folders_place_is_doubted(world):
    world.write("a.yaml", network())
    world.look()
    world.path.rename(world.path.with_name("aside"))
    world.path.write_text("")
    world.look()
    assert world.kinds == {BLUE}
    assert world.reading.doubted


def test_a_name_that_can_not_be_shown(world):
    world.write("a\n.yaml", network())
    world.look()
    assert world.reading.problems[0].file == "'a\\n.yaml'"
    assert world.kinds == set()


def test_too_many_files(world, monkeypatch):
    monkeypatch.setattr(manifest_folder, "FILE_LIMIT", 2)
    for name, cidr in (("b", "10.1.0.0/24"), ("c", "10.2.0.0/24")):
        world.write(f"{name}.yaml", network(name, cidr))
    assert world.look().sure
    world.write("a.yaml", network("a", "10.3.0.0/24"))
    world.look(100)
    assert world.kinds == {("Network", "a"), ("Network", "b"), ("Network", "c")}  # c is out of sight, not gone
    assert "only the first 2" in world.reading.problems[0].message
