"""Read what each tool recorded as rows of the recording's tables."""
