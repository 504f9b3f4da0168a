"""sd_notify and LISTEN_FDS, against real sockets and, where it is installed, systemd's own socket activator."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from allotment.observe.systemd import Notifier, listen_fds
from allotment.testing.clock import ManualClock


@pytest.fixture(params=["path", "abstract"])
def manager(request):
    """A service manager's end: (what NOTIFY_SOCKET says, the socket)."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        if request.param == "path":
            name = f"{folder}/notify"
            sock.bind(name)
        else:
            sock.bind(f"\0allotment-test-{os.getpid()}-{id(sock)}")
            name = "@" + sock.getsockname()[1:].decode()
        sock.settimeout(5)
        yield name, sock


def test_each_message_is_what_the_protocol_says(manager):
    name, sock = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    assert notifier.ready("serving 2 networks")
    assert sock.recv(999) == b"READY=1\nSTATUS=serving 2 networks"
    assert notifier.status("draining")
    assert sock.recv(999) == b"STATUS=draining"
    assert notifier.alive()
    assert sock.recv(999) == b"WATCHDOG=1"
    assert notifier.stopping()
    assert sock.recv(999) == b"STOPPING=1"


def test_a_status_cannot_smuggle_in_another_field(manager):
    name, sock = manager
    Notifier({"NOTIFY_SOCKET": name}).status("bad\nREADY=1\rMAINPID=1\u2028x \udc80")
    told = sock.recv(999)
    assert told.count(b"\n") == 0
    assert told == b"STATUS=bad READY=1 MAINPID=1 x ?"


@pytest.mark.parametrize("name", ["", "relative", "vsock:2:1", "/nowhere/at/all"])
def test_without_a_manager_nothing_happens(name):
    notifier = Notifier({"NOTIFY_SOCKET": name} if name else {})
    assert not notifier.ready()
    assert not notifier.status("x")


def test_a_manager_that_does_not_read_holds_nothing_up_for_long(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "n"))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "n")})
        told = [notifier.status("x" * 1000)]
        while told[-1] and len(told) < 10_000:
            told.append(notifier.status("x" * 1000))
        assert not told[-1]  # and we are here


def test_the_environment_is_cleared_for_children():
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    Notifier(environ)
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_kept_only_when_it_is_meant_for_us(environ, seconds):
    assert Notifier({"NOTIFY_SOCKET": "/x", **environ}, pid=7).watchdog_seconds == seconds


async def test_signs_of_life_come_in_time_and_stop_with_health(manager):
    name, sock = manager
    sock.settimeout(0)
    clock = ManualClock()
    healthy = True
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"})
    task = asyncio.create_task(notifier.keep_alive(clock.sleep, lambda: healthy))

    async def beats(seconds: int) -> int:
        heard = 0
        for _ in range(seconds):
            clock.advance(1)
            for _ in range(5):
                await asyncio.sleep(0)  # noqa: TID251  # lets the task run, waits for nothing
            try:
                while sock.recv(99) == b"WATCHDOG=1":
                    heard += 1
            except BlockingIOError:
                pass
        return heard

    assert await beats(60) >= 6
    healthy = False
    await beats(10)
    assert await beats(60) == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_without_a_watchdog_nobody_is_kept_waiting():
    await asyncio.wait_for(Notifier({}).keep_alive(ManualClock().sleep), 5)


def passed(*socks):
    """The descriptors of `socks` in a row, as a service manager would pass them."""
    first = 200 + (os.getpid() % 100)
    for index, sock in enumerate(socks):
        os.dup2(sock.fileno(), first + index, inheritable=True)
    return first


def test_passed_sockets_are_taken_over_by_name(tmp_path):
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        one.bind(str(tmp_path / "one"))
        one.listen()
        first = passed(one, two)
        environ = {"LISTEN_PID": "7", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "cni", "HOME": "/"}
        found = listen_fds(environ, pid=7, first=first)
        try:
            assert [entry.name for entry in found] == ["cni", "unknown"]
            assert found[0].socket.getsockname() == str(tmp_path / "one")
            assert found[0].socket.family == socket.AF_UNIX
            assert not any(os.get_inheritable(entry.socket.fileno()) for entry in found)
            assert environ == {"HOME": "/"}
        finally:
            for entry in found:
                entry.socket.close()


@pytest.mark.parametrize(
    "environ", [{}, {"LISTEN_PID": "8", "LISTEN_FDS": "1"}, {"LISTEN_PID": "7", "LISTEN_FDS": "x"}]
)
def test_what_is_not_meant_for_us_is_left_alone(environ):
    assert listen_fds(dict(environ), pid=7) == ()


def test_a_descriptor_that_is_no_socket_is_said_to_be_none(tmp_path):
    with (tmp_path / "file").open("w") as file:
        first = passed(file)
        try:
            with pytest.raises(OSError, match=f"descriptor {first} passed by the service manager is no socket"):
                listen_fds({"LISTEN_PID": "7", "LISTEN_FDS": "1"}, pid=7, first=first)
        finally:
            os.close(first)


def test_systemds_own_activator_hands_over_a_socket_that_works(tmp_path):
    path = tmp_path / "cni.sock"
    program = (
        "import os\n"
        "from allotment.observe.systemd import listen_fds\n"
        "entry, = listen_fds()\n"
        "peer, _ = entry.socket.accept()\n"
        "peer.sendall(f'{entry.name} {sorted(k for k in os.environ if k.startswith(\"LISTEN\"))}'.encode())\n"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["systemd-socket-activate", "--fdname=cni", "-l", str(path), "-E", "PYTHONPATH", sys.executable, "-c"]
    with subprocess.Popen([*command, program], env=environ, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr
            while not path.exists() and b"Listening" not in process.stderr.readline():
                assert process.poll() is None
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(20)
                sock.connect(str(path))
                assert sock.recv(999) == b"cni []"
        finally:
            process.kill()
    Path(path).unlink(missing_ok=True)
