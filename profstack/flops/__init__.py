"""Counting floating-point operations: formulas, the counting mode, and the other counters."""
