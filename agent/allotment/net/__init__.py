"""The only user of pyroute2: namespaces, addresses, links, routes."""
