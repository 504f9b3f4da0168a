"""The client's end of HTTP/2: the same answer however what comes is cut, and a refusal of what breaks the rules."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allotment.addressing.errors import AllotmentError, ConfigError, DecodeError, TryAgain
from allotment.cri import hpack
from allotment.cri.http2 import LARGEST_MESSAGE, PREFACE, Flag, Line, Setting, Type, frame, settings

HELLO = settings({Setting.INITIAL_WINDOW_SIZE: 65535})
BEGIN = hpack.encode(((":status", "200"), ("content-type", "application/grpc")))
WELL = hpack.encode((("grpc-status", "0"),))
END = Flag.END_HEADERS | Flag.END_STREAM


def message(body):
    return struct.pack("!BI", 0, len(body)) + body


def head(block=BEGIN, flags=Flag.END_HEADERS, stream=1):
    return frame(Type.HEADERS, flags, stream, block)


def data(body, flags=0, stream=1):
    return frame(Type.DATA, flags, stream, body)


def asked(request=b"?"):
    line = Line()
    line.begin("/a.B/C", request)
    line.take()
    return line


def frames(sent):
    found = []
    while sent:
        high, low, kind, flags, stream = struct.unpack_from("!HBBBI", sent)
        size = high << 8 | low
        found.append((kind, flags, stream, sent[9 : 9 + size]))
        sent = sent[9 + size :]
    return found


WHOLE = (
    HELLO
    + frame(Type.SETTINGS, Flag.ACK, 0)
    + frame(Type.PING, 0, 0, b"12345678")
    + frame(Type.PRIORITY, 0, 1, b"\0\0\0\0\x10")
    + frame(0x77, 0xFF, 1, b"nobody knows this kind")
    + frame(Type.HEADERS, Flag.PADDED | Flag.PRIORITY, 1, b"\x02" + b"\0\0\0\0\x10" + BEGIN[:7] + b"\0\0")
    + frame(Type.CONTINUATION, 0, 1, BEGIN[7:9])
    + frame(Type.CONTINUATION, Flag.END_HEADERS, 1, BEGIN[9:])
    + data(message(b"hello, world")[:3])
    + frame(Type.WINDOW_UPDATE, 0, 0, struct.pack("!I", 100))
    + frame(Type.DATA, Flag.PADDED, 1, b"\x04" + message(b"hello, world")[3:] + b"\0\0\0\0")
    + data(b"")
    + head(WELL, END)
)


def test_an_answer_is_the_same_wherever_it_is_cut():
    for at in range(len(WHOLE) + 1):
        line = asked()
        line.receive(WHOLE[:at])
        assert (line.answer is not None) is (at == len(WHOLE)), at
        line.receive(WHOLE[at:])
        assert (line.answer.status, line.answer.body) == (0, b"hello, world"), at


def test_an_answer_may_come_byte_by_byte():
    line = asked()
    for octet in WHOLE:
        line.receive(bytes((octet,)))
    assert line.answer.body == b"hello, world"
    sent = frames(line.take())
    assert (Type.SETTINGS, Flag.ACK, 0, b"") in sent
    assert (Type.PING, Flag.ACK, 0, b"12345678") in sent


def test_what_is_sent_is_a_call():
    line = Line()
    line.begin("/a.B/C", b"12345")
    sent = line.take()
    assert sent.startswith(PREFACE)
    (kind, _, _, own), (_, flags, stream, block), body = frames(sent[len(PREFACE) :])
    assert kind == Type.SETTINGS
    assert dict(struct.iter_unpack("!HI", own))[Setting.HEADER_TABLE_SIZE] == 0
    assert (flags, stream) == (Flag.END_HEADERS, 1)
    assert dict(hpack.decode(block)).items() >= {":method": "POST", ":path": "/a.B/C", "te": "trailers"}.items()
    assert body == (Type.DATA, Flag.END_STREAM, 1, message(b"12345"))


def test_windows_open_again_as_data_comes():
    """More than the first window: the sender may go on as soon as it is told."""
    line = asked()
    whole = message(b"x" * (3 << 20))
    line.receive(HELLO + head())
    opened = {0: 0, 1: 0}
    for at in range(0, len(whole), 16384):
        line.receive(data(whole[at : at + 16384]))
        for kind, _, stream, payload in frames(line.take()):
            if kind == Type.WINDOW_UPDATE:
                opened[stream] += struct.unpack("!I", payload)[0]
    line.receive(head(WELL, END))
    assert line.answer.body == b"x" * (3 << 20)
    assert opened == {0: len(whole), 1: len(whole)}


def test_a_request_waits_for_the_windows():
    line = Line()
    line.begin("/a.B/C", b"r" * 200_000)
    sent = b"".join(body for kind, _, _, body in frames(line.take()[len(PREFACE) :]) if kind == Type.DATA)
    assert len(sent) == 65535
    line.receive(settings({Setting.INITIAL_WINDOW_SIZE: 100_000}))  # for the stream alone
    assert not [kind for kind, *_ in frames(line.take()) if kind == Type.DATA]
    line.receive(frame(Type.WINDOW_UPDATE, 0, 0, struct.pack("!I", 1 << 20)))
    sent += b"".join(body for kind, _, _, body in frames(line.take()) if kind == Type.DATA)
    assert len(sent) == 100_000
    line.receive(frame(Type.WINDOW_UPDATE, 0, 1, struct.pack("!I", 1 << 20)))
    found = [(flags, body) for kind, flags, _, body in frames(line.take()) if kind == Type.DATA]
    assert sent + b"".join(body for _, body in found) == message(b"r" * 200_000)
    assert [flags for flags, _ in found] == [0] * (len(found) - 1) + [Flag.END_STREAM]


def test_one_call_follows_another():
    line = asked()
    with pytest.raises(TryAgain, match="under way"):
        line.begin("/a.B/D", b"")
    line.receive(WHOLE)
    line.begin("/a.B/D", b"")
    line.receive(head(stream=3) + data(message(b"two"), stream=3) + head(WELL, END, 3))
    assert line.answer.body == b"two"


def test_a_failure_is_told_in_trailers_that_are_percent_encoded():
    line = asked()
    trailers = hpack.encode((("grpc-status", "2"), ("grpc-message", "50%25 of %E2%9C%97 and %ff")))
    line.receive(HELLO + head(BEGIN + trailers, END))
    assert (line.answer.status, line.answer.body) == (2, b"")
    assert line.answer.message == "50% of ✗ and \N{REPLACEMENT CHARACTER}"


def test_a_connection_that_closes_in_good_order_still_answers():
    line = asked()
    line.receive(HELLO + head() + frame(Type.GOAWAY, 0, 0, struct.pack("!II", 1, 0)))
    line.receive(data(message(b"last")) + head(WELL, END))
    assert line.answer.body == b"last"
    assert not line.usable
    with pytest.raises(TryAgain, match="closes the connection"):
        line.begin("/a.B/C", b"")


@pytest.mark.parametrize(
    ("comes", "error", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", DecodeError, "no CRI socket"),
        (head(), DecodeError, "no CRI socket"),  # RFC 9113, 3.4: the settings come first
        (HELLO + b"\xff" * 9, DecodeError, "larger than agreed"),
        (HELLO + head(hpack.encode(((":status", "404"),)), END), ConfigError, "HTTP status 404"),
        (HELLO + head(hpack.encode(((":status", "200"), ("content-type", "text/html")))), ConfigError, "no gRPC"),
        (HELLO + frame(Type.RST_STREAM, 0, 1, struct.pack("!I", 7)), TryAgain, "code 7"),
        (HELLO + frame(Type.GOAWAY, 0, 0, struct.pack("!II", 0, 11) + b"too_many_pings"), TryAgain, "too_many_pings"),
        (HELLO + frame(Type.PUSH_PROMISE, 4, 1, b"\0\0\0\2"), DecodeError, "PUSH_PROMISE"),
        (HELLO + frame(Type.CONTINUATION, 4, 1, b""), DecodeError, "continues nothing"),
        (HELLO + frame(Type.HEADERS, 0, 1, BEGIN) + data(b""), DecodeError, "in the middle of a header block"),
        (HELLO + frame(Type.HEADERS, 0, 1, b"") + frame(Type.CONTINUATION, 4, 3, b""), DecodeError, "in the middle"),
        (HELLO + frame(Type.HEADERS, Flag.PADDED, 1, b"\x05abc"), DecodeError, "padded frame"),
        (HELLO + frame(Type.HEADERS, Flag.PADDED, 1, b""), DecodeError, "padded frame"),
        (HELLO + frame(Type.HEADERS, Flag.PRIORITY, 1, b"abc"), DecodeError, "HEADERS"),
        (HELLO + head(stream=3), DecodeError, "not open"),
        (HELLO + head(b"\xff\xff\xff\xff\xff\xff"), DecodeError, "header block"),
        (HELLO + data(b"abc"), DecodeError, "before the headers"),
        (HELLO + head() + data(b"abc", stream=5), DecodeError, "not open"),
        (HELLO + head() + data(message(b""), Flag.END_STREAM), DecodeError, "without gRPC's status"),
        (HELLO + head() + head(), DecodeError, "in its middle"),
        (HELLO + head() + head(BEGIN, END), DecodeError, "without gRPC's status"),
        (HELLO + head() + head(hpack.encode((("grpc-status", "x"),)), END), DecodeError, "without gRPC's status"),
        (HELLO + head() + head(WELL, END), DecodeError, "without a message"),
        (HELLO + head() + data(b"\1\0\0\0\0") + head(WELL, END), DecodeError, "compressed"),
        (HELLO + head() + data(b"\0\0\0\0\2a") + head(WELL, END), DecodeError, "length"),
        (HELLO + head() + data(message(b"a") * 2) + head(WELL, END), DecodeError, "length"),
        (HELLO + settings({Setting.INITIAL_WINDOW_SIZE: 1 << 31}), DecodeError, "SETTINGS"),
        (HELLO + frame(Type.SETTINGS, 0, 0, b"12345"), DecodeError, "SETTINGS"),
        (HELLO + frame(Type.SETTINGS, 0, 1), DecodeError, "SETTINGS"),
        (HELLO + frame(Type.SETTINGS, Flag.ACK, 0, b"123456"), DecodeError, "SETTINGS"),
        (HELLO + frame(Type.PING, 0, 0, b"1234"), DecodeError, "PING"),
        (HELLO + frame(Type.WINDOW_UPDATE, 0, 0, b"\0\0\0\0"), DecodeError, "WINDOW_UPDATE"),
        (HELLO + frame(Type.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), DecodeError, "WINDOW_UPDATE"),
        (HELLO + frame(Type.WINDOW_UPDATE, 0, 0, b"\1"), DecodeError, "WINDOW_UPDATE"),
        (HELLO + frame(Type.GOAWAY, 0, 0, b"1234"), DecodeError, "GOAWAY"),
        (HELLO + frame(Type.RST_STREAM, 0, 0, b"1234"), DecodeError, "RST_STREAM"),
    ],
)  # fmt: skip
def test_what_breaks_the_rules_is_refused(comes, error, reason):
    with pytest.raises(error, match=reason):
        asked().receive(comes)


def test_a_header_block_without_end_is_refused_before_it_is_large():
    line = asked()
    line.receive(HELLO + frame(Type.HEADERS, 0, 1, b"\0" * 16384))
    with pytest.raises(DecodeError, match="more than 65536 bytes"):
        line.receive(frame(Type.CONTINUATION, 0, 1, b"\0" * 16384) * 4)


def test_a_message_without_end_is_refused_before_it_is_large():
    line = asked()
    line.receive(HELLO + head())
    for _ in range(LARGEST_MESSAGE // 16384):
        line.receive(data(b"\0" * 16384))
    with pytest.raises(DecodeError, match="more than 16777216 bytes"):
        line.receive(data(b"\0" * 16384))


@given(st.binary(max_size=400), st.integers(0, 400))
def test_garbage_is_waited_on_or_refused(garbage, at):
    for before in (b"", HELLO, HELLO + head()):
        line = asked()
        try:
            line.receive(before + garbage[:at])
            line.receive(garbage[at:])
        except AllotmentError:
            continue


FLAGS = st.sampled_from([0, 1, 4, 5, 8, 12, 0x20])


@given(st.lists(st.tuples(st.integers(0, 10), FLAGS, st.integers(0, 4), st.binary(max_size=24)), max_size=12))
def test_frames_in_any_order_are_taken_or_refused(parts):
    line = asked()
    try:
        line.receive(HELLO + b"".join(frame(*part) for part in parts))
    except AllotmentError:
        return
    assert line.answer is None or line.answer.status != 0 or isinstance(line.answer.body, bytes)
