"""The server against callers of every kind, over real sockets; calls are handled by a recorder."""

import asyncio
import errno
import json
import os
import resource
import socket
import stat
from contextlib import asynccontextmanager

import pytest

from allotment.addressing.errors import ConfigError, DecodeError, Exhausted, InternalError, TryAgain
from allotment.cni.client import AsyncClient, Client
from allotment.cni.exchange import Reply
from allotment.cni.frames import (
    ACKNOWLEDGED,
    LIMIT,
    WITHDRAWN,
    ReplyParser,
    encode_call,
    encode_query,
    encode_reply,
)
from allotment.cni.server import CniServer, Limits, bind
from allotment.node.attaching.turns import Turns
from allotment.testing.clock import ManualClock
from allotment.testing.hostile import HostileClient

ENV = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c0ffee"}
CALL = encode_call(ENV, b"{}")
RESULT = Reply(b'{"ips":[]}')
FRAME = encode_reply(RESULT)


class Recorder:
    """A handler that does what the test says and remembers what it was told."""

    def __init__(self):
        self.calls = []
        self.held = []
        self.taken_back = []
        self.cancelled = []
        self.gate = None  # an Event to wait for, before answering
        self.answer = RESULT
        self.stubborn = False  # past the point of no return: cancelling has no effect
        self.lost_raises = None
        self.lost_gate = None  # an Event to wait for, before taking back

    async def call(self, call):
        self.calls.append(call)
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(call)
            if not self.stubborn:
                raise
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def acknowledged(self, call):
        self.held.append(call)

    async def lost(self, call, reply):
        if self.lost_gate is not None:
            await self.lost_gate.wait()
        self.taken_back.append((call, reply))
        if self.lost_raises is not None:
            raise self.lost_raises

    async def query(self, name, arguments):
        if name == "nothing":
            raise ConfigError("there is nothing")
        if name == "broken":
            raise ZeroDivisionError
        return name.encode() + arguments


class Log:
    def __init__(self):
        self.refusals = []
        self.abandonments = []
        self.failures = []

    def refused(self, peer, error):
        self.refusals.append((peer, error))

    def abandoned(self, call, reply):
        self.abandonments.append((call, reply))

    def failed(self, request_id, error):
        self.failures.append((request_id, error))


class Served:
    def __init__(self, path, server, handler, log):
        self.path, self.server, self.handler, self.log = path, server, handler, log
        self.stats = server.stats

    async def connect(self):
        return await in_thread(HostileClient, self.path)

    async def ask(self, env=ENV):
        return await AsyncClient(self.path, timeout=20).call(env, b"{}")


async def in_thread(function, *arguments):
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


async def until(condition):
    """Return once it holds; what is awaited here happens on this loop, or never."""
    async with asyncio.timeout(20):
        while not condition():
            turn = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.002, turn.set_result, None)
            await turn


@asynccontextmanager
async def serving(place, handler=None, **limits):
    handler, log, path = handler or Recorder(), Log(), place / "cni.sock"
    server = CniServer(handler, bind(path), clock=ManualClock(), limits=Limits(**limits), watcher=log)
    server.start()
    try:
        yield Served(path, server, handler, log)
    finally:
        if handler.gate is not None:
            handler.gate.set()
        await server.drain(5)
        await server.wait()


def error_of(data):
    """The error in a reply frame, which must be whole."""
    reply = ReplyParser().feed(data)
    assert reply is not None
    assert reply.exit_code == 1
    return json.loads(reply.body)


# -- all well


async def test_a_call_is_handled_once_and_its_acknowledgement_told(place):
    async with serving(place) as served:
        assert await served.ask() == RESULT
        await until(lambda: served.handler.held)
        (call,) = served.handler.calls
        assert (dict(call.env), call.body, call.received) == (ENV, b"{}", 1000.0)
        assert call.peer_pid == os.getpid()
        await served.ask()
        assert len({call.id for call in served.handler.calls}) == 2
    assert served.handler.taken_back == []
    assert (served.stats.accepted, served.stats.calls, served.stats.acknowledged) == (2, 2, 2)


