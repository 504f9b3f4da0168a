"""A node with an agent on the real API server, under the roles and policies that are installed with it.

A module of tests imports the fixtures that it uses.
"""

import itertools

import pytest

from kube.cluster_agent import ClusterAgent, add_node, delete, patch
from nodes import until

__all__ = ["agent", "name"]

_NUMBERS = itertools.count(1)


@pytest.fixture
def name(server):
    """Of a node, and with a letter before it of its networks, that no other test has; what is left of them goes."""
    name = f"ca{next(_NUMBERS)}"
    add_node(server, name)
    yield name
    for plural in ("allocations", "networks"):
        # A test may have had the API server start anew, which then has to read its own rights first.
        path = f"/apis/allotment.dev/v1alpha1/{plural}"
        until(lambda path=path: server.request("GET", path)[0] == 200, "the API server does not list")
        for item in server.request("GET", path)[1]["items"]:
            if name in item["metadata"]["name"]:
                patch(server, plural, item["metadata"]["name"], {"metadata": {"finalizers": []}})
                delete(server, plural, item["metadata"]["name"])
    server.kubectl("delete", "node", name)


@pytest.fixture
def agent(launcher, server, name):
    with ClusterAgent(launcher, server, name) as agent:
        yield agent
