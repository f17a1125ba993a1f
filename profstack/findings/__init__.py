"""Findings: rules that name a problem with its evidence; one file per family of rules."""
