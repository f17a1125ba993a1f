"""Tables of cases in short, and what is read from rows and texts."""

import ast

import pytest


def values(text):
    """Rows of `a 1.5 None; b 2 x=1,y=2`: words, figures and keywords; `-` is no keyword."""
    return [[_value(word) for word in row.split()] for row in text.split(";")]


def _value(word):
    if "=" in word:
        return {name: _value(each) for name, each in (one.split("=") for one in word.split(","))}
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return {} if word == "-" else word


def cases(names, *rows, **more):
    """A test for each row of a table; rows of words and figures alone may be one text."""
    read = values if " " in names else lambda text: [_value(row.strip()) for row in text.split(";")]
    many = [read(row) if isinstance(row, str) else [row] for row in rows]
    found = [row for each in many for row in each]
    return pytest.mark.parametrize(names.replace(" ", ","), found, **more)


def entries(text):
    """The cells of rows `a | b // c | d`, which may be over several lines."""
    return [row.split(" | ") for row in text.strip().replace("\n", " // ").split(" // ")]


def of(row, columns):
    """Columns of a row, or keys of a finding; null where it has none."""
    return [row.get(name) for name in columns.split()]


def in_ns(rows, columns):
    """Columns of each row; times in whole nanoseconds."""

    def value(row, name):
        found = row.get(name)
        return round(found * 1e9) if name.endswith("_s") and found is not None else found

    return [tuple(value(row, name) for name in columns.split()) for row in rows]


def near(*expected):
    """A list of figures give or take their rounding; of all else exactly."""
    inner = (list, tuple, dict, str)
    return [each if isinstance(each, inner) else pytest.approx(each) for each in expected]


def missing(text, *words):
    return [each for each in words if each not in text]


def rows_of(columns, *rows, **same):
    """A row for each tuple, with what is the same in all."""
    return [dict(zip(columns.split(), each, strict=True)) | same for each in rows]


def cells(table, key):
    """The cells of one column of a table of the page."""
    at = [column.key for column in table.columns].index(key)
    return [row[at] for row in table.rows]
