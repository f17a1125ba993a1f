"""Rows of one kind added up: by columns of few different values, on arrays.

A capture may have a million kernels of a hundred names. Values are numbered once; all else is
done on the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from profstack.torchtrace.columns import Bools, Ints


@dataclass(frozen=True)
class Coded:
    """A column by numbers of its different values; below 0 stands for None."""

    codes: Ints
    values: Sequence[Any]

    @classmethod
    def of(cls, column: Any) -> Coded:
        """The column of a frame; what is missing in it becomes None."""
        codes, values = pd.factorize(np.asarray(column))
        return cls(codes.astype(np.int64), values.tolist())

    def at(self, positions: Ints) -> Coded:
        """The same of the rows at `positions`; None where a position is below 0."""
        if not len(self.codes):
            return Coded(np.full(len(positions), -1, np.int64), self.values)
        return Coded(np.where(positions >= 0, self.codes[positions], -1), self.values)

    def value(self, row: int) -> Any:
        """The value of one row."""
        code = int(self.codes[row])
        return self.values[code] if code >= 0 else None


@dataclass(frozen=True)
class Groups:
    """Rows with the same values in some columns."""

    number: Ints
    count: int
    # A row of each group.
    first: Ints

    @classmethod
    def by(cls, *columns: Coded) -> Groups:
        """Group by all of these columns."""
        frame = pd.DataFrame({place: column.codes for place, column in enumerate(columns)})
        number = frame.groupby(list(frame), sort=False).ngroup().to_numpy(np.int64)
        first = np.flatnonzero(~frame.duplicated().to_numpy(np.bool_))
        return cls(number, len(first), first)

    @property
    def calls(self) -> Ints:
        """Rows in each group."""
        return np.bincount(self.number, minlength=self.count)

    def sums(self, values: Ints | Bools) -> Ints:
        """The values of each group added up."""
        total = np.zeros(self.count, np.int64)
        np.add.at(total, self.number, values.astype(np.int64))
        return total

    def longest(self, values: Ints) -> Ints:
        """The largest value of each group; at least 0."""
        found = np.zeros(self.count, np.int64)
        np.maximum.at(found, self.number, values)
        return found
