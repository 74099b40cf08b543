"""Start, inspect and stop the servers of a plan."""
