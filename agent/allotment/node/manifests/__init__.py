"""Standalone mode: a folder of manifests as the source of Views, and a state folder for what the agent says."""
