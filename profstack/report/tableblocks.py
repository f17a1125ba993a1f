"""A table that is wider than the screen, cut into blocks that stand under one another.

Every block begins with the column that tells the rows apart, so that no figure stands without the
name that it belongs to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Sequence

# Between two columns.
_GAP = 2
# Longer texts are folded within their column; so much of the screen is theirs.
_OF_A_LEAD, _OF_A_TEXT = 0.45, 0.3


def blocks(
    columns: Sequence[Sequence[str]],
    is_text: Sequence[bool],
    width: int,
    lead: int | None = None,
) -> list[list[int]]:
    """Places of the columns of each block, that which leads it first; all in one where they fit.

    A column is its heading and its cells as they are printed; `width` is in characters. Without
    `lead` the column of words that tells most rows apart leads.
    """
    natural = [max(map(cell_len, column), default=0) for column in columns]
    if len(columns) < 2 or sum(natural) + _GAP * (len(columns) - 1) <= width:
        return [list(range(len(columns)))]
    lead = _lead(columns, is_text) if lead is None else lead
    room = max(width, 40)
    taken = [
        min(wide, int(room * (_OF_A_LEAD if place == lead else _OF_A_TEXT))) if text else wide
        for place, (wide, text) in enumerate(zip(natural, is_text, strict=True))
    ]
    found: list[list[int]] = []
    left = 0
    for place in range(len(columns)):
        if place == lead:
            continue
        if not found or taken[place] + _GAP > left:
            found.append([lead])
            left = room - taken[lead]
        found[-1].append(place)
        left -= taken[place] + _GAP
    return found


def _lead(columns: Sequence[Sequence[str]], is_text: Sequence[bool]) -> int:
    """The column of words that tells most rows apart; the first where none has words."""
    words = [place for place, text in enumerate(is_text) if text]
    return max(words, key=lambda place: len(set(columns[place])), default=0)
