"""Modules on rows that were gathered: which work row by row, and which inputs were gathered."""

import pytest
import torch
from torch import nn

from profstack.capture.gathered_rows import GatheredRows

STATES = torch.ones(5, 3, requires_grad=True)
LINKS = torch.arange(20) % 5
PLACE = {"file": "train.py", "line": 7}


def noted_of(*calls):
    """What is noted of calls: name, module and input of each."""
    notes = GatheredRows(torch, lambda: PLACE)
    for name, module, given in calls:
        notes.call_begins(name, module, given)
    return [(each["module"], each["rows"], each["sources"]) for each in notes.facts()]


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)


def one(value):
    return (value,), {}


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (STATES.index_select(0, LINKS), (20, 5)),
        (STATES[LINKS], (20, 5)),
        (STATES[None][:, LINKS], (20, 5)),
        (STATES[LINKS.view(4, 5)], (20, 5)),
        # Fewer than twice as many; other things were done to them; nothing is recorded.
        (STATES[LINKS[:9]], None),
        (STATES[LINKS[:10]], (10, 5)),
        (STATES[LINKS] + 1, None),
        (STATES.detach()[LINKS], None),
        # Columns were gathered.
        (STATES.t()[:, LINKS][:, :3], None),
        (torch.ones(3, 2, requires_grad=True)[:, [0, 1, 0]], None),
    ],
)
def test_inputs_that_were_gathered(value, rows):
    assert noted_of(("Net.message", nn.Linear(3, 4), one(value))) == (
        [] if rows is None else [("Net.message", *rows)]
    )


@pytest.mark.parametrize(
    ("module", "is_told"),
    [
        (nn.Linear(3, 4), True),
        (nn.Sequential(nn.LayerNorm(3), nn.Sequential(nn.Linear(3, 4), nn.GELU())), True),
        # Rows have to do with each other, or are drawn; and nothing is to be spared.
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), False),
        (nn.Sequential(nn.Linear(3, 4), nn.Dropout()), False),
        (nn.Sequential(nn.ReLU()), False),
        (nn.LayerNorm(3), False),
        (nn.Bilinear(3, 3, 4), False),
        (nn.Sequential(nn.LayerNorm((5, 3)), nn.Linear(3, 4)), False),
        # What is inside may do anything with the rows.
        (nn.TransformerEncoderLayer(3, 1), False),
        (nn.Sequential(nn.Linear(3, 3), Own()), False),
        (nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.Identity()), True),
    ],
)
def test_modules_that_work_row_by_row(module, is_told):
    assert bool(noted_of(("Net.message", module, one(STATES[LINKS])))) is is_told


def test_all_calls_have_to_be_on_gathered_rows_and_parts_are_in_the_whole():
    inner = nn.Linear(3, 4)
    whole, gathered = nn.Sequential(inner), one(STATES[LINKS])
    calls = [("Net.a", whole, gathered), ("Net.a.0", inner, gathered)]
    assert noted_of(*calls, calls[0]) == [("Net.a", 40, 10)]
    assert noted_of(*calls, ("Net.a", whole, one(STATES))) == [("Net.a.0", 20, 5)]
    empty = torch.ones(0, 3, requires_grad=True)[torch.zeros(0, dtype=torch.long)]
    one_by_one, _ = torch.ones(2, 3, requires_grad=True).clone().unbind()
    with torch.no_grad():
        one_by_one.add_(1)
    for given in (None, ((STATES[LINKS], 2), {}), ((STATES[LINKS],), {"x": 1}), ((3,), {}),
                  one(empty), one(one_by_one)):  # fmt: skip
        assert noted_of(("Net.b", inner, given)) == []
        # It is a call all the same.
        assert noted_of(("Net.b", inner, gathered), ("Net.b", inner, given)) == []
    notes = GatheredRows(torch, lambda: PLACE)
    notes.call_begins("Net.b", inner, gathered)
    assert notes.facts()[0]["place"] == PLACE
