"""install-cni: what is put in place, what is left alone, and that dying anywhere leaves something that works (C62)."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from allotment.addressing.errors import AllotmentError, TryAgain
from allotment.cli import Exit, main
from allotment.cli.conflist import is_ours
from allotment.cli.placing import opened
from allotment.cni.exchange import Reply
from allotment.cni.frames import encode_reply

REAL_PLUGINS = Path("/usr/lib/cni")
SERVING = Reply(b"")
NOT_SERVING = Reply(b'{"cniVersion":"1.1.0","code":50,"msg":"the ledger is not open"}', 1)


@contextmanager
def agent(path: Path, *replies: Reply):
    """Answers each connection with the next reply, the last one for ever; yields the list of what was asked."""
    asked: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        rest = list(replies)
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                asked.append(peer.recv(65536))
                peer.sendall(encode_reply(rest.pop(0) if len(rest) > 1 else rest[0]))
                peer.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def plugin(path: Path, *versions: str) -> None:
    path.write_text(f"#!/bin/sh\necho '{json.dumps({'cniVersion': '1.0.0', 'supportedVersions': versions})}'\n")
    path.chmod(0o755)


@pytest.fixture
def place(tmp_path):
    """A folder with `bin` (holding the reference plugins) and nothing else."""
    (tmp_path / "bin").mkdir()
    for name in "ptp", "bridge", "portmap":
        plugin(tmp_path / "bin" / name, "0.4.0", "1.0.0", "1.1.0")
    return tmp_path


def install(place: Path, *argv: str) -> int:
    where = ["--bin-dir", str(place / "bin"), "--socket", str(place / "sock"), "--wait", "0"]
    conf = [] if "--no-conf" in argv else ["--conf-dir", str(place / "conf")]
    return main(["install-cni", *where, *conf, *argv])


def listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Each file with what changes when it is written: inode, mode, time."""
    found = {path.name: path.lstat() for path in folder.iterdir()}
    return {name: (entry.st_ino, entry.st_mode, entry.st_mtime_ns) for name, entry in found.items()}


def test_the_plugin_and_a_list_that_names_it_are_put_in_place(place, capsys):
    with agent(place / "sock", SERVING) as asked:
        assert install(place, "--network", "blue") == Exit.OK
    shim = place / "bin" / "allotment"
    assert stat.S_IMODE(shim.stat().st_mode) == 0o755
    assert b"ALLOTMENT_SOCKET" in shim.read_bytes()
    conf = place / "conf" / "10-allotment.conflist"
    assert stat.S_IMODE(conf.stat().st_mode) == 0o644
    document = json.loads(conf.read_text())
    assert document["name"] == "blue"
    assert (document["cniVersion"], document["cniVersions"]) == ("1.0.0", ["1.0.0", "1.1.0"])
    main_plugin, portmap, last = document["plugins"]
    assert (main_plugin["type"], main_plugin["ipam"]["type"]) == ("ptp", "allotment")
    assert main_plugin["capabilities"] == {"ips": True, "io.kubernetes.cri.pod-annotations": True}
    assert portmap["capabilities"] == {"portMappings": True}
    assert last == {"type": "allotment", "role": "gc"}
    assert b"CNI_COMMAND=STATUS" in asked[0]
    assert capsys.readouterr().out == f"installed: {shim}\ninstalled: {conf}\n"


def test_the_plugin_that_was_installed_runs(place):
    assert install(place, "--no-conf") == Exit.OK
    said = subprocess.run(
        [place / "bin" / "allotment"], env={"CNI_COMMAND": "VERSION"}, input=b"{}", capture_output=True, check=True
    ).stdout
    assert "1.1.0" in json.loads(said)["supportedVersions"]


def test_a_second_run_writes_nothing(place, capsys):
    with agent(place / "sock", SERVING):
        install(place)
        before = listing(place / "bin"), listing(place / "conf")
        capsys.readouterr()
        install(place)
    assert (listing(place / "bin"), listing(place / "conf")) == before
    assert capsys.readouterr().out.count("up to date: ") == 2


