"""Allotment: gives every pod its address, and keeps the books on it."""

__version__ = "0.1.0"
