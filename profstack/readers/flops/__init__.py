"""Count floating-point operations: formulas, the counting mode, and other counters."""
