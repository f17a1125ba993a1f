"""`profstack bench`: measure one callable, its variants, and common mistakes of timing."""
