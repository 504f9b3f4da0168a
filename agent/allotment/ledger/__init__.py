"""The lease ledger on disk: schema, group commit, history, integrity, set-aside."""
