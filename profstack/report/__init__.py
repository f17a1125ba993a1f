"""The report: page data from the merged recording, then HTML, text and JSON."""
