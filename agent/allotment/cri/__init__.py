"""What the container runtime says of its sandboxes: a small client of the CRI, over its unix socket."""
