"""`allotment uninstall node`: all of ours goes, nothing of anybody else's, and no pod loses its end."""

import contextlib
import json
import socket
import subprocess

import pytest

from agents import network
from namespaces import Namespaces
from nodes import until

pytestmark = pytest.mark.root

BLUE = {"blue.yaml": network(cooldown=0)}


class Place:
    """A node with a plugin, a configuration and an agent, and the command that takes them away."""

    def __init__(self, node, launcher):
        self.node = node
        self._launcher = launcher
        self.bin, self.conf = node.folder / "bin", node.folder / "conf"
        self.bin.mkdir()
        for plugin in ("ptp", "portmap"):
            (self.bin / plugin).write_text('#!/bin/sh\necho \'{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}\'\n')
            (self.bin / plugin).chmod(0o755)
        node.start()
        code, said = self.run("install-cni", "--socket", node.socket, "--network", "blue")
        assert code == 0, said

    def run(self, verb, *flags):
        """Run a command to its end; the exit code and what it said."""
        log = self.node.folder / "command.log"
        log.write_text("")
        where = ["--bin-dir", self.bin, "--conf-dir", self.conf]
        process = self._launcher.start([verb, *where, *flags], log=log)
        try:
            return process.wait(), log.read_text()
        finally:
            process.close()

    def begin(self, *flags):
        log = self.node.folder / "waiting.log"
        log.write_text("")
        return self._launcher.start(["uninstall", *self.flags(*flags)], log=log), log

    def flags(self, *flags):
        where = ["--bin-dir", self.bin, "--conf-dir", self.conf]
        return ["node", *where, "--socket", self.node.socket, "--state-dir", self.node.state, *flags]

    def uninstall(self, *flags):
        return self.run("uninstall", "node", "--socket", self.node.socket, "--state-dir", self.node.state, *flags)

    def left(self):
        """What there is of ours."""
        files = [self.bin / "allotment", *self.conf.glob("*"), self.node.state, self.node.socket.parent]
        return [path.name for path in files if path.exists()]


@pytest.fixture
def place(make_node, launcher):
    return Place(make_node(BLUE), launcher)


@pytest.fixture
def pods():
    with Namespaces() as namespaces:
        yield namespaces


def test_a_node_without_pods_is_left_as_it_was(place):
    place.node.give("c1", netns="/run/netns/none")
    place.node.free("c1")
    place.node.stop()
    code, said = place.uninstall("--yes", "--wait", "0")
    assert code == 0, said
    assert place.left() == []
    assert sorted(path.name for path in place.bin.iterdir()) == ["portmap", "ptp"]
    assert place.uninstall("--yes", "--wait", "0")[0] == 0  # and again
    assert "there is nothing of ours here" in place.uninstall()[1]


def test_without_yes_nothing_goes(place):
    place.node.stop()
    before = place.left()
    code, said = place.uninstall()
    assert code == 0, said
    assert "nothing was removed" in said
    for path in (place.bin / "allotment", place.conf / "10-allotment.conflist", place.node.state / "ledger.db"):
        assert f"would remove: {path}" in said
    assert place.left() == before


def test_an_agent_that_runs_is_not_taken_anything_from(place):
    code, said = place.uninstall("--yes", "--force", "--wait", "0")
    assert code == 3
    assert "the agent still runs; stop it first" in said
    assert str(place.node.pid) in said
    assert len(place.left()) == 4
    assert place.node.give("c1")


def test_nor_is_a_socket_that_systemd_keeps(place):
    place.node.stop()
    place.node.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as systemd:
        systemd.bind(str(place.node.socket))
        systemd.listen()
        code, said = place.uninstall("--yes", "--wait", "0")
        assert code == 3
        assert "somebody listens at" in said
    assert place.uninstall("--yes", "--wait", "0")[0] == 0
    assert place.left() == []


def test_a_pod_that_has_an_address_keeps_all_in_place_until_it_has_ended(place, pods):
    """Its DEL, with no agent there, is kept in the spool by the plugin; with that the node is free."""
    netns = pods.make("10.4.0.2/26")
    place.node.give("web", netns=str(netns), CNI_ARGS="K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=u")
    place.node.stop()
    code, said = place.uninstall("--yes", "--wait", "0")
    assert code == 3
    assert "shop/web-0" in said
    assert len(place.left()) == 4

    waiting, log = place.begin("--yes", "--wait", "120")
    try:
        until(lambda: "shop/web-0" in log.read_text(), "it does not wait")
        assert place.node.run("DEL", "web", netns=str(netns), timeout_ms=100).ok
        assert waiting.wait() == 0, log.read_text()
    finally:
        waiting.close()
    assert place.left() == []