def test_a_list_goes_in_only_once_the_agent_serves(place, capsys):
    assert install(place) == Exit.UNREACHABLE
    assert "no configuration was put in place" in capsys.readouterr().err
    assert listing(place / "conf") == {}
    with agent(place / "sock", NOT_SERVING, NOT_SERVING, SERVING) as asked:
        assert install(place, "--wait", "30") == Exit.OK
        assert len(asked) == 3
    (place / "sock").unlink()
    with agent(place / "sock", NOT_SERVING):
        assert install(place, "--conf-name", "11-other.conflist") == Exit.UNREACHABLE
    assert "the ledger is not open; `allotment status` lists the networks here" in capsys.readouterr().err
    assert list(listing(place / "conf")) == ["10-allotment.conflist"]


def test_what_is_waited_for_is_told_once(place, capsys):
    with agent(place / "sock", NOT_SERVING, NOT_SERVING, SERVING):
        assert install(place, "--network", "blue", "--wait", "30") == Exit.OK
    told = capsys.readouterr().err.splitlines()
    assert told == ["waiting up to 30 s for the agent to serve network blue: the ledger is not open"]


def test_with_the_main_plugin_missing_nothing_is_done_and_the_folder_is_asked_for(place, capsys):
    (place / "bin" / "ptp").unlink()
    with agent(place / "sock", SERVING):
        assert install(place) == Exit.USAGE
    assert "--bin-dir (Debian's package containernetworking-plugins: /usr/lib/cni)" in capsys.readouterr().err
    assert not (place / "bin" / "allotment").exists()


def test_an_earlier_list_of_ours_is_replaced_and_one_of_another_is_left_alone(place, capsys):
    conf = place / "conf" / "10-allotment.conflist"
    with agent(place / "sock", SERVING):
        install(place, "--network", "blue")
        assert install(place, "--network", "red") == Exit.OK
        assert json.loads(conf.read_text())["name"] == "red"
        for content in b'{"name": "theirs", "plugins": []}', b"not JSON", b'["list"]':
            conf.write_bytes(content)
            before = listing(place / "conf")
            assert install(place) == Exit.USAGE
            assert listing(place / "conf") == before
            assert conf.read_bytes() == content
            assert "not installed by this command and is left alone" in capsys.readouterr().err
        assert install(place, "--conf-name", "05-ours.conflist") == Exit.OK
        assert conf.read_bytes() == b'["list"]'


def test_what_is_not_a_plain_file_is_left_alone(place, capsys):
    (place / "target").write_bytes(b"x")
    (place / "bin" / "allotment").symlink_to(place / "target")
    assert install(place, "--no-conf") == Exit.USAGE
    assert "it is a symbolic link; move it away" in capsys.readouterr().err
    assert (place / "target").read_bytes() == b"x"
    (place / "bin" / "allotment").unlink()
    (place / "bin" / "allotment").mkdir()
    assert install(place, "--no-conf") == Exit.USAGE
    (place / "bin" / "allotment").rmdir()
    os.mkfifo(place / "bin" / "allotment")
    assert install(place, "--no-conf") == Exit.USAGE
    assert "it is no regular file" in capsys.readouterr().err


def test_a_foreign_plugin_of_that_name_is_left_alone(place):
    (place / "bin" / "allotment").write_bytes(b"\x7fELF of somebody else")
    assert install(place, "--no-conf") == Exit.USAGE
    assert (place / "bin" / "allotment").read_bytes() == b"\x7fELF of somebody else"


@pytest.mark.parametrize("length", [0, 1, 4096])
def test_a_plugin_that_was_cut_short_is_repaired(place, length):
    install(place, "--no-conf")
    shim = place / "bin" / "allotment"
    whole = shim.read_bytes()
    shim.write_bytes(whole[:length])
    assert install(place, "--no-conf") == Exit.OK
    assert shim.read_bytes() == whole


