"""The shim against agents and callers of every kind. Real binary, real sockets."""

import json
import os
import pty
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from allotment.cni.exchange import SPOOL, Reply
from allotment.cni.frames import (
    LIMIT,
    WITHDRAWN,
    Kind,
    RequestParser,
    decode_environment,
    encode_reply,
)
from allotment.testing.hostile import (
    HostileAgent,
    answers,
    answers_early,
    answers_unheard,
    closes,
    is_silent,
    stutters,
    withdraws,
)

RESULT = b'{"cniVersion":"1.1.0","ips":[{"address":"10.4.0.7/24"}]}'
GOOD = encode_reply(Reply(RESULT))
SHORT = 40  # milliseconds that the shim waits for an agent which never comes


def error_of(done, code=None):
    """The CNI error that was printed; every failure has one."""
    assert done.returncode == 1
    error = json.loads(done.stdout)
    assert error["msg"]
    assert error["cniVersion"] == "1.1.0"
    if code is not None:
        assert error["code"] == code
    return error["msg"]


def spooled(place):
    return sorted(path for path in (place / "spool").glob("*") if not path.name.startswith("."))


# -- by itself


def test_version_is_answered_without_an_agent(either):
    done = either.run("VERSION", b'{"cniVersion":"1.0.0"}')
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert answer == {"cniVersion": "1.1.0", "supportedVersions": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]}


def test_version_drains_standard_input(shim):
    """A caller that writes more than a pipe holds must not be left hanging or signalled."""
    assert shim.run("VERSION", b"x" * (3 << 20)).returncode == 0


@pytest.mark.parametrize("command", [None, "", "add", "ADDER", "VERSIONS", "x" * 5000, '"\\\x01\xff'])
def test_no_or_unknown_command_is_error_4(either, command):
    message = error_of(either.run(command), 4)
    assert "CNI_COMMAND" in message


