"""The line breaks as it is told to, and in no other way."""

import contextlib
import socket
import threading

import pytest

from agents import now
from kube.line import Line
from nodes import until

NOTHING = 0.3
"""Seconds without a byte after which none is on its way."""


class Echo:
    """A server that sends back what it gets, and counts its connections."""

    def __enter__(self):
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.ends = []
        """How each connection ended: b'' orderly, or an error."""
        self._threads = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in (self._accepting, *self._threads):
            thread.join(10)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._threads.append(threading.Thread(target=self._echo, args=(connection,)))
                self._threads[-1].start()

    def _echo(self, connection):
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
                self.ends.append(b"")
            except OSError as error:
                self.ends.append(type(error))


@pytest.fixture
def echo():
    with Echo() as echo:
        yield echo


@pytest.fixture
def line(echo):
    with Line("127.0.0.1", echo.port) as line:
        yield line


@pytest.fixture
def client(line):
    with connected(line) as client:
        assert said(client, b"hello") == b"hello"
        yield client


def connected(line):
    return socket.create_connection(("127.0.0.1", line.port), timeout=5)


def said(client, words):
    client.sendall(words)
    return client.recv(1 << 16)


def silent(client):
    client.settimeout(NOTHING)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(5)
    return True


def test_it_carries_bytes_and_orderly_ends_both_ways(line, echo, client):
    many = b"x" * (1 << 20)
    writing = threading.Thread(target=client.sendall, args=(many,))
    writing.start()
    got = b""
    while len(got) < len(many):
        got += client.recv(1 << 20)
    writing.join()
    assert got == many
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    assert echo.ends == [b""]
    until(lambda: line.connections == 0)


def test_cut_resets_both_sides_and_carries_new_connections(line, echo, client):
    line.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    until(lambda: echo.ends == [ConnectionResetError])
    with connected(line) as another:
        assert said(another, b"again") == b"again"


def test_finish_ends_orderly_on_both_sides(line, echo, client):
    line.finish()
    assert client.recv(1) == b""
    until(lambda: echo.ends == [b""])


def test_what_stalls_arrives_later(line, client):
    line.stall()
    client.sendall(b"kept")
    assert silent(client)
    line.flow()
    assert client.recv(16) == b"kept"


def test_answers_alone_can_stall(line, echo, client):
    line.stall(requests=False)
    client.sendall(b"through")
    client.shutdown(socket.SHUT_WR)
    until(lambda: echo.ends == [b""], "the request has not arrived")
    assert silent(client)
    line.flow()
    assert client.recv(16) == b"through"


def test_in_a_black_hole_nobody_hears_anything_ever_again(line, echo, client):
    line.blackhole()
    client.sendall(b"lost")
    assert silent(client)
    with connected(line) as later:
        later.sendall(b"lost, too")
        assert silent(later)
        line.flow()
        assert silent(later)
        assert silent(client)
        assert echo.ends == []
        with connected(line) as healed:
            assert said(healed, b"new") == b"new"


def test_a_slow_line_takes_its_time(line, client):
    line.slow(2000)
    assert said(client, b"x") == b"x"  # what the line waited for when it was still quick
    begun = now()
    client.sendall(b"x" * 500)
    got = 0
    while got < 500:
        got += len(client.recv(1 << 16))
    assert 0.1 < now() - begun < 5
    line.flow()


def test_down_refuses_and_up_takes_the_same_port(line, client):
    line.down()
    with pytest.raises(ConnectionRefusedError):
        connected(line)
    assert said(client, b"still") == b"still"
    line.up()
    with connected(line) as another:
        assert said(another, b"again") == b"again"


def test_a_server_that_is_not_there_resets():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with Line("127.0.0.1", port) as line, connected(line) as client, pytest.raises(ConnectionResetError):
        client.recv(1)


def test_it_leaves_no_thread_and_no_connection(echo):
    with Line("127.0.0.1", echo.port) as line:
        client = connected(line)
        assert said(client, b"hello") == b"hello"
        line.blackhole()
        lost = connected(line)
        until(lambda: line.accepted == 2)
    for left in (client, lost):
        with left, contextlib.suppress(ConnectionResetError):
            assert left.recv(1) == b""
    assert not [thread for thread in threading.enumerate() if thread.name == "Line"]
