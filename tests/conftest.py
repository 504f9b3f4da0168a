"""What holds for every test."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

# One API server and one cluster for all tests, wherever they are: two conftests would make two of each.
from cluster.fixtures import api_server, cluster, crds  # noqa: F401  # fixtures

if TYPE_CHECKING:
    import pytest


def pytest_configure() -> None:
    """Begin without a current event loop, and end cleanly when somebody ends us.

    pytest-asyncio asks for the current loop before it sets its own; on Python 3.11 merely asking makes one, which a
    later test would then be blamed for.

    SIGTERM, with which a CI ends what takes too long, is made to do what Ctrl-C does: fixtures remove what they made.
    """
    asyncio.set_event_loop(None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow tests last: what is quickly found wrong is quickly told."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