def test_a_person_at_a_terminal_is_told_what_this_is(shim):
    ours, theirs = pty.openpty()
    try:
        env = shim.environment(None)
        done = subprocess.run([shim.binary], stdin=theirs, env=env, capture_output=True, timeout=10, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 1
    assert b"CNI plugin of Allotment" in done.stdout
    assert b"allotment status" in done.stdout


def test_arguments_without_a_command_show_the_same(shim):
    done = subprocess.run(
        [shim.binary, "--help"], stdin=subprocess.DEVNULL, env={}, capture_output=True, timeout=10, check=False
    )
    assert (done.returncode, done.stdout[:31]) == (1, b"This is the CNI plugin of Allot")


@pytest.mark.parametrize("path", ["relative/cni.sock", "/" + "x" * 107])
def test_an_impossible_socket_path_is_error_4(either, path):
    assert "ALLOTMENT_SOCKET" in error_of(either.run(ALLOTMENT_SOCKET=path), 4)


# -- a call


def test_the_request_is_the_cni_variables_and_standard_input_as_they_are(either, place):
    body = b'{"cniVersion":"1.1.0"}\n\0\xff'
    more = {"CNI_ARGS": "K8S_POD_NAME=web-0;X=\u00e9\udcff", "CNI_EMPTY": "", "CNIX": "no", "XCNI_A": "no"}
    with HostileAgent(place / "cni.sock", answers(GOOD)) as agent:
        done = either.run("ADD", body, **more)
    assert (done.returncode, done.stdout) == (0, RESULT)
    request = RequestParser().feed(agent.visits[0].request)
    assert request.kind is Kind.CALL
    assert request.body == body
    assert decode_environment(request.head) == {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c0ffee",
        "CNI_NETNS": "/run/netns/blue",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": more["CNI_ARGS"],
        "CNI_EMPTY": "",
    }
    assert agent.visits[0].acknowledged


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
@pytest.mark.parametrize("reply", [Reply(b"printed", 0), Reply(b'{"code":7}', 1), Reply(b"x", 255)])
def test_what_comes_back_is_printed_and_returned(shim, place, command, reply):
    with HostileAgent(place / "cni.sock", answers(encode_reply(reply))) as agent:
        done = shim.run(command)
    assert (done.returncode, done.stdout) == (reply.exit_code, reply.body)
    assert agent.visits[0].acknowledged


@pytest.mark.parametrize("command", ["DEL", "CHECK", "GC", "STATUS"])
def test_success_of_what_has_no_result_prints_nothing(shim, place, command):
    with HostileAgent(place / "cni.sock", answers(encode_reply(Reply(b"")))):
        done = shim.run(command)
    assert (done.returncode, done.stdout) == (0, b"")


def test_the_largest_request_and_reply(either, place):
    env = either.environment()
    head = sum(len(f"{name}={value}") + 1 for name, value in env.items() if name.startswith("CNI_"))
    stdin = b"x" * (LIMIT - 16 - head)
    reply = b"y" * (LIMIT - 16)
    with HostileAgent(place / "cni.sock", answers(encode_reply(Reply(reply)))) as agent:
        done = either.run(stdin=stdin)
        assert (done.returncode, done.stdout) == (0, reply)
        assert len(agent.visits[0].request) == LIMIT
        assert "1 MiB" in error_of(either.run(stdin=stdin + b"x"), 6)


# -- an agent that is away


def away(kind, path):
    """An agent that is away in one of the ways there are."""
    if kind == "no socket":
        return HostileAgent(path.with_name("elsewhere.sock"))
    if kind == "no listener":
        with HostileAgent(path):
            pass
        return HostileAgent(path.with_name("elsewhere.sock"))
    if kind == "no socket but a file":
        path.write_text("")
        return HostileAgent(path.with_name("elsewhere.sock"))
    return {
        "never accepts": lambda: HostileAgent(path),
        "queue full": lambda: Crowded(path),
        "silent": lambda: HostileAgent(path, is_silent),
        "closes": lambda: HostileAgent(path, closes),
    }[kind]()


class Crowded(HostileAgent):
    """Its queue holds one caller, and has it."""

    def __init__(self, path):
        super().__init__(path, backlog=0)
        self._first = socket.socket(socket.AF_UNIX)
        self._first.connect(str(path))

    def __exit__(self, *args):
        self._first.close()
        super().__exit__(*args)


AWAY = {
    "no socket": "no such socket",
    "no listener": "nobody listens",
    "no socket but a file": "nobody listens",
    "never accepts": "did not answer in time",
    "queue full": "queue of callers is full",
    "silent": "did not answer in time",
    "closes": "closed the connection",
}


@pytest.mark.parametrize(
    ("kind", "command"),
    [(kind, "ADD") for kind in AWAY] + [("no socket", command) for command in ("CHECK", "GC", "STATUS")],
)
def test_an_agent_that_stays_away_is_error_11(either, place, kind, command):
    with away(kind, place / "cni.sock"):
        message = error_of(either.run(command, timeout_ms=SHORT), 11)
    assert AWAY[kind] in message
    assert str(place / "cni.sock") in message
    assert not spooled(place)


@pytest.mark.parametrize("kind", AWAY)
def test_a_del_that_nobody_takes_is_spooled_and_succeeds(either, place, kind):
    """I11: a DEL is never blocked."""
    with away(kind, place / "cni.sock"):
        done = either.run("DEL", timeout_ms=SHORT)
    assert (done.returncode, done.stdout) == (0, b"")
    assert len(spooled(place)) == 1


def test_an_agent_that_comes_back_is_waited_for(either, place):
    """I11: an outage that a short wait would have served fails nothing."""
    path = place / "cni.sock"
    with HostileAgent(path):
        pass  # a socket without a listener, as a stopped agent leaves it
    child = either.start()
    try:
        reached = place / "new.sock"
        with HostileAgent(reached, answers(GOOD)) as agent:
            reached.rename(path)
            assert child.communicate(timeout=20)[0] == RESULT
        assert child.returncode == 0
        assert agent.visits[0].acknowledged
    finally:
        child.kill()
        child.communicate()


def test_an_agent_that_hangs_up_unanswered_is_asked_again(either, place):
    """A request that got no byte back may be asked again: all verbs may be repeated (I2)."""
    with HostileAgent(place / "cni.sock", closes, closes, answers_early(b""), answers(GOOD)) as agent:
        done = either.run()
    assert (done.returncode, done.stdout) == (0, RESULT)
    assert len(agent.visits) == 4


def test_the_wait_is_what_the_operator_shortened_it_to_and_never_longer(shim, place):
    message = error_of(shim.run(timeout_ms=SHORT), 11)
    waited = int(message.split(" in ")[1].split(" ms")[0])
    assert SHORT <= waited < SHORT + 5000
    with HostileAgent(place / "cni.sock", answers(GOOD)):
        for odd in ("", "0", "-5", "soon", "99999999999999999999", "100x"):
            assert shim.run(ALLOTMENT_TIMEOUT_MS=odd).returncode == 0


# -- an agent that answers badly


def test_a_reply_cut_anywhere_is_error_11_and_never_empty(either, place):
    cuts = [answers(GOOD[:at]) for at in range(1, len(GOOD))]
    with HostileAgent(place / "cni.sock", *cuts) as agent:
        for _ in cuts:
            message = error_of(either.run(), 11)
            assert "broken answer" in message
            assert "before all of its answer" in message
    assert not any(visit.acknowledged for visit in agent.visits)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no reply frame"),
        (b"\0", "no reply frame"),
        (b"ALR2" + GOOD[4:], "no reply frame"),
        (GOOD[:4] + b"\0\2" + GOOD[6:], "no reply frame"),
        (GOOD[:6] + b"\0\2" + GOOD[8:], "makes no sense"),
        (GOOD[:6] + b"\0\1" + GOOD[8:], "makes no sense"),  # SPOOL for an ADD
        (GOOD[:8] + b"\0\0\1\0" + GOOD[12:], "makes no sense"),
        (GOOD[:12] + b"\0\x10\0\0" + GOOD[16:], "longer than 1 MiB"),
        (GOOD[:12] + b"\xff\xff\xff\xff" + GOOD[16:], "longer than 1 MiB"),
        (GOOD + b"!", "follows its end"),
        (GOOD + b"\x15\x15", "follows its end"),
        (GOOD + b"x" * 100_000, "follows its end"),
        (encode_reply(Reply(b"")), "empty"),
        (encode_reply(Reply(b"", 1)), "empty"),
    ],
)
def test_a_garbled_reply_is_error_11(either, place, frame, says):
    with HostileAgent(place / "cni.sock", answers(frame)) as agent:
        assert says in error_of(either.run(), 11)
    assert not agent.visits[0].acknowledged


