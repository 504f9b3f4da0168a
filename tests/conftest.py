"""What holds for every test."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import leavings

# One API server and one cluster for all tests, wherever they are: two conftests would make two of each.
from cluster.fixtures import api_server, cluster, crds  # noqa: F401  # fixtures

# How long something takes is no matter of tests, on a machine that does other things as well.
settings.register_profile("allotment", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("allotment")

_TESTS = Path(__file__).parent
_CLUSTERS = _TESTS / "cluster"


def pytest_configure(config: pytest.Config) -> None:
    """Begin without a current event loop, and end cleanly when somebody ends us.

    pytest-asyncio asks for the current loop before it sets its own; on Python 3.11 merely asking makes one, which a
    later test would then be blamed for.

    SIGTERM, with which a CI ends what takes too long, is made to do what Ctrl-C does: fixtures remove what they made.
    """
    asyncio.set_event_loop(None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # a worker is within its master's
        config.add_cleanup(partial(leavings.sweep, leavings.begin()))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow tests last: what is quickly found wrong is quickly told.

    With several workers (`pytest -n`) the tests of a file stay together, as what they share is made once for each
    worker; and those of whole clusters, of which two at once would keep each other waiting.
    """
    items.sort(key=_slow)
    for item in items:
        group = "clusters" if item.path.parent == _CLUSTERS else str(item.path.relative_to(_TESTS))
        item.add_marker(pytest.mark.xdist_group(f"{group}, slow" if _slow(item) else group))


def _slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None
