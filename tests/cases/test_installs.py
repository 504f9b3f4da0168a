"""C62: half-written configurations are read, a cut binary is never repaired, the configuration goes with a restart,
two daemons rewrite one file in a loop.

Here the command as a whole, by the processes of a real machine: killed at each change of the disk, on a disk that is
full or read-only, while a runtime uses what is being replaced, and beside another writer. The steps one by one are in
tests/unit/cli/test_install.py.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from agents import Launcher, network
from faults.injection import CHANGES, KILL, Faults
from nodes import Node, until

OLD_NETWORK = network("old", v4="10.5.0.0/24", v6="")


class Place:
    """A bin and a conf folder, and the command that fills them."""

    def __init__(self, node, launcher, faults):
        self.folder = node.folder / "place"
        self.bin, self.conf = self.folder / "bin", self.folder / "conf"
        self.control = faults.control
        self._node = node
        self._launcher = launcher
        self.reset(old=False)
        code, said = self.install("--network", "old")
        assert code == 0, said
        self.old_conf = (self.conf / "10-allotment.conflist").read_bytes()

    def reset(self, *, old=True):
        """Empty, or with what an older release put in place."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.bin.mkdir(parents=True)
        self.conf.mkdir()
        for plugin in ("ptp", "portmap"):
            (self.bin / plugin).write_text('#!/bin/sh\necho \'{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}\'\n')
            (self.bin / plugin).chmod(0o755)
        if old:
            self.put_old_back()

    def put_old_back(self):
        """The older release's files, put in place as it would: whole."""
        for path, content, mode in (
            (self.bin / "allotment", OLD_SHIM, 0o755),
            (self.conf / "10-allotment.conflist", self.old_conf, 0o644),
        ):
            draft = self.folder / "draft"
            draft.write_bytes(content)
            draft.chmod(mode)
            draft.rename(path)

    def start(self, *flags):
        """Start the command."""
        where = ["--bin-dir", self.bin, "--conf-dir", self.conf, "--socket", self._node.socket, "--network", "blue"]
        return self._launcher.start(["install-cni", *where, "--wait", "0", *flags], log=self.log)

    def install(self, *flags):
        """Run it to its end: the exit code and what it said."""
        self.log.write_text("")
        process = self.start(*flags)
        try:
            return process.wait(), self.log.read_text()
        finally:
            process.close()

    @property
    def log(self):
        return self._node.folder / "install.log"

    def assert_usable(self):
        """The plugin runs, and the configuration is whole: the old one or the new one."""
        ran = subprocess.run(
            [self.bin / "allotment"], env={"CNI_COMMAND": "VERSION"}, input=b"{}", capture_output=True, check=True
        )
        assert "supportedVersions" in json.loads(ran.stdout)
        seen = [path for path in self.conf.iterdir() if path.suffix in (".conf", ".conflist", ".json")]
        assert [path.name for path in seen] == ["10-allotment.conflist"]
        assert json.loads(seen[0].read_text())["name"] in ("old", "blue")

    def assert_new(self):
        self.assert_usable()
        assert b"older release" not in (self.bin / "allotment").read_bytes()
        assert json.loads((self.conf / "10-allotment.conflist").read_text())["name"] == "blue"
        assert sorted(path.name for path in self.bin.iterdir()) == ["allotment", "portmap", "ptp"]
        assert len(list(self.conf.iterdir())) == 1


OLD_SHIM = b"""#!/bin/sh
# ALLOTMENT_SOCKET: the plugin of an older release
echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'
"""


@pytest.fixture(scope="module")
def place():
    folder = Path(tempfile.mkdtemp(prefix="al-"))
    try:
        with (
            Faults(folder / "place") as faults,
            Launcher(faults.environment(), modules=["allotment.cli.install", "allotment.net.namespaces"]) as launcher,
            Node(launcher, {"blue.yaml": network(), "old.yaml": OLD_NETWORK}, folder=folder) as node,
        ):
            node.start()
            yield Place(node, launcher, faults)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def well_again(place):
    yield
    place.control.disarm()


def steps(place):
    place.reset()
    place.control.count(CHANGES)
    assert place.install()[0] == 0
    place.control.disarm()
    place.assert_new()
    return place.control.seen


def test_killed_at_any_change_of_the_disk_the_node_stays_usable_and_the_next_run_completes(place):
    count = steps(place)
    assert count > 8
    for step in range(1, count + 1):
        place.reset()
        place.control.arm(CHANGES, first=step, times=1, error=KILL)
        assert place.install()[0] == -signal.SIGKILL
        place.control.disarm()
        place.assert_usable()
        assert place.install()[0] == 0
        place.assert_new()


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(errno.ENOSPC, id="ENOSPC"),
        pytest.param(errno.EROFS, id="EROFS", marks=pytest.mark.slow),
        pytest.param(errno.EIO, id="EIO", marks=pytest.mark.slow),
    ],
)
def test_refused_at_any_change_of_the_disk_it_says_so_and_the_node_stays_usable(place, error):
    for step in range(1, steps(place) + 1):
        place.reset()
        place.control.arm(CHANGES, first=step, times=0, error=error)
        code, said = place.install()
        place.control.disarm()
        assert code not in (0, None), said
        assert os.strerror(error) in said
        place.assert_usable()
        assert place.install()[0] == 0
        place.assert_new()