def test_lost_rights_are_put_right(place):
    install(place, "--no-conf")
    (place / "bin" / "allotment").chmod(0o644)
    assert install(place, "--no-conf") == Exit.OK
    assert stat.S_IMODE((place / "bin" / "allotment").stat().st_mode) == 0o755


def test_a_plugin_that_runs_is_replaced_and_runs_on(place):
    install(place, "--no-conf")
    shim = place / "bin" / "allotment"
    older = shim.read_bytes() + b"an older version"
    shim.write_bytes(older)
    with agent(place / "sock", SERVING):
        environ = {"CNI_COMMAND": "STATUS", "ALLOTMENT_SOCKET": str(place / "sock")}
        with subprocess.Popen([shim], env=environ, stdin=subprocess.PIPE) as running:  # it waits for its input
            try:
                assert install(place, "--no-conf") == Exit.OK
                assert shim.read_bytes() != older
                running.communicate(b"{}", timeout=20)
                assert running.returncode == 0
            finally:
                running.kill()


def test_remove_takes_away_what_is_ours_and_nothing_else(place, capsys):
    with agent(place / "sock", SERVING):
        install(place)
    (place / "conf" / "87-podman.conflist").write_text("{}")
    assert install(place, "--remove") == Exit.OK
    assert list(listing(place / "conf")) == ["87-podman.conflist"]
    assert set(listing(place / "bin")) == {"ptp", "bridge", "portmap"}
    capsys.readouterr()
    assert install(place, "--remove") == Exit.OK
    assert capsys.readouterr().out.startswith("nothing to remove: ")
    assert install(place, "--remove", "--conf-name", "87-podman.conflist") == Exit.OK
    assert "left alone: " in capsys.readouterr().out
    assert list(listing(place / "conf")) == ["87-podman.conflist"]


def test_remove_makes_no_folders(place):
    assert install(place, "--remove") == Exit.OK
    assert not (place / "conf").exists()


def test_the_list_fits_the_plugins_that_are_there(place, capsys):
    (place / "bin" / "portmap").unlink()
    plugin(place / "bin" / "ptp", "0.4.0", "1.0.0")
    with agent(place / "sock", SERVING):
        assert install(place, "--masquerade") == Exit.OK
    document = json.loads((place / "conf" / "10-allotment.conflist").read_text())
    assert "cniVersions" not in document
    assert [entry["type"] for entry in document["plugins"]] == ["ptp", "allotment"]
    assert document["plugins"][0]["ipMasq"]
    for wrong in ["0.4.0"], []:
        plugin(place / "bin" / "ptp", *wrong)
        assert install(place) == Exit.USAGE
        assert "don't speak CNI 1.0.0" in capsys.readouterr().err
    (place / "bin" / "ptp").write_text("#!/bin/sh\nexit 1\n")
    assert install(place) == Exit.USAGE
    (place / "bin" / "ptp").unlink()
    assert install(place) == Exit.USAGE
    assert "there is no CNI plugin" in capsys.readouterr().err


@pytest.mark.skipif(not (REAL_PLUGINS / "ptp").exists(), reason="containernetworking-plugins is not installed")
@pytest.mark.parametrize("name", ["ptp", "bridge"])
def test_the_real_plugins_say_which_versions_they_speak(place, name):
    for each in name, "portmap":
        (place / "bin" / each).unlink()
        (place / "bin" / each).symlink_to(REAL_PLUGINS / each)
    with agent(place / "sock", SERVING):
        assert install(place, "--plugin", name) == Exit.OK
    content = (place / "conf" / "10-allotment.conflist").read_bytes()
    assert is_ours(content)
    assert json.loads(content)["plugins"][0]["type"] == name


