"""Addresses of L2 networks in a cluster: asked of the controller by Claim, and given back by it (ADR 0011)."""