def test_a_pod_whose_namespace_is_gone_holds_nothing_up(place, pods):
    netns = pods.make("10.4.0.2/26")
    place.node.give("web", netns=str(netns))
    place.node.kill()
    pods.end(netns)
    assert place.uninstall("--yes", "--wait", "0")[0] == 0
    assert place.left() == []


def test_forced_it_leaves_the_pods_network_alone(place, pods):
    netns = pods.make("10.4.0.2/26")
    place.node.give("web", netns=str(netns))
    place.node.stop()
    assert place.uninstall("--yes", "--force", "--wait", "0")[0] == 0
    assert place.left() == []
    assert netns.stat().st_dev != netns.parent.stat().st_dev  # it is still there


def test_a_ledger_that_cannot_be_read_is_not_taken_for_an_empty_one(place):
    place.node.stop()
    for path in place.node.state.glob("ledger.db*"):
        path.unlink()
    code, said = place.uninstall("--yes", "--wait", "0")
    assert code == 3
    assert "can't be told" in said
    assert len(place.left()) == 4
    assert place.uninstall("--yes", "--force", "--wait", "0")[0] == 0
    assert place.left() == []


def test_what_is_not_ours_stays_and_is_named(place):
    place.node.stop()
    (place.bin / "allotment").write_text("#!/bin/sh\n# somebody's own\n")
    (place.conf / "10-allotment.conflist").rename(place.conf / "20-renamed.conflist")
    (place.conf / "87-podman.conflist").write_text(json.dumps({"name": "podman"}))
    (place.node.state / "notes.txt").write_text("mine")
    (place.node.state / "ledger-20260101T000000Z.set-aside").mkdir()
    code, said = place.uninstall("--yes", "--wait", "0")
    assert code == 1
    assert f"left alone: {place.bin / 'allotment'}" in said
    assert f"left alone: {place.node.state / 'notes.txt'}" in said
    assert [path.name for path in place.conf.iterdir()] == ["87-podman.conflist"]
    assert [path.name for path in place.node.state.iterdir()] == ["notes.txt"]
    # It is said once; a DaemonSet's pod that is started again then gets done.
    code, said = place.uninstall("--yes", "--wait", "0")
    assert code == 0, said
    assert f"left alone: {place.node.state / 'notes.txt'}" in said


@contextlib.contextmanager
def disk(folder, *names):
    """A file system of its own in a folder, with what the folder has, and folders of these names."""
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    try:
        for name, content in kept.items():
            (folder / name).write_bytes(content)
        for name in names:
            (folder / name).mkdir()
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_disk_of_its_own_for_the_state_is_emptied_and_stays_mounted(place):
    """A mount point can't be removed, however long one waits."""
    place.node.stop()
    with disk(place.node.state, "lost+found"):
        assert (place.node.state / "ledger.db").exists()
        code, said = place.uninstall("--yes", "--wait", "0")
        assert code == 0, said
        assert f"left alone: {place.node.state} (a mount point" in said
        assert [path.name for path in place.node.state.iterdir()] == ["lost+found"]
        assert place.left() == [place.node.state.name]
        assert place.uninstall("--yes", "--wait", "0")[0] == 0  # and again


def test_so_is_a_bind_mount_and_what_else_lies_there_is_named(place):
    place.node.stop()
    subprocess.run(["mount", "--bind", place.node.state, place.node.state], check=True)
    try:
        (place.node.state / "notes.txt").write_text("mine")
        code, said = place.uninstall("--yes", "--wait", "0")
        assert code == 1
        assert f"left alone: {place.node.state / 'notes.txt'} (not ours)" in said
        (place.node.state / "notes.txt").unlink()
        code, said = place.uninstall("--yes", "--wait", "0")
        assert code == 0, said
        assert f"left alone: {place.node.state} (a mount point" in said
    finally:
        subprocess.run(["umount", place.node.state], check=True)
