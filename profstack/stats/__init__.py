"""Medians, intervals, resampling, warm-up and the clock."""
