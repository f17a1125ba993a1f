"""The engine in the measured process: step rules, slices, hooks and regions."""
