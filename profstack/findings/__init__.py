"""The verdict and the findings: what a report shows to be wrong, and what to do."""
