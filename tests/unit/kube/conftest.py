"""The fake API server, for all tests of the client."""

import pytest

from allotment.testing.api_server import ApiServer


@pytest.fixture
async def server():
    async with ApiServer() as server:
        yield server
