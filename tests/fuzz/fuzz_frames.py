"""A coverage-guided fuzz target for the frame parsers: `python fuzz_frames.py [libFuzzer options] [corpus folder]`.

The first byte chooses the parser, the second how the rest is cut into pieces. Whatever the bytes are, a parser
gives a frame that encodes to the same bytes again, asks for more, or raises DecodeError; it never holds more than a
frame may have.
"""

import sys
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["allotment.cni.frames"]):
    from allotment.cni import frames

from allotment.addressing.errors import DecodeError

MAGICS = (b"ALQ1\0\1", b"ALR1\0\1", b"ALS1\0\1\0\0")


def feed(parser, data, size):
    """The frame, if there is one, and the bytes that it was made of."""
    for at in range(0, len(data), size):
        if (result := parser.feed(data[at : at + size])) is not None:
            return result, data[: at + size]
        assert parser.held <= frames.LIMIT
        assert parser.wanted > 0
    return None, b""


def check_request(data, size):
    request, made_of = feed(frames.RequestParser(), data, size)
    if request is None:
        return
    if request.kind is frames.Kind.CALL:
        again = frames.encode_call(frames.decode_environment(request.head), request.body)
    else:
        again = frames.encode_query(frames.decode_query_name(request.head), request.body)
    assert again == made_of


def check_reply(data, size):
    reply, made_of = feed(frames.ReplyParser(), data, size)
    assert reply is None or frames.encode_reply(reply) == made_of


def check_entry(data, _):
    entry = frames.decode_spool_entry(data)
    assert entry.seconds >= 0
    assert len(entry.boot) == 36


def one_input(data):
    if len(data) < 2:
        return
    which, size = data[0] % 6, data[1] % 64 + 1
    # Half of the inputs are given the right start, so that the fuzzer need not find it each time.
    data = (MAGICS[which % 3] if which >= 3 else b"") + data[2:]
    with suppress(DecodeError):  # the one thing that may be raised
        (check_request, check_reply, check_entry)[which % 3](data, size)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