def test_a_first_install_that_is_killed_shows_a_runtime_nothing_half_done(place):
    """On a new node: either no configuration (the node isn't ready), or a whole one with its plugin there."""
    place.reset(old=False)
    place.control.count(CHANGES)
    assert place.install()[0] == 0
    for step in range(1, place.control.seen + 1):
        place.reset(old=False)
        place.control.arm(CHANGES, first=step, times=1, error=KILL)
        place.install()
        place.control.disarm()
        if (place.conf / "10-allotment.conflist").exists():
            place.assert_usable()
        assert place.install()[0] == 0
        place.assert_new()


def test_a_plugin_that_is_running_is_replaced_under_it(place):
    """ETXTBSY: a call waits for the agent with the old file, and ends well."""
    place.reset()
    assert place.install()[0] == 0
    with (place.bin / "allotment").open("ab") as file:
        file.write(b"\0")  # another release's file, as far as anybody can see
    running = subprocess.Popen(
        [place.bin / "allotment"],
        env={"CNI_COMMAND": "STATUS", "ALLOTMENT_SOCKET": str(place.folder / "nobody.sock")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        old = (place.bin / "allotment").stat().st_ino
        code, said = place.install()
        assert (code, "installed: " in said) == (0, True), said
        assert (place.bin / "allotment").stat().st_ino != old
        assert running.poll() is None
    finally:
        running.kill()
        running.communicate()
    place.assert_new()


def test_two_installs_and_a_runtime_that_reads_all_the_while(place):
    """Two daemons on one node put the same files in place: no reader ever sees half a file, and soon nobody writes."""
    place.reset()
    stop, bad = threading.Event(), []

    def read():
        while not stop.is_set():
            try:
                json.loads((place.conf / "10-allotment.conflist").read_text())
                if not (place.bin / "allotment").read_bytes().startswith((b"\x7fELF", b"#!")):
                    bad.append("the plugin is cut off")
            except (OSError, ValueError) as error:
                bad.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(4):
            place.put_old_back()
            both = [place.start(), place.start()]
            codes = [process.wait() for process in both]
            for process in both:
                process.close()
            assert 0 in codes
    finally:
        stop.set()
        reader.join()
    assert not bad, bad[:3]
    assert place.install()[0] == 0
    place.assert_new()
    before = [path.stat().st_mtime_ns for path in (*place.bin.iterdir(), *place.conf.iterdir())]
    for _ in range(3):
        assert place.install()[0] == 0
    assert [path.stat().st_mtime_ns for path in (*place.bin.iterdir(), *place.conf.iterdir())] == before


def test_another_writer_of_our_file_is_told_of_once_and_not_fought(place):
    """Somebody else's tool writes its own list under our name: it stays, and every run says the same."""
    place.reset()
    theirs = json.dumps({"cniVersion": "1.0.0", "name": "theirs", "plugins": [{"type": "bridge"}]})
    (place.conf / "10-allotment.conflist").write_text(theirs)
    for _ in range(3):
        code, said = place.install()
        assert code not in (0, None)
        assert "was not installed by this command and is left alone" in said
        assert (place.conf / "10-allotment.conflist").read_text() == theirs


def test_the_agents_restart_takes_no_configuration_away(place):
    """A restart, or a kill, of the agent is no reason for a runtime to call the node not ready."""
    place.reset()
    assert place.install()[0] == 0
    before = (place.conf / "10-allotment.conflist").stat()
    place._node.kill()
    assert (place.conf / "10-allotment.conflist").stat().st_ino == before.st_ino
    place._node.start()
    place._node.stop()
    assert (place.conf / "10-allotment.conflist").stat().st_mtime_ns == before.st_mtime_ns
    place._node.start()
    until(lambda: place._node.call("STATUS").ok, "the agent does not serve")


@pytest.mark.root
def test_a_read_only_bin_folder_is_told_of_and_changes_nothing(place):
    place.reset()
    subprocess.run(["mount", "--bind", str(place.bin), str(place.bin)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place.bin)], check=True)
        code, said = place.install()
        assert code not in (0, None)
        assert "Read-only file system" in said
        place.assert_usable()
    finally:
        subprocess.run(["umount", str(place.bin)], check=True)
    assert place.install()[0] == 0
    place.assert_new()
