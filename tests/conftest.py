"""What holds for every test."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import leavings

# One API server and one cluster for all tests, wherever they are: two conftests would make two of each.
from cluster.fixtures import api_server, cluster, crds  # noqa: F401  # fixtures

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

# How long something takes is no matter of tests, on a machine that does other things as well.
settings.register_profile("allotment", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("allotment")

_CLUSTERS = "tests/cluster/"


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow tests last: what is quickly found wrong is quickly told."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """With `pytest -n … --dist loadfile`, keep all tests of whole clusters on one worker as well.

    What the tests of a file share is made once for each worker; and two clusters would keep each other waiting.
    """
    from xdist.scheduler import LoadFileScheduling  # not there unless it is installed

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _CLUSTERS if nodeid.startswith(_CLUSTERS) else super()._split_scope(nodeid)

    return Together(config, log) if config.getvalue("dist") == "loadfile" else None
