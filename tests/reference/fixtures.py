"""The programs of `reference.build` as pytest fixtures; a conftest imports what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reference import build

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["cnidriver", "cnitool", "debian_plugins", "reference_plugins"]


@pytest.fixture(scope="session")
def reference_plugins() -> Path:
    """The folder of containernetworking/plugins at the version that go.mod pins."""
    return build.reference_plugins()


@pytest.fixture(scope="session")
def debian_plugins() -> Path:
    """The folder of Debian's older plugins."""
    return build.debian_plugins()


@pytest.fixture(scope="session")
def cnidriver() -> Path:
    """Our program on libcni."""
    return build.cnidriver()


@pytest.fixture(scope="session")
def cnitool() -> Path:
    """The CNI project's command-line tool."""
    return build.cnitool()
