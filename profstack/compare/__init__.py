"""Two sides compared: what changed, by how much beyond noise, and where.

Each side is one recording or several of the same program. Everything is made from their reports
alone, so that report.json suffices on both sides.
"""
