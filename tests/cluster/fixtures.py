"""API server and cluster as pytest fixtures, which the topmost conftest has for everybody; hence the late imports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.cluster import Cluster
    from cluster.control_plane import ApiServer

__all__ = ["api_server", "cluster", "crds"]

CRDS = Path(__file__).resolve().parents[2] / "daemonset" / "crds"


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """An API server alone, see cluster.control_plane; all tests share it, so each makes objects with names of its own.

    The first time on a machine it is built, which takes minutes.
    """
    from cluster.control_plane import ApiServer

    with ApiServer() as server:
        yield server


@pytest.fixture(scope="session")
def crds(api_server: ApiServer) -> ApiServer:
    """The same API server, with our kinds."""
    files = list(CRDS.glob("*.yaml"))
    assert files, f"there are no CRDs in {CRDS}; `make generate` writes them"
    api_server.apply_crds(files)
    return api_server


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of n1 and n2 whose pods get addresses from the reference plugins; for tests that are slow and root.

    All tests share it: who changes more than objects of his own makes a Cluster himself.
    """
    from cluster.cluster import Cluster

    with Cluster() as cluster:
        yield cluster
