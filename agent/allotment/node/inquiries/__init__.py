"""What the agent and the files answer to the CLI: leases, addresses, networks, their past, and the agent itself."""
