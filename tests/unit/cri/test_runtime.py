"""Asking a runtime: what it knows, and each way of getting no answer, none of which is an empty one (I8)."""

import contextlib
import socket

import pytest

from allotment.addressing.address import parse_address
from allotment.addressing.errors import ConfigError, DecodeError, TryAgain
from allotment.cri.messages import LIST, STATUS, Sandbox
from allotment.cri.runtime import Runtime, find_runtime
from allotment.testing.cri import FakeRuntime, Fault

WEB = Sandbox(
    "s1",
    name="web-0",
    namespace="shop",
    uid="u1",
    attempt=2,
    ready=True,
    created_ns=1_700_000_000_000_000_000,
    labels={"app": "web"},
    annotations={"a": "b"},
)


@pytest.fixture
def fake(tmp_path):
    with FakeRuntime(tmp_path / "cri.sock") as fake:
        yield fake


@pytest.fixture
def runtime(fake):
    return Runtime(fake.path, timeout=5.0)


async def test_it_says_who_it_is(runtime):
    version = await runtime.version()
    assert (version.name, version.version, version.api) == ("fake", "1.0", "v1")


async def test_it_tells_of_its_sandboxes(fake, runtime):
    assert await runtime.sandboxes() == ()
    fake.start(WEB)
    assert await runtime.sandboxes() == (WEB,)


async def test_it_tells_more_of_those_that_are_asked_for(fake, runtime):
    more = {"netns": "/run/netns/a", "ips": (parse_address("10.4.1.2"), parse_address("fd00::2"))}
    full = Sandbox("s1", name="web-0", namespace="shop", uid="u1", **more)
    fake.start(full)
    assert await runtime.statuses(["s1", "gone"]) == {"s1": full}
    assert fake.asked == [STATUS, STATUS]


async def test_a_list_of_thousands_comes_through_every_window(tmp_path):
    many = tuple(
        Sandbox(f"{number:064}", name=f"web-{number}", namespace="shop", uid=f"u{number}", annotations={"x": "y" * 300})
        for number in range(3_000)
    )
    with FakeRuntime(tmp_path / "cri.sock", window=16) as fake:  # and a request that has to wait for room
        fake.start(*many)
        assert await Runtime(fake.path).sandboxes() == many


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        (Fault.CUT, TryAgain, "closed the connection before it had answered|went away"),
        (Fault.ERROR, TryAgain, "gRPC status 2: the store is locked: 50% of 2 ✗"),
        (Fault.ERROR_AT_ONCE, TryAgain, "gRPC status 2: the store is locked: 50% of 2 ✗"),
        (Fault.UNIMPLEMENTED, ConfigError, "doesn't speak the CRI v1"),
        (Fault.RESET, TryAgain, "took the call back, with code 2"),
        (Fault.GO_AWAY, TryAgain, "closes the connection, with code 0"),
        (Fault.NO_STATUS, DecodeError, "ends without gRPC's status"),
        (Fault.OTHER_PROTOCOL, DecodeError, "is no CRI socket"),
    ],
)
async def test_no_answer_is_an_error_that_names_the_socket(fake, runtime, fault, error, reason):
    fake.start(WEB)
    fake.fault = fault
    for ask in (runtime.sandboxes, lambda: runtime.statuses(["s1"]), runtime.version):
        with pytest.raises(error, match=reason) as caught:
            await ask()
        assert str(fake.path) in caught.value.message
    fake.fault = Fault.NONE
    assert await runtime.sandboxes() == (WEB,)


async def test_a_runtime_that_is_silent_is_left_alone_after_a_while(fake):
    fake.fault = Fault.STALL
    with pytest.raises(TryAgain, match=r"no answer within 0\.05 s"):
        await Runtime(fake.path, timeout=0.05).sandboxes()
    assert fake.asked == [LIST]


async def test_a_long_message_is_told_whole(fake, runtime):
    fake.fault = Fault.ERROR
    fake.message = "\x00\x7fé" + "no" * 3000
    with pytest.raises(TryAgain) as caught:
        await runtime.sandboxes()
    assert fake.message in caught.value.message


async def test_nobody_listens(tmp_path):
    with pytest.raises(TryAgain, match="No such file"):
        await Runtime(tmp_path / "none.sock").sandboxes()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(tmp_path / "left.sock"))
    with pytest.raises(TryAgain, match="refused"):
        await Runtime(tmp_path / "left.sock").sandboxes()


async def test_who_listens_but_never_accepts_is_left_alone_after_a_while(tmp_path):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as deaf:
        deaf.bind(str(tmp_path / "deaf.sock"))
        deaf.listen(1)
        with pytest.raises(TryAgain, match=r"within 0\.05 s"):
            await Runtime(tmp_path / "deaf.sock", timeout=0.05).sandboxes()


def test_a_runtime_is_found_where_there_is_one(tmp_path):
    places = [tmp_path / "a.sock", tmp_path / "b.sock"]
    with pytest.raises(TryAgain, match=r"neither .*a\.sock nor .*b\.sock"):
        find_runtime(places)
    with FakeRuntime(places[1]):
        assert find_runtime(places).socket == places[1]
        with FakeRuntime(places[0]), pytest.raises(ConfigError, match="several"):
            find_runtime(places)
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as stopped:
            stopped.bind(str(places[0]))
        assert find_runtime(places).socket == places[1], "the other one was stopped, and has left its socket behind"
    assert find_runtime(places[:1]).socket == places[0]  # what is named is asked, and answers for itself
