"""The node daemon: composition of sources, plans, lease book, ledger and socket."""
