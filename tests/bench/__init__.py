"""`make bench`: how fast the agent and its shim are, beside host-local and the floor, in the same run.

docs/reference/benchmarks.md says what is measured and how to read it.
"""