async def test_a_query_is_answered_and_its_errors_told(place):
    async with serving(place) as served:
        client = Client(served.path, timeout=20)
        assert await in_thread(client.query, "status", b"[1]") == b"status[1]"
        with pytest.raises(ConfigError, match="there is nothing"):
            await in_thread(client.query, "nothing")
        with pytest.raises(InternalError):
            await AsyncClient(served.path).query("broken")
    assert isinstance(served.log.failures[0][1], ZeroDivisionError)
    assert served.handler.taken_back == []


@pytest.mark.parametrize(("error", "code"), [(Exhausted("none left"), 101), (TryAgain("soon"), 11), (KeyError(), 100)])
async def test_an_error_of_the_handler_becomes_an_answer(place, error, code):
    handler = Recorder()
    handler.answer = error
    async with serving(place, handler) as served:
        reply = await served.ask()
        assert reply.exit_code == 1
        assert json.loads(reply.body)["code"] == code
    assert handler.taken_back == [], "nothing was granted"
    assert len(served.log.failures) == (code == 100)


async def test_a_request_in_single_bytes_is_put_together(place):
    async with serving(place) as served:
        with await served.connect() as client:
            for at in range(len(CALL)):
                await in_thread(client.send, CALL[at : at + 1])
            assert await in_thread(client.receive, len(FRAME)) == FRAME
            client.acknowledge()
            await until(lambda: served.handler.held)


async def test_the_largest_request_and_reply_and_nothing_larger(place):
    handler = Recorder()
    handler.answer = Reply(b"y" * (LIMIT - 16))
    async with serving(place, handler) as served:
        body = b"x" * (LIMIT - len(encode_call(ENV, b"")))
        reply = await AsyncClient(served.path).call(ENV, body)
        assert reply == handler.answer
        with pytest.raises(DecodeError):
            encode_call(ENV, body + b"x")
        handler.answer = Reply(b"y" * (LIMIT - 15))
        assert json.loads((await served.ask()).body)["code"] == 100
    assert len(handler.taken_back) == 1, "what could not be sent is taken back"
    assert len(served.log.failures) == 1


async def test_what_cannot_be_sent_is_taken_back_also_when_the_caller_is_gone_meanwhile(place):
    handler = Recorder()
    handler.answer = Reply(b"y" * (LIMIT - 15))
    handler.lost_gate = asyncio.Event()
    async with serving(place, handler) as served:
        client = await served.connect()
        client.send(CALL)
        await until(lambda: served.server.unfinished)
        client.cut()
        await until(lambda: not served.server.open_connections)
        handler.lost_gate.set()
        await until(lambda: not served.server.unfinished)
    assert len(handler.taken_back) == 1


@pytest.mark.parametrize("waits", [False, True])
async def test_a_fault_of_ours_ends_the_server_whether_or_not_the_call_waited(place, waits):
    """Else its caller waits for ever for somebody who is gone."""
    handler = Recorder()
    handler.answer = None
    if waits:
        handler.gate = asyncio.Event()
    server = CniServer(handler, bind(place / "cni.sock"), clock=ManualClock())
    server.start()
    with HostileClient(place / "cni.sock") as client:
        client.send(CALL)
        await until(lambda: handler.calls)
        if waits:
            handler.gate.set()
        async with asyncio.timeout(20):
            with pytest.raises(InternalError, match="cannot be served any further"):
                await server.wait()
    await server.drain(1)


# -- callers that go away (I2)


