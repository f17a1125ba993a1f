"""The exact numbers of a step as a file for the repository: read, write, compare and explain."""