@pytest.mark.parametrize("argv", [["--conf-name", "../x.conflist"], ["--conf-name", "x.conf"], ["--network", "Blue"]])
def test_names_that_lead_elsewhere_are_refused(place, argv):
    assert install(place, *argv) == Exit.USAGE
    assert not (place / "conf").exists()


def test_two_installs_do_not_write_at_once(place, capsys):
    fd = os.open(place / "bin", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert install(place, "--no-conf") == Exit.UNREACHABLE
        assert "another `allotment install-cni` is at work" in capsys.readouterr().err
        assert "allotment" not in listing(place / "bin")
    finally:
        os.close(fd)
    assert install(place, "--no-conf") == Exit.OK


def test_a_machine_without_a_plugin_for_it_is_told_so(place, capsys, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    assert install(place, "--no-conf") == Exit.USAGE
    assert "no CNI plugin for vax" in capsys.readouterr().err


# -- Faults at every step -------------------------------------------------------------------------------------------

OLD, NEW = b"old content" * 100, b"new content" * 200


def put_with(folder: Path, hook) -> None:
    """Put NEW over OLD with `hook(number)` called just before each call that Python makes into the system."""
    calls = 0

    def profile(_frame, event, argument):
        nonlocal calls
        if event == "c_call" and getattr(argument, "__module__", "") in ("posix", "fcntl"):
            calls += 1
            hook(calls)

    sys.setprofile(profile)
    try:
        with opened(folder) as target:
            target.put("file", NEW, 0o755)
    finally:
        sys.setprofile(None)


def prepared(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "file").write_bytes(OLD)
    (folder / "file").chmod(0o755)
    return folder


def steps(tmp_path: Path) -> int:
    seen = []
    put_with(prepared(tmp_path), seen.append)
    assert len(seen) > 8
    return len(seen)


def assert_usable(folder: Path) -> None:
    content = (folder / "file").read_bytes()
    assert content in (OLD, NEW)
    assert stat.S_IMODE((folder / "file").stat().st_mode) == 0o755


def test_killed_at_any_step_it_leaves_a_whole_file_and_the_next_run_cleans_up(tmp_path):
    """C62: SIGKILL before each system call."""
    died = 0
    for step in range(1, steps(tmp_path) + 1):
        folder = prepared(tmp_path)
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                put_with(folder, lambda number, step=step: number == step and os.kill(os.getpid(), signal.SIGKILL))
            os._exit(0)
        died += os.waitpid(child, 0)[1] == signal.SIGKILL
        assert_usable(folder)
        with opened(folder) as target:
            target.put("file", NEW, 0o755)
        assert (folder / "file").read_bytes() == NEW
        assert [path.name for path in folder.iterdir()] == ["file"]
    assert died > 8


def failure(folder: Path, hook) -> str:
    """What a person is told, nothing where it worked."""
    try:
        put_with(folder, hook)
    except AllotmentError as error:
        return error.message
    return ""


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_fault_at_any_step_is_told_and_leaves_a_whole_file(tmp_path, fault):
    told = 0
    for step in range(1, steps(tmp_path) + 1):
        folder = prepared(tmp_path)

        def fail(number, step=step):
            if number == step:
                raise OSError(fault, os.strerror(fault))

        with suppress(OSError):  # a close() that fails changes nothing
            message = failure(folder, fail)
            told += os.strerror(fault) in message
        assert_usable(folder)
        assert [path.name for path in folder.iterdir()] == ["file"]
    assert told > 6


def test_a_disk_that_is_really_full_is_told(tmp_path):
    """With the file-size limit of a process, which the kernel holds as it does a full disk."""
    folder = prepared(tmp_path)
    child = os.fork()
    if child == 0:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        code = 2
        with suppress(BaseException):
            try:
                with opened(folder) as target:
                    target.put("file", NEW, 0o755)
            except TryAgain as error:
                code = 0 if "File too large" in error.message else 1
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (folder / "file").read_bytes() == OLD
    assert [path.name for path in folder.iterdir()] == ["file"]