async def test_a_caller_gone_in_the_round_in_which_it_came_leaves_nobody_in_the_queue(place):
    """Its call begins at once, and is cancelled before it ever was in a task of its own."""
    turns, calls = Turns(), []

    class InTurns(Recorder):
        async def call(self, call):
            calls.append(call)
            await turns.take("key")
            turns.release("key")
            return RESULT

    await turns.take("key")
    async with serving(place, InTurns()) as served:
        client = HostileClient(served.path)
        client.send(CALL)
        client.cut()  # both are there when the loop looks
        served.server._accept()
        served.server._dispatch()
        assert calls
        assert served.stats.hung_up == 1
        await until(lambda: not served.server.unfinished)
        turns.release("key")
        assert await served.ask() == RESULT


async def test_a_caller_that_hangs_up_has_its_work_cancelled(place):
    handler = Recorder()
    handler.gate = asyncio.Event()
    async with serving(place, handler) as served:
        client = await served.connect()
        client.send(CALL)
        await until(lambda: handler.calls)
        client.cut()
        await until(lambda: handler.cancelled)
        await until(lambda: not served.server.unfinished)
        assert served.server.open_connections == 0
    assert (handler.taken_back, handler.held) == ([], [])
    assert served.stats.hung_up == 1
    assert served.log.abandonments == [(handler.calls[0], None)]


async def test_work_past_the_point_of_no_return_is_taken_back_when_done(place):
    handler = Recorder()
    handler.gate, handler.stubborn = asyncio.Event(), True
    async with serving(place, handler) as served:
        client = await served.connect()
        client.send(CALL)
        await until(lambda: handler.calls)
        client.cut()
        await until(lambda: handler.taken_back)
    assert handler.taken_back == [(handler.calls[0], RESULT)]
    assert handler.held == []


async def test_a_caller_gone_before_it_acknowledges_loses_its_answer(place):
    async with serving(place) as served:
        client = await served.connect()
        client.send(CALL)
        assert await in_thread(client.receive, len(FRAME)) == FRAME
        client.cut()
        await until(lambda: served.handler.taken_back)
    assert served.handler.taken_back == [(served.handler.calls[0], RESULT)]
    assert served.handler.held == []
    assert served.stats.lost == 1


async def test_an_answer_not_acknowledged_in_time_is_withdrawn_and_the_caller_told(place):
    """I1: from the moment the agent decides, no acknowledgement gets through, and the caller can know."""
    async with serving(place, acknowledge=0.05) as served:
        with await served.connect() as client:
            client.send(CALL)
            assert await in_thread(client.receive, len(FRAME) + 2) == FRAME + WITHDRAWN
            assert client.acknowledge() is False
            await until(lambda: served.handler.taken_back)
    assert served.handler.held == []


async def test_an_acknowledgement_that_beats_the_deadline_counts(place):
    """Sent, but not yet seen by a busy loop when the deadline is looked at: it must not be lost."""
    async with serving(place, acknowledge=0.05) as served:
        loop, client = asyncio.get_running_loop(), await served.connect()
        client.send(CALL)
        assert await in_thread(client.receive, len(FRAME)) == FRAME
        until_late = loop.time() + 0.2
        client.acknowledge()
        while loop.time() < until_late:
            pass  # the loop is stuck here …
        served.server._sweep()  # … and looks at the deadlines before it looks at the socket
        await until(lambda: served.handler.held or served.handler.taken_back)
        client.cut()
    assert served.handler.held == served.handler.calls
    assert served.handler.taken_back == []


@pytest.mark.parametrize("byte", [b"\x15", b"\0", b"ACK", CALL])
async def test_anything_but_an_acknowledgement_is_none(place, byte):
    async with serving(place) as served:
        with await served.connect() as client:
            client.send(CALL)
            await in_thread(client.receive, len(FRAME))
            client.send(byte)
            await until(lambda: served.handler.taken_back)
    assert served.handler.held == []


