"""What can be seen from outside, and the time: metrics, HTTP, logs, sd_notify. A leaf: imports nothing of ours."""
