"""What holds for every test."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

# One API server and one cluster for all tests, wherever they are: two conftests would make two of each.
from cluster.fixtures import api_server, cluster, crds  # noqa: F401  # fixtures

if TYPE_CHECKING:
    import pytest


def pytest_configure() -> None:
    """Say that there is no current event loop, so that nobody makes one and forgets to close it.

    pytest-asyncio asks for the current loop before it sets its own; on Python 3.11 merely asking makes one, which a
    later test would then be blamed for.
    """
    asyncio.set_event_loop(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow tests last: what is quickly found wrong is quickly told."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