async def test_an_acknowledgement_before_the_answer_is_a_hang_up(place):
    handler = Recorder()
    handler.gate = asyncio.Event()
    async with serving(place, handler) as served:
        with await served.connect() as client:
            client.send(CALL)
            await until(lambda: handler.calls)
            client.send(ACKNOWLEDGED)
            await until(lambda: handler.cancelled)
    assert handler.held == []


async def test_a_caller_that_does_not_read_its_answer_is_dropped(place):
    handler = Recorder()
    handler.answer = Reply(b"y" * (LIMIT - 16))
    async with serving(place, handler, write=0.05) as served:
        with await served.connect() as client:
            client.send(CALL)
            await until(lambda: handler.taken_back)
            data = await in_thread(client.receive, LIMIT)
            assert 0 < len(data) < LIMIT, "cut: it cannot be taken for an answer"


async def test_a_failing_undo_is_told_and_nothing_else_happens(place):
    handler = Recorder()
    handler.lost_raises = OSError("disk")
    async with serving(place, handler) as served:
        client = await served.connect()
        client.send(CALL)
        await in_thread(client.receive, len(FRAME))
        client.cut()
        await until(lambda: served.log.failures)
        assert await served.ask() == RESULT


# -- callers that send rubbish, or nothing


async def test_a_request_cut_at_every_byte_calls_nothing(place, resources):
    async with serving(place) as served:
        await served.ask()
        await until(lambda: not served.server.open_connections)
        before = resources()[0]
        for at in range(len(CALL)):
            with await served.connect() as client:
                client.send(CALL[:at])
        await until(lambda: served.stats.accepted == len(CALL) + 1 and not served.server.open_connections)
        assert served.stats.hung_up == len(CALL)
        assert len(served.handler.calls) == 1
        assert served.server.held == 0
        assert resources()[0] == before


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not allotment"),
        (b"ALQ2" + CALL[4:], "not allotment"),
        (CALL[:4] + b"\0\2" + CALL[6:], "version 2"),
        (CALL[:6] + b"\0\7" + CALL[8:], "kind 7"),
        (CALL[:8] + b"\xff" * 8, "are allowed"),
        (CALL + b"!", "1 bytes more"),
        (encode_call(ENV, b"")[:-1] + b"x", "cut off"),
        (encode_query("status", b"").replace(b"status", b"STATUS"), "name of a query"),
    ],
)
async def test_what_is_no_request_is_told_so(place, data, says):
    async with serving(place) as served:
        with await served.connect() as client:
            client.send(data)
            error = error_of(await in_thread(client.receive, LIMIT))
        assert error["code"] == 6
        assert says in error["msg"]
        assert served.stats.malformed == 1
        assert isinstance(served.log.refusals[0][1], DecodeError)
        assert await served.ask() == RESULT


async def test_a_refusal_reaches_who_is_still_sending(place):
    async with serving(place) as served:
        with await served.connect() as client:
            await in_thread(client.send, b"rubbish" * 100_000)
            assert error_of(await in_thread(client.receive, LIMIT))["code"] == 6


async def test_a_silent_and_a_stalling_caller_are_told_and_dropped(place):
    async with serving(place, read=0.05) as served:
        with await served.connect() as silent, await served.connect() as stalling:
            stalling.send(CALL[:30])
            for client in (silent, stalling):
                assert "no whole request in 0.05 s" in error_of(await in_thread(client.receive, LIMIT))["msg"]
        assert served.stats.slow == 2
        assert served.server.open_connections == 0
        assert served.server.held == 0


async def test_unfinished_requests_have_a_common_limit(place):
    async with serving(place, held=100_000) as served:
        with await served.connect() as first, await served.connect() as second:
            big = encode_call(ENV, b"x" * 200_000)
            first.send(big[:60_000])
            await until(lambda: served.server.held == 60_000)
            second.send(big[:60_000])
            assert error_of(await in_thread(second.receive, LIMIT))["code"] == 11
            assert served.stats.crowded == 1
            await until(lambda: served.server.held == 60_000)
            assert await served.ask() == RESULT, "what needs no holding is served"


