"""HPACK against the vectors of RFC 7541, appendix C, and against what is not HPACK."""

import contextlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allotment.addressing.errors import DecodeError
from allotment.cri import hpack
from allotment.testing.cri import encode_huffman

REQUEST = ((":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com"))


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", (("custom-key", "custom-header"),)),  # C.2.1
        ("040c2f73616d706c652f70617468", ((":path", "/sample/path"),)),  # C.2.2
        ("100870617373776f726406736563726574", (("password", "secret"),)),  # C.2.3
        ("82", ((":method", "GET"),)),  # C.2.4
        ("828684410f7777772e6578616d706c652e636f6d", REQUEST),  # C.3.1
        ("828684418cf1e3c2e5f23a6ba0ab90f4ff", REQUEST),  # C.4.1
        (  # C.6.1
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
            (
                (":status", "302"),
                ("cache-control", "private"),
                ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
                ("location", "https://www.example.com"),
            ),
        ),
        ("20", ()),  # the table's size is set to 0
    ],
)
def test_the_vectors_of_the_standard(block, headers):
    assert hpack.decode(bytes.fromhex(block)) == headers


@pytest.mark.parametrize(
    ("coded", "text"),
    [
        ("a8eb10649cbf", "no-cache"),
        ("25a849e95ba97d7f", "custom-key"),
        ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
        ("640eff", "307"),
        ("94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
         "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ],
)  # fmt: skip
def test_huffman_coded_strings_of_the_standard(coded, text):
    assert hpack.decode_huffman(bytes.fromhex(coded)).decode() == text
    assert encode_huffman(text.encode()).hex() == coded


@given(st.binary(max_size=200))
def test_every_octet_survives_huffman(data):
    assert hpack.decode_huffman(encode_huffman(data)) == data


@given(st.lists(st.tuples(st.text(string.ascii_lowercase + "-:", min_size=1), st.text(string.printable, max_size=300))))
def test_what_we_write_is_read_as_it_was(headers):
    assert hpack.decode(hpack.encode(headers)) == tuple(headers)


def test_the_integer_of_the_standard():
    # C.1.2: 1337 with a prefix of 5 bits, here as a size of the table, which has to be 0
    with pytest.raises(DecodeError, match="dynamic"):
        hpack.decode(bytes.fromhex("3f9a0a"))


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("80", "entry 0"),
        ("be", "entry 62"),  # the first of the dynamic table
        ("7f00", "entry 63"),
        ("40", "in the middle"),
        ("400a6375", "in the middle"),
        ("00", "in the middle"),
        ("0001", "in the middle"),
        ("ffffffffffff7f", "too large"),
        ("ff808080808080808080", "too large"),
        ("000081ff", "padded"),  # eight ones are a beginning of the end, and more padding than there may be
        ("00008118", "padded"),  # padding with zeroes
        ("000084ffffffff", "end"),
    ],
)
def test_what_is_no_header_block_is_refused(block, reason):
    with pytest.raises(DecodeError, match=reason):
        hpack.decode(bytes.fromhex(block))


@given(st.binary(max_size=64))
def test_garbage_is_decoded_or_refused(block):
    with contextlib.suppress(DecodeError):
        hpack.decode(block)
