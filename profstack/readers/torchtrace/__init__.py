"""Read what torch.profiler recorded, and give it to modules, lines and step parts."""