def test_a_reply_of_single_bytes_is_put_together(either, place):
    with HostileAgent(place / "cni.sock", stutters(GOOD)) as agent:
        done = either.run()
    assert (done.returncode, done.stdout) == (0, RESULT)
    assert agent.visits[0].acknowledged


def test_a_reply_that_stops_half_way_ends_with_the_deadline(either, place):
    def stop(visit):
        visit.read_request()
        visit.sock.sendall(GOOD[:20])
        visit.read_end()

    with HostileAgent(place / "cni.sock", stop):
        assert "did not answer in time" in error_of(either.run(timeout_ms=SHORT), 11)


def test_an_answer_before_the_request_was_read_is_heard(either, place):
    """A refusal: the agent says why, and closes with the request unread."""
    refusal = encode_reply(Reply(b'{"code":6,"msg":"too long"}', 1))
    with HostileAgent(place / "cni.sock", answers_early(refusal)):
        for size in (2, 900_000):
            done = either.run(stdin=b"x" * size)
            assert (done.returncode, done.stdout) == (1, b'{"code":6,"msg":"too long"}')


# -- who hears it


def test_what_could_not_be_printed_is_not_acknowledged(either, place):
    """I2: an answer nobody heard is taken back; the missing acknowledgement is how the agent knows."""
    with HostileAgent(place / "cni.sock", answers(GOOD)) as agent:
        ours, theirs = os.pipe()
        os.close(ours)
        try:
            done = subprocess.run(
                [either.binary],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                env=either.environment(),
                timeout=20,
                check=False,
            )
        finally:
            os.close(theirs)
    assert done.returncode == 1  # and not a signal
    assert not agent.visits[0].acknowledged


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_never_become_the_socket(either, place, closed):
    with HostileAgent(place / "cni.sock", answers(GOOD)) as agent:
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" {closed}', either.binary],
            stdin=subprocess.DEVNULL,
            env=either.environment(),
            capture_output=True,
            timeout=20,
            check=False,
        )
    if closed == "2>&-":
        assert (done.returncode, done.stdout) == (0, RESULT)
        assert agent.visits[0].acknowledged
    else:
        assert done.returncode == 1
        assert not any(visit.acknowledged for visit in agent.visits)
    if closed == "<&-":
        assert "standard input" in error_of(done, 5)


def test_unreadable_standard_input_is_error_5(either, place):
    folder = os.open(place, os.O_RDONLY)
    try:
        done = subprocess.run(
            [either.binary], stdin=folder, env=either.environment(), capture_output=True, timeout=20, check=False
        )
    finally:
        os.close(folder)
    assert "standard input" in error_of(done, 5)


