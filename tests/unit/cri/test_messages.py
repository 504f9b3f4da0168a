"""The protobuf messages: round trips through the fake's encoder, and refusals of what is none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allotment.addressing.address import parse_address
from allotment.addressing.errors import DecodeError
from allotment.cri import messages
from allotment.cri.messages import Sandbox, decode_list, decode_status, fields, varint
from allotment.testing.cri import encode_sandbox, encode_status

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SANDBOXES = st.builds(
    Sandbox,
    id=TEXT.filter(bool),
    name=TEXT,
    namespace=TEXT,
    uid=TEXT,
    attempt=st.integers(0, 2**32 - 1),
    ready=st.booleans(),
    created_ns=st.integers(0, 2**63 - 1),
    labels=st.dictionaries(TEXT, TEXT, max_size=3),
    annotations=st.dictionaries(TEXT, TEXT, max_size=3),
)
ITEM = Sandbox("s1", name="web-0", namespace="shop", uid="u1", ready=True)


def listed(*sandboxes):
    items = [encode_sandbox(sandbox) for sandbox in sandboxes]
    return b"".join(b"\x0a" + varint(len(item)) + item for item in items)


@given(st.lists(SANDBOXES, max_size=4))
def test_a_list_is_read_as_it_was_written(sandboxes):
    assert decode_list(listed(*sandboxes)) == tuple(sandboxes)


@given(SANDBOXES, st.booleans())
def test_a_status_is_read_as_it_was_written(sandbox, host):
    sandbox = Sandbox(
        **{name: getattr(sandbox, name) for name in ("id", "name", "namespace", "uid", "attempt", "ready", "labels")},
        netns="" if host else "/var/run/netns/cni-1",
        ips=() if host else (parse_address("10.4.1.2"), parse_address("fd00::2")),
        host_network=host,
    )
    assert decode_status(encode_status(sandbox)) == sandbox


def test_fields_of_later_versions_are_passed_over():
    later = varint(99 << 3) + b"\7" + varint(98 << 3 | 1) + b"12345678" + varint(97 << 3 | 5) + b"1234"
    item = encode_sandbox(ITEM) + later + varint(96 << 3 | 2) + b"\3new"
    assert decode_list(b"\x0a" + varint(len(item)) + item + later) == (ITEM,)


def test_a_message_in_two_parts_is_merged():
    """As proto3 says of fields that aren't repeated: the last one counts, and messages are joined."""
    item = b"\x0a\2s1" + b"\x12\7\x0a\5web-0" + b"\x12\6\x1a\4shop" + b"\x0a\2s2" + b"\x18\1\x18\0"
    (found,) = decode_list(b"\x0a" + varint(len(item)) + item)
    assert (found.id, found.name, found.namespace, found.ready) == ("s2", "web-0", "shop", True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a", "in the middle of a number"),
        (b"\x0a\5abc", "in the middle of a field"),
        (b"\x0b", "unknown type 3"),
        (b"\2\0", "without a number"),
        (b"\x0a" + b"\xff" * 11, "64 bits"),
        (b"\x0a\0", "without an ID"),
        (b"\x08\1", "should not be a number"),
        (b"\x0a\2\x10\1", "should not be a number"),
        (b"\x0a\7\x0a\2s1\x1a\1a", "should be a number"),
    ],
)
def test_what_is_no_list_is_refused(data, reason):
    with pytest.raises(DecodeError, match=reason):
        decode_list(data)


@given(st.binary(max_size=120))
def test_garbage_is_read_or_refused(data):
    for decode in (decode_list, decode_status, messages.decode_version, lambda data: list(fields(data))):
        try:
            decode(data)
        except DecodeError:
            continue


@pytest.mark.parametrize(
    "info",
    [
        "",
        "not JSON",
        "[]",
        "null",
        "{}",
        '{"runtimeSpec": null}',
        '{"runtimeSpec": {"linux": {"namespaces": [7]}}}',
        '{"runtimeSpec": {"linux": {"namespaces": [{"type": "pid"}]}}}',
        '{"runtimeSpec": {"linux": {"namespaces": [{"type": "network", "path": 7}]}}}',
        "[" * 100_000,
    ],
)
def test_a_runtime_may_tell_nothing_of_the_namespace(info):
    assert decode_status(_with_info(info)).netns == ""


def test_the_namespace_is_found_in_the_specification():
    namespaces = [{"type": "ipc"}, {"type": "network", "path": "/run/netns/a"}]
    info = json.dumps({"runtimeSpec": {"linux": {"namespaces": namespaces}}, "config": {"metadata": {}}})
    assert decode_status(_with_info(info)).netns == "/run/netns/a"


def _with_info(info):
    entry = b"\x0a\4info\x12" + varint(len(info)) + info.encode()
    status = encode_sandbox(ITEM)
    return b"\x0a" + varint(len(status)) + status + b"\x12" + varint(len(entry)) + entry
