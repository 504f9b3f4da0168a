"""A launcher for all, and nodes that end with their test."""

from node_fixtures import launcher, make_node, node

__all__ = ["launcher", "make_node", "node"]
