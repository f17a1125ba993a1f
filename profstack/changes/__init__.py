"""Changes that `profstack try` makes to a run from outside: one module per family."""
