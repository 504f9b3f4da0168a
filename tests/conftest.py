"""What holds for every test."""

from __future__ import annotations

import asyncio


def pytest_configure() -> None:
    """Say that there is no current event loop, so that nobody makes one and forgets to close it.

    pytest-asyncio asks for the current loop before it sets its own; on Python 3.11 merely asking makes one, which a
    later test would then be blamed for.
    """
    asyncio.set_event_loop(None)
