"""C1, C2: pods that end without a DEL ever coming, at an agent that can ask the container runtime."""

import pytest

from agents import network
from allotment.cri.messages import LIST, Sandbox
from allotment.testing.cri import FakeRuntime
from namespaces import Namespaces
from nodes import cni_cache_entry, until

_FAR = 90.0
"""Seconds in which two looks half a minute apart are made for certain."""


@pytest.fixture
def fake(tmp_path):
    with FakeRuntime(tmp_path / "cri.sock") as fake:
        yield fake


def held(node):
    return {lease.address for lease in node.leases()}


def running(container):
    return Sandbox(container, name=container, namespace="test", uid=f"uid-{container}", ready=True)


def test_what_an_agent_is_told_of_the_runtime_is_what_it_asks(make_node, fake):
    node = make_node({"blue.yaml": network()}, flags=["--runtime-socket", fake.path])
    node.start()
    node.give("c1")
    assert node.cli("gc", "--dry-run") == []  # it is young
    assert LIST in fake.asked


def test_an_agent_without_a_runtime_asks_none(make_node, fake):
    node = make_node({"blue.yaml": network()}, flags=["--runtime-socket", "off"])
    node.start()
    node.give("c1")
    node.cli("gc", "--dry-run")
    assert fake.asked == []


@pytest.mark.root
@pytest.mark.slow
def test_pods_whose_del_never_came_are_freed_and_those_that_run_are_not(make_node, fake):
    """The leases are as old as the boot: they are made from libcni's cache by an agent that starts with nothing."""
    with Namespaces() as spaces:
        node = make_node({"blue.yaml": network()}, flags=["--runtime-socket", fake.path])
        paths = {container: spaces.make(name=container) for container in ("gone", "lives", "lost")}
        for number, (container, path) in enumerate(paths.items(), 5):
            cni_cache_entry(node.cache, container, [f"10.4.0.{number}/26"], netns=str(path))
        fake.start(running("lives"))
        node.start()
        assert held(node) == {"10.4.0.5", "10.4.0.6", "10.4.0.7"}
        spaces.end(paths["gone"])
        until(lambda: "10.4.0.5" not in held(node), "it is not freed", limit=_FAR)
        (entry,) = node.history(address="10.4.0.5")
        assert (entry.ended.cause, entry.pod) == ("orphan", "gone")
        assert "doesn't know its sandbox" in entry.ended.detail
        # The runtime doesn't know this one either, but its namespace is there: its address may be in use.
        assert [(row["address"], row["outcome"]) for row in node.cli("gc", "--dry-run")] == [("10.4.0.7", "kept")]
        assert held(node) == {"10.4.0.6", "10.4.0.7"}
