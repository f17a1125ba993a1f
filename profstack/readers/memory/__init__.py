"""Read host and device memory, trace it by line, and turn readings into rows."""
