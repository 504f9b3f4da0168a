"""The HTTP server, spoken to over real connections; each edge costs one connection and nothing else."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allotment.observe import logs
from allotment.observe.http import HttpServer, Limits, Request, Response
from allotment.observe.metrics import Metrics

QUICK = Limits(connections=4, head_bytes=1024, request_seconds=0.3, answer_seconds=0.5, discarded_bytes=1000)


async def hello(request: Request) -> Response:
    return Response(f"hello {request.query}\n".encode())


async def broken(_: Request) -> Response:
    raise RuntimeError("a fault of the handler")


async def stuck(_: Request) -> Response:
    await asyncio.Event().wait()
    raise AssertionError


async def big(_: Request) -> Response:
    return Response(b"x" * 20_000_000)


ROUTES = {"/": hello, "/a b": hello, "/broken": broken, "/stuck": stuck, "/big": big}


@asynccontextmanager
async def serving(limits: Limits | None = None, routes=ROUTES):
    server = HttpServer(routes, limits)
    _, port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.close()
        assert server.connections == 0


async def said(port: int, sent: bytes, *, end: bool = True) -> bytes:
    """All that the server says to these bytes until it closes; `end` closes our half after sending."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = b""
    try:
        with suppress(OSError):  # closed on us is an answer, too
            writer.write(sent)
            if end:
                writer.write_eof()
            async with asyncio.timeout(10):
                while piece := await reader.read(65536):
                    found += piece
    finally:
        writer.close()
    return found


def get(path: str = "/", *extra: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *extra, "", ""]).encode()


async def test_a_get_is_answered_with_length_and_type():
    async with serving() as (_, port):
        head, _, body = (await said(port, get("/?who=me"))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 13" in head
    assert b"Content-Type: text/plain; charset=utf-8" in head
    assert body == b"hello who=me\n"


async def test_head_is_get_without_the_body():
    async with serving() as (_, port):
        head, _, body = (await said(port, get(method="HEAD"))).partition(b"\r\n\r\n")
    assert b"200 OK" in head
    assert b"Content-Length: 7" in head
    assert body == b""


async def test_a_path_is_decoded_and_matched_whole():
    async with serving() as (_, port):
        assert b"200 OK" in await said(port, get("/a%20b"))
        assert b"404 Not Found" in await said(port, get("/a"))
        assert b"404 Not Found" in await said(port, get("/%ff%00"))
        assert b"404 Not Found" in await said(port, get("//"))


async def test_other_methods_are_refused_with_those_that_are_served():
    async with serving() as (_, port):
        answer = await said(port, get("/", "Content-Length: 2", method="POST") + b"hi")
    assert b"405 Method Not Allowed" in answer
    assert b"Allow: GET, HEAD" in answer


async def test_a_connection_is_kept_for_the_next_request_and_closed_on_request():
    async with serving() as (_, port):
        answers = await said(port, get() + get() + get("/", "Connection: close") + get(), end=False)
    assert answers.count(b"200 OK") == 3
    assert answers.lower().count(b"connection: close") == 1


async def test_http_1_0_is_closed_after_the_answer():
    async with serving() as (_, port):
        assert b"200 OK" in await said(port, b"GET / HTTP/1.0\r\n\r\n", end=False)


async def test_a_body_nobody_asked_for_does_not_become_the_next_request():
    body = get("/broken")
    async with serving() as (_, port):
        answers = await said(port, get("/", f"Content-Length: {len(body)}", method="PUT") + body + get())
        chunked = b"5\r\nGET /\r\n0\r\n\r\n"
        more = await said(port, get("/", "Transfer-Encoding: chunked", method="PUT") + chunked + get())
    for answer in answers, more:
        assert answer.count(b"405 ") == 1
        assert answer.count(b"200 OK") == 1
        assert b"500 " not in answer


async def test_a_body_without_end_is_cut_off():
    async with serving(QUICK) as (_, port):
        answer = await said(port, get("/", "Content-Length: 99999999", method="PUT") + b"x" * 100_000, end=False)
    assert answer.count(b"HTTP/1.1") <= 1


async def test_who_waits_for_100_continue_gets_the_answer_instead():
    async with serving(QUICK) as (_, port):
        answer = await said(port, get("/", "Expect: 100-continue", "Content-Length: 5", method="PUT"), end=False)
    assert answer.startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),  # a TLS handshake
        (get("/", "Content-Length: 1", "Content-Length: 2"), 400),
        (get("/", "Content-Length: -1"), 400),
        (get("/", "X: " + "x" * 4000), 431),
        (get("/" + "x" * 4000), 431),
    ],
)
async def test_what_is_not_a_request_is_refused_and_closed(sent, status):
    async with serving(QUICK) as (_, port):
        answer = await said(port, sent, end=False)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"connection: close" in answer.lower()
        assert b"200 OK" in await said(port, get())


