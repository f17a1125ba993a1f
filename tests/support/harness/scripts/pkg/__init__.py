"""A package whose module is run with -m."""