async def test_callers_beyond_the_limit_wait(place):
    handler = Recorder()
    handler.gate = asyncio.Event()
    async with serving(place, handler, connections=2) as served:
        asks = [asyncio.create_task(served.ask()) for _ in range(6)]
        await until(lambda: len(handler.calls) == 2 and served.stats.full)
        assert served.server.open_connections == 2
        handler.gate.set()
        assert await asyncio.gather(*asks) == [RESULT] * 6
    assert served.stats.acknowledged == 6


async def test_two_thousand_at_once_are_all_served(place, resources):
    """Half of them hold back the last byte until all are connected."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        async with serving(place, read=30.0) as served:
            await served.ask()
            await until(lambda: not served.server.open_connections)
            before = resources()
            loop, socks = asyncio.get_running_loop(), []
            for number in range(2000):
                sock = socket.socket(socket.AF_UNIX)
                sock.setblocking(False)
                socks.append(sock)
                await loop.sock_connect(sock, str(served.path))
                await loop.sock_sendall(sock, CALL if number % 2 else CALL[:-1])
            for sock in socks[::2]:
                await loop.sock_sendall(sock, CALL[-1:])
            for sock in socks:
                assert await loop.sock_recv(sock, 4096) == FRAME
                await loop.sock_sendall(sock, ACKNOWLEDGED)
            await until(lambda: len(served.handler.held) == 2001)
            for sock in socks:
                sock.close()
            await until(lambda: not served.server.open_connections)
            assert resources() == before
        assert served.handler.taken_back == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_nothing_is_left_of_thousands_of_requests(place, resources):
    """No descriptor, thread or task stays behind, whatever a daemon lives through."""
    async with serving(place) as served:
        for _ in range(50):
            await served.ask()
        await until(lambda: not served.server.open_connections)
        before = resources()
        for _ in range(1000):
            await served.ask()
        await until(lambda: not served.server.open_connections)
        assert resources() == before
        assert served.server.unfinished == 0


async def test_running_out_of_descriptors_is_survived(place):
    """EMFILE at accept: callers wait and are served once there are descriptors again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(place) as served:
        await served.ask()
        sock = socket.socket(socket.AF_UNIX)
        spare = os.open("/dev/null", os.O_RDONLY)
        os.close(spare)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
            sock.connect(str(served.path))
            sock.sendall(CALL)
            await until(lambda: served.stats.starved)
            with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
                socket.socket(socket.AF_UNIX)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: len(served.handler.calls) == 2)
        sock.close()


@pytest.mark.root
async def test_another_user_is_refused(place):
    """Also where the file's mode would let it in."""
    place.chmod(0o755)
    async with serving(place) as served:
        served.path.chmod(0o666)
        child = os.fork()
        if not child:
            try:
                os.setuid(65534)
                client = HostileClient(served.path)
                client.send(CALL)
                os._exit(0 if error_of(client.receive(LIMIT))["code"] == 7 else 3)
            finally:
                os._exit(4)
        _, status = await in_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert served.handler.calls == []
        assert served.stats.refused == 1
        peer, error = served.log.refusals[0]
        assert (peer.pid, peer.uid) == (child, 65534)
        assert "65534" in error.message


# -- the listening socket


async def test_the_socket_is_for_its_owner_alone(place):
    async with serving(place) as served:
        assert stat.S_IMODE(served.path.stat().st_mode) == 0o600
        assert list(place.iterdir()) == [served.path]


