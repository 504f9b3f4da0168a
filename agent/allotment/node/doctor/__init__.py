"""What `allotment doctor` looks at, and what it finds there."""
