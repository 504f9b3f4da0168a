"""What ADD, DEL, CHECK, GC and STATUS do: the lease book with its order of requests, its commits and its listeners."""
