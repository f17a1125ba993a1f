"""Figures of rows in short, beside those that a test has worked out by hand."""


def cell(row, names):
    """The named figures of a row, in the order of the names."""
    return tuple(row[name] for name in names.split())


def cells(rows, names):
    return [cell(row, names) for row in rows]


def among(expected, row):
    """Of a row, the figures that are expected of it."""
    return {name: row[name] for name in expected}