async def test_there_is_always_a_socket_while_it_is_replaced(place):
    """I11: binding again never leaves a moment in which a caller finds none."""
    path = place / "cni.sock"
    current, stop = bind(path), asyncio.Event()

    def knock():
        knocks = 0
        while not stop.is_set() or knocks < 100:
            found = path.stat()  # raises where there is none
            with socket.socket(socket.AF_UNIX) as sock:
                try:
                    sock.connect(str(path))
                except ConnectionRefusedError:  # the one that was found was closed, and another is in its place
                    now = path.stat()
                    assert (now.st_ino, now.st_ctime_ns) != (found.st_ino, found.st_ctime_ns)
            knocks += 1
        return knocks

    knocking = asyncio.ensure_future(in_thread(knock))
    for _ in range(200):
        following = await in_thread(bind, path)
        await in_thread(current.close)
        current = following
    stop.set()
    try:
        assert await knocking >= 100
    finally:
        current.close()


@pytest.mark.parametrize("what", ["file", "folder", "too long", "no folder"])
def test_a_place_where_no_socket_can_be_is_refused(place, what):
    path = place / "cni.sock"
    if what == "file":
        path.write_text("someone else's")
    elif what == "folder":
        path.mkdir()
    elif what == "too long":
        path = place / ("x" * 90)
    else:
        path = place / "a" / "b" / "cni.sock"
    before = sorted(place.rglob("*"))
    with pytest.raises(ConfigError, match=str(path)):
        bind(path)
    assert sorted(place.rglob("*")) == before
    assert what != "file" or path.read_text() == "someone else's"


def test_the_folder_is_made(place):
    bind(place / "run" / "cni.sock").close()
    assert stat.S_IMODE((place / "run").stat().st_mode) == 0o700


async def test_a_socket_passed_on_by_systemd_is_served(place):
    """Blocking, and with callers in its queue already."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place / "cni.sock"))
    listener.listen(10)
    early = HostileClient(place / "cni.sock")
    early.send(CALL)
    server = CniServer(Recorder(), listener, clock=ManualClock())
    server.start()
    assert await in_thread(early.receive, len(FRAME)) == FRAME
    early.acknowledge()
    early.cut()
    assert await server.drain(5) == 0


async def test_a_broken_listener_ends_the_server_loudly(place):
    """Dying quietly is refused: who waits for the server hears of it."""
    listener, other = bind(place / "cni.sock"), socket.socketpair()
    server = CniServer(Recorder(), listener, clock=ManualClock())
    server.start()
    os.dup2(other[0].fileno(), listener.fileno())  # no listening socket any more
    server._accept()
    with pytest.raises(InternalError, match="cannot be served"):
        await server.wait()
    await server.drain(1)
    for sock in other:
        sock.close()


# -- the end


async def test_draining_lets_requests_in_flight_finish(place):
    handler = Recorder()
    handler.gate = asyncio.Event()
    async with serving(place, handler) as served:
        asks = [asyncio.create_task(served.ask()) for _ in range(5)]
        await until(lambda: len(handler.calls) == 5)
        draining = asyncio.create_task(served.server.drain(10))
        await until(lambda: served.server._listener.fileno() < 0)
        with pytest.raises(TryAgain):
            await served.ask()
        assert not draining.done()
        handler.gate.set()
        assert await asyncio.gather(*asks) == [RESULT] * 5
        assert await draining == 0
        await served.server.wait()
    assert len(handler.held) == 5


async def test_draining_ends_what_does_not_finish_in_time(place):
    handler = Recorder()
    handler.gate = asyncio.Event()
    async with serving(place, handler) as served:
        answered = await served.connect()
        handler.gate.set()
        answered.send(CALL)
        await in_thread(answered.receive, len(FRAME))
        handler.gate.clear()
        working, silent = await served.connect(), await served.connect()
        working.send(CALL)
        await until(lambda: len(handler.calls) == 2)
        assert await served.server.drain(0.05) == 3
        assert handler.cancelled == handler.calls[1:]
        assert handler.taken_back == [(handler.calls[0], RESULT)]
        assert await in_thread(answered.receive, 2) == WITHDRAWN
        assert await in_thread(working.receive, 1) == b"", "no byte of an answer: it may be asked again"
        for client in (answered, working, silent):
            client.cut()
