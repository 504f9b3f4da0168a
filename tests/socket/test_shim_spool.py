"""The DELs that the shim keeps: whole, durable, replayable, or not there and the caller told so (I11)."""

import errno
import json
import os
import re
import stat
import time
from pathlib import Path

import pytest

from allotment.cni.exchange import SPOOL, Reply
from allotment.cni.frames import decode_spool_entry, encode_reply
from allotment.observe.clock import read_boot_id
from allotment.testing.hostile import HostileAgent, answers

SHORT = 30
CALLS = ["mkdirat", "openat", "write", "fsync", "renameat"]


def entries(place):
    return sorted((place / "spool").iterdir()) if (place / "spool").exists() else []


def test_an_entry_holds_the_whole_request_and_when_it_was_kept(either, place):
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert either.run("DEL", b"configuration\0\xff", timeout_ms=SHORT, CNI_ARGS="A=1").returncode == 0
    after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    (path,) = entries(place)
    entry = decode_spool_entry(path.read_bytes())
    assert entry.boot == read_boot_id()
    assert entry.body == b"configuration\0\xff"
    assert entry.env == {
        "CNI_COMMAND": "DEL",
        "CNI_CONTAINERID": "c0ffee",
        "CNI_NETNS": "/run/netns/blue",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": "A=1",
    }
    match = re.fullmatch(r"(\d{20})-(\d+)\.del", path.name)
    waited = (SHORT - 1) * 1_000_000  # it counts whole milliseconds, and the first may have been nearly over
    assert before + waited <= int(match[1]) <= after, "stamped when it was kept, after the wait"
    assert entry.seconds == int(match[1]) / 1e9
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_socket_s_folder_is_made_when_it_is_missing_too(either, place):
    """After a reboot DELs come before the agent does, and /run is empty."""
    either.socket_path = place / "run" / "cni.sock"
    assert either.run("DEL", timeout_ms=SHORT).returncode == 0
    assert len(entries(place / "run")) == 1
    assert stat.S_IMODE((place / "run").stat().st_mode) == 0o700


def test_the_agent_can_ask_for_it(either, place):
    """Reply flag SPOOL: the agent cannot write the release down itself, and the DEL succeeds all the same."""
    with HostileAgent(place / "cni.sock", answers(encode_reply(Reply(b"not printed", 1, SPOOL)))) as agent:
        done = either.run("DEL", b"{}")
    assert (done.returncode, done.stdout) == (0, b"")
    assert agent.visits[0].acknowledged
    (path,) = entries(place)
    assert decode_spool_entry(path.read_bytes()).env["CNI_COMMAND"] == "DEL"


def test_deleting_many_keeps_each(shim, place):
    children = [shim.start("DEL", timeout_ms=SHORT, CNI_CONTAINERID=f"c{n}") for n in range(20)]
    for child in children:
        assert child.communicate(timeout=20) == (b"", None)
        assert child.returncode == 0
    kept = [decode_spool_entry(path.read_bytes()) for path in entries(place)]
    assert {entry.env["CNI_CONTAINERID"] for entry in kept} == {f"c{n}" for n in range(20)}


@pytest.mark.parametrize("asked", [False, True])
def test_a_spool_that_cannot_be_written_is_error_11(either, place, asked):
    (place / "spool").write_text("in the way")
    if asked:
        with HostileAgent(place / "cni.sock", answers(encode_reply(Reply(b"", 0, SPOOL)))) as agent:
            done = either.run("DEL")
        assert not agent.visits[0].acknowledged
    else:
        done = either.run("DEL", timeout_ms=SHORT)
    assert done.returncode == 1
    error = json.loads(done.stdout)
    assert error["code"] == 11
    assert "spool" in error["msg"]
    assert os.strerror(errno.ENOTDIR) in error["msg"]


def test_a_spool_that_is_a_link_is_not_followed(either, place):
    (place / "target").mkdir()
    (place / "spool").symlink_to(place / "target")
    assert either.run("DEL", timeout_ms=SHORT).returncode == 1
    assert not list((place / "target").iterdir())


def test_success_is_said_after_file_and_folder_are_on_disk(tampered_shim, place):
    """I14: the entry is written, synced, renamed, and the folder synced, in this order, before the DEL succeeds."""
    log = place / "log"
    assert tampered_shim.run("DEL", timeout_ms=SHORT, TAMPER_LOG=log).returncode == 0
    disk = [line for line in log.read_text().split() if line not in ("write", "send")]
    assert disk == ["mkdirat", "fsync", "openat", "openat", "fsync", "renameat", "fsync"]
    assert log.read_text().split()[-3:] == ["fsync", "renameat", "fsync"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, 0], ids=["ENOSPC", "EIO", "killed"])
@pytest.mark.parametrize("call", CALLS)
def test_a_fault_at_any_step_leaves_a_whole_entry_or_none(tampered_shim, place, call, error):
    """Each call of its kind is failed in turn, until a run has no further one to fail."""
    for number in range(1, 10):
        done = tampered_shim.run("DEL", timeout_ms=SHORT, TAMPER_FAIL=f"{call}:{number}:{error}")
        kept = [path for path in entries(place) if not path.name.startswith(".tmp-")]
        for path in kept:
            assert decode_spool_entry(path.read_bytes()).env["CNI_CONTAINERID"] == "c0ffee"
        if done.returncode == 0:
            assert kept
            if call == "mkdirat" or number > 1:
                break
        elif error:
            assert json.loads(done.stdout)["code"] == 11
            assert len(entries(place)) == len(kept), "a failure cleans up"
        else:
            assert done.stdout == b""
        for path in entries(place):
            path.unlink()
        if entries(place) == [] and (place / "spool").exists():
            (place / "spool").rmdir()
    else:
        pytest.fail(f"a DEL never succeeded with faults at {call}")


def test_the_spool_is_beside_the_socket_wherever_that_is(either, place):
    Path(place / "deep").mkdir()
    either.socket_path = place / "deep" / "agent.sock"
    with HostileAgent(either.socket_path, answers(encode_reply(Reply(b"", 0, SPOOL)))):
        assert either.run("DEL").returncode == 0
    assert len(entries(place / "deep")) == 1
