"""The bytes of the protocol: what is written is read back, in pieces of any size, and nothing else is accepted."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allotment.addressing.errors import DecodeError
from allotment.cni.exchange import SPOOL, Reply
from allotment.cni.frames import (
    LIMIT,
    Kind,
    ReplyParser,
    RequestParser,
    decode_environment,
    decode_query_name,
    decode_spool_entry,
    encode_call,
    encode_query,
    encode_reply,
    encode_spool_entry,
)

BOOT = "4b8d4c2e-7f6a-4d57-9c8e-0123456789ab"
NAMES = st.from_regex(r"CNI_[A-Z_]{1,12}", fullmatch=True)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
ENVIRONMENTS = st.dictionaries(NAMES, VALUES, max_size=8)
BODIES = st.binary(max_size=300)
PIECES = st.lists(st.integers(1, 120), max_size=12)


def feed(parser, data, sizes):
    """The parser's result for `data` in pieces of these sizes, the last one as large as it takes."""
    at = 0
    for size in sizes:
        if at >= len(data):
            break
        result = parser.feed(data[at : at + size])
        at += size
        if result is not None:
            assert at >= len(data), "complete before its end"
            return result
        assert parser.wanted > 0
    return parser.feed(data[at:]) if at < len(data) else None


@given(ENVIRONMENTS, BODIES, PIECES)
def test_a_call_is_read_back_whatever_the_pieces(env, body, sizes):
    request = feed(RequestParser(), encode_call({**env, "HOME": "/root"}, body), sizes)
    assert request.kind is Kind.CALL
    assert decode_environment(request.head) == env
    assert request.body == body


@given(st.from_regex(r"[a-z][a-z0-9-]{0,62}", fullmatch=True), BODIES, PIECES)
def test_a_query_is_read_back_whatever_the_pieces(name, arguments, sizes):
    request = feed(RequestParser(), encode_query(name, arguments), sizes)
    assert request.kind is Kind.QUERY
    assert decode_query_name(request.head) == name
    assert request.body == arguments


@given(st.builds(Reply, BODIES, st.integers(0, 255), st.sampled_from([0, SPOOL])), PIECES)
def test_a_reply_is_read_back_whatever_the_pieces(reply, sizes):
    assert feed(ReplyParser(), encode_reply(reply), sizes) == reply


@given(ENVIRONMENTS, BODIES, st.integers(0, 2**64 - 1), st.floats(0, 1, exclude_max=True))
def test_a_spool_entry_is_read_back_and_no_part_of_it_is_one(env, body, nanoseconds, cut):
    data = encode_spool_entry(BOOT, nanoseconds, encode_call(env, body))
    entry = decode_spool_entry(data)
    assert (entry.boot, entry.seconds, entry.env, entry.body) == (BOOT, nanoseconds / 1e9, env, body)
    for other in (data[: int(len(data) * cut)], data[:-1], data + b"\0"):
        with pytest.raises(DecodeError):
            decode_spool_entry(other)


@given(st.binary(max_size=200), PIECES)
def test_any_bytes_are_a_request_or_a_decode_error(data, sizes):
    for head in (b"", b"ALQ1", b"ALQ1\0\1", b"ALQ1\0\1\0\0\0\0\0\4"):
        try:
            request = feed(RequestParser(), head + data, sizes)
            if request is not None and request.kind is Kind.CALL:
                decode_environment(request.head)
        except DecodeError:
            continue


@given(st.binary(max_size=200), PIECES)
def test_any_bytes_are_a_reply_a_spool_entry_or_a_decode_error(data, sizes):
    for head in (b"", b"ALR1", b"ALR1\0\1\0\0\0\0\0\0"):
        try:
            feed(ReplyParser(), head + data, sizes)
        except DecodeError:
            continue
    for head in (b"", b"ALS1\0\1\0\0" + BOOT.encode()):
        with pytest.raises(DecodeError):
            decode_spool_entry(head + data)


@given(st.binary(max_size=120))
def test_any_bytes_are_an_environment_or_a_decode_error(head):
    try:
        env = decode_environment(head)
    except DecodeError:
        return
    assert encode_call(env, b"")[16:] == head
    assert all(name.startswith("CNI_") for name in env)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_no_announced_length_makes_a_parser_hold_more_than_the_limit(head, body):
    header = struct.pack("!4sHHII", b"ALQ1", 1, 0, head, body)
    parser = RequestParser()
    if 16 + head + body > LIMIT:
        with pytest.raises(DecodeError, match="are allowed"):
            parser.feed(header)
    else:
        request = parser.feed(header)
        assert (request is None) == (head + body > 0)
        assert parser.size == 16 + head + body


def test_a_wrong_start_is_refused_at_its_first_byte():
    for parser in (RequestParser(), ReplyParser()):
        with pytest.raises(DecodeError, match="not allotment"):
            parser.feed(b"\x16")  # TLS


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"CNI_A=1", "cut off"),
        (b"CNI_A=1\0\0", "no CNI_"),
        (b"\0", "no CNI_"),
        (b"CNI_A\0", "no CNI_"),
        (b"PATH=/bin\0", "no CNI_"),
        (b"CNI_A=1\0CNI_A=1\0", "twice"),
        (b"".join(b"CNI_%d=\0" % n for n in range(65)), "65"),
    ],
)
def test_a_malformed_environment_is_refused(head, says):
    with pytest.raises(DecodeError, match=says):
        decode_environment(head)


def test_bytes_that_are_not_utf8_survive_as_the_environment_has_them():
    """A DEL must not fail for a variable that nobody needs."""
    env = decode_environment(b"CNI_PATH=/opt/\xff\0")
    assert env == {"CNI_PATH": "/opt/\udcff"}
    assert encode_call(env, b"")[16:] == b"CNI_PATH=/opt/\xff\0"


@pytest.mark.parametrize("name", ["", "Status", "a b", "1st", "a" * 64, "é", "a\n"])
def test_a_name_that_is_no_query_s_is_refused(name):
    with pytest.raises(DecodeError):
        encode_query(name, b"")


@pytest.mark.parametrize("reply", [Reply(b"", 256), Reply(b"", -1), Reply(b"", 0, 2), Reply(bytes(LIMIT - 15))])
def test_a_reply_that_cannot_be_is_refused(reply):
    with pytest.raises(DecodeError):
        encode_reply(reply)


def test_a_spool_entry_of_a_query_is_refused():
    with pytest.raises(DecodeError, match="other than a CNI call"):
        decode_spool_entry(encode_spool_entry(BOOT, 1, encode_query("status", b"")))


def test_the_layout_is_the_one_that_is_documented():
    """Byte for byte, as docs/reference/protocol.md has it: another release's shim must understand it."""
    assert encode_call({"CNI_A": "b"}, b"{}") == b"ALQ1\0\1\0\0\0\0\0\x08\0\0\0\x02CNI_A=b\0{}"
    assert encode_query("status", b"1") == b"ALQ1\0\1\0\1\0\0\0\x06\0\0\0\x01status1"
    assert encode_reply(Reply(b"x", 7, SPOOL)) == b"ALR1\0\1\0\1\0\0\0\x07\0\0\0\x01x"
    entry = encode_spool_entry(BOOT, 258, b"ALQ1")
    assert entry == b"ALS1\0\1\0\0" + BOOT.encode() + b"\0\0\0\0\0\0\x01\x02ALQ1"
