"""The agents of these tests are started as everywhere; the API server is the topmost conftest's."""

import pytest

from kube.cluster_agent import install
from node_fixtures import launcher

__all__ = ["launcher", "server"]


@pytest.fixture(scope="module")
def server(crds):
    """The API server, with the roles and policies that are installed with the agents."""
    install(crds)
    return crds
