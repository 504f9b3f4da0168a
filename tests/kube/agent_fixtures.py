"""A node with an agent on the real API server, under the roles and policies that are installed with it.

A module of tests imports the fixtures that it uses.
"""

import itertools

import pytest

from kube.cluster_agent import ClusterAgent, add_node, remove_left

__all__ = ["agent", "name"]

_NUMBERS = itertools.count(1)


@pytest.fixture
def name(server):
    """Of a node, and with a letter before it of its networks, that no other test has; what is left of them goes."""
    name = f"ca{next(_NUMBERS)}"
    add_node(server, name)
    yield name
    remove_left(server, name)
    server.kubectl("delete", "node", name)


@pytest.fixture
def agent(launcher, server, name):
    with ClusterAgent(launcher, server, name) as agent:
        yield agent
