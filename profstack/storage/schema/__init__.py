"""Every table and every column of a recording and of report.json, once."""
