"""Allotment: gives every pod its address, keeps the books on it, and makes it reachable."""

__version__ = "0.1.0"