def test_standard_input_that_never_ends_is_error_5(either):
    ours, theirs = os.pipe()
    try:
        child = either.start(stdin=ours, timeout_ms=SHORT)
        output, _ = child.communicate(timeout=20)
    finally:
        os.close(ours)
        os.close(theirs)
    assert child.returncode == 1
    assert json.loads(output)["code"] == 5


def test_more_than_1_mib_of_variables_is_error_4(either):
    many = {f"CNI_X{n}": "x" * 120_000 for n in range(10)}
    assert "CNI_* variables" in error_of(either.run(**many), 4)


def test_many_variables_of_others_do_not_matter(either, place):
    many = {f"OTHER_{n}": "x" * 100 for n in range(3000)}
    with HostileAgent(place / "cni.sock", answers(GOOD)):
        assert either.run(**many).stdout == RESULT


def blocked_on_output(shim, **more):
    """A shim whose standard output is a pipe that is full; its reading end."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    filled = 0
    try:
        while True:
            filled += os.write(theirs, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(theirs, True)
    child = shim.start(stdout=theirs, **more)
    os.close(theirs)
    return child, ours, filled


def drain(fd, filled):
    with os.fdopen(fd, "rb") as file:
        return file.read()[filled:]


def test_an_answer_taken_back_before_it_was_acknowledged_fails(either, place):
    """I1, I2: the runtime may not go on with a lease that the agent has given up meanwhile."""
    withdrawn = threading.Event()
    with HostileAgent(place / "cni.sock", withdraws(GOOD, withdrawn)):
        child, output, filled = blocked_on_output(either)
        assert withdrawn.wait(20)
        printed = drain(output, filled)
        assert child.wait(20) == 1
    assert printed.startswith(RESULT)
    assert "taken it back" in json.loads(printed[len(RESULT) :])["msg"]


def test_an_answer_of_an_agent_that_died_since_holds(either, place):
    """I2: what was answered is on disk; the agent's death a moment later takes nothing away."""
    gone = threading.Event()
    with HostileAgent(place / "cni.sock", answers_unheard(GOOD, gone)):
        child, output, filled = blocked_on_output(either)
        assert gone.wait(20)
        assert drain(output, filled) == RESULT
        assert child.wait(20) == 0


def test_an_answer_taken_back_before_it_was_read_is_asked_for_again(either, place):
    with HostileAgent(place / "cni.sock", answers(GOOD + WITHDRAWN), answers(GOOD)) as agent:
        done = either.run()
    assert (done.returncode, done.stdout) == (0, RESULT)
    assert [visit.acknowledged for visit in agent.visits] == [False, True]


# -- under a libc that does only ever half of what it is asked


def test_interrupted_calls_and_single_bytes_change_nothing(tampered_shim, place):
    with HostileAgent(place / "cni.sock", answers(GOOD)) as agent:
        done = tampered_shim.run(stdin=b"conf" * 50, TAMPER_SHRED=1)
    assert (done.returncode, done.stdout) == (0, RESULT)
    assert RequestParser().feed(agent.visits[0].request).body == b"conf" * 50
    assert agent.visits[0].acknowledged


def test_the_sanitizers_are_at_work(tampered):
    """A check that cannot fail is none: the sanitized binary has ASan in it."""
    assert b"__asan_init" in Path(tampered).read_bytes()


def test_hostile_agents_under_the_sanitizers(tampered_shim, place):
    """The quick tier's share of what `either` does in the slow one."""
    frames = [GOOD[:1], GOOD[:15], GOOD[:16], GOOD[:-1], GOOD + b"x" * 70_000, os.urandom(64), GOOD[:12] + b"\xff" * 8]
    with HostileAgent(place / "cni.sock", *(answers(frame) for frame in frames)):
        for _ in frames:
            error_of(tampered_shim.run(), 11)


# -- and what it is


def test_the_shim_dies_of_what_should_kill_it(shim, place):
    with HostileAgent(place / "cni.sock", is_silent):
        child = shim.start()
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == -signal.SIGTERM
        child.stdout.close()


def test_spool_for_anything_but_a_del_is_refused(shim, place):
    with HostileAgent(place / "cni.sock", answers(encode_reply(Reply(b"x", 0, SPOOL)))):
        for command in ("ADD", "CHECK", "GC", "STATUS"):
            error_of(shim.run(command), 11)
    assert not spooled(place)
