"""The agents of these tests are started as everywhere; the API server is the topmost conftest's."""

from node_fixtures import launcher

__all__ = ["launcher"]
