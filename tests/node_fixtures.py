"""`nodes.Node` as pytest fixtures; a conftest imports what it needs."""

import pytest

from agents import Launcher, network
from nodes import Node

__all__ = ["launcher", "make_node", "node"]


@pytest.fixture(scope="session")
def launcher():
    """Starts the agents of all tests."""
    # Every first start rebuilds from nothing, and for that wants what reads namespaces.
    with Launcher(modules=["allotment.net.namespaces"]) as launcher:
        yield launcher


@pytest.fixture
def node(launcher):
    """A node with the network `blue`, which rests for no time, ready."""
    with Node(launcher, {"blue.yaml": network(cooldown=0)}, boot="before") as node:
        node.start()
        yield node


@pytest.fixture
def make_node(launcher):
    """Makes nodes with the manifests that a test wants; the test starts them."""
    made = []

    def make(manifests=None, **options):
        made.append(Node(launcher, manifests, **options))
        return made[-1]

    yield make
    for node in made:
        node.__exit__(None, None, None)
