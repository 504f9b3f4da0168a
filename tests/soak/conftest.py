"""Nodes for the tests of this folder."""

from node_fixtures import launcher, make_node, node

__all__ = ["launcher", "make_node", "node"]
