"""What torch.profiler recorded, read as columns and given to modules, lines and step parts."""
