"""A lost ledger, made again from what runs: who is asked, what follows from it, and when it has to be done."""