async def test_a_silent_and_a_slow_peer_are_dropped_in_time():
    async with serving(QUICK) as (server, port):
        assert await said(port, b"", end=False) == b""
        assert await said(port, b"GET / HT", end=False) == b""
        assert await said(port, get(), end=False) != b""  # idle after an answer
        assert server.connections == 0


async def test_a_peer_that_does_not_read_is_dropped_in_time():
    async with serving(QUICK) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(get("/big"))
        await reader.readexactly(1)
        async with asyncio.timeout(10):
            while server.connections:
                await asyncio.sleep(0.01)  # noqa: TID251  # waits for the condition above
        writer.close()


async def test_more_peers_than_allowed_are_turned_away_and_those_served_go_on():
    async with serving(Limits(connections=2)) as (server, port):
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        while server.connections < 2:
            await asyncio.sleep(0)  # noqa: TID251  # waits for the condition above
        assert await said(port, get()) == b""
        reader, writer = kept[0]
        writer.write(get("/", "Connection: close"))
        assert b"200 OK" in await reader.read()
        for _, one in kept:
            one.close()
        while server.connections:
            await asyncio.sleep(0)  # noqa: TID251  # waits for the condition above
        assert b"200 OK" in await said(port, get())


async def test_a_fault_of_a_handler_costs_one_answer_and_a_log_line(tmp_path):
    with (tmp_path / "log").open("w") as file:
        logs.configure(fd=file.fileno())
        async with serving(QUICK) as (_, port):
            assert b"500 Internal Server Error" in await said(port, get("/broken"))
            assert b"200 OK" in await said(port, get())
            assert await said(port, get("/stuck"), end=False) == b""
    assert "a fault of the handler" in (tmp_path / "log").read_text()


async def test_closing_ends_connections_that_are_open():
    server = HttpServer(ROUTES)
    _, port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(get("/stuck"))
    while not server.connections:
        await asyncio.sleep(0)  # noqa: TID251  # waits for the condition above
    await server.close()
    async with asyncio.timeout(10):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_an_address_in_use_is_named():
    async with serving() as (_, port):
        with pytest.raises(OSError, match=f"can't serve HTTP on 127.0.0.1 port {port}: "):
            await HttpServer(ROUTES).start("127.0.0.1", port)


async def test_metrics_are_served_as_prometheus_asks_for_them():
    metrics = Metrics("1")

    async def scrape(request: Request) -> Response:
        body, content_type = metrics.exposition(request.headers.get("accept", ""))
        return Response(body, content_type)

    async with serving(routes={"/metrics": scrape}) as (_, port):
        text = await said(port, get("/metrics"))
        opened = await said(
            port, get("/metrics", "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        )
    assert b"Content-Type: text/plain" in text
    assert b"Content-Type: application/openmetrics-text" in opened
    assert opened.endswith(b"# EOF\n")


def test_every_status_has_a_phrase_that_http_can_carry():
    assert all(status.phrase.isascii() for status in HTTPStatus)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([get(), b"\r\n", b"GET / HTTP/1.1\r\n"])), max_size=8)
)
def test_no_bytes_bring_it_down(pieces):
    async def check():
        async with serving(QUICK) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                writer.write_eof()
                async with asyncio.timeout(10):
                    await reader.read()
            except OSError:
                pass
            finally:
                writer.close()
            assert b"200 OK" in await said(port, get())

    asyncio.run(check())
