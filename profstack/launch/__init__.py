"""Start a script, watch over its process, and follow its progress."""
