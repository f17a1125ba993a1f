"""Measuring steps without watching them: the clock, warm-up and the statistics of step times."""
