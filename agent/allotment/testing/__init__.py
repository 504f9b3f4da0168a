"""Fakes with fault switches, shipped for our own tests and for those of others; nothing that runs imports them."""
