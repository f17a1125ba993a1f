"""Show a report: as a page, as text in a terminal, and as JSON."""
