"""What is planted in a script comes first in the table where a user would look, end to end.

Each planted thing is ten times as heavy as anything else of its kind, so that ranks can be held
against it on any machine; no time is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finding_programs import run_script

from profstack.report.page_tables import operators_by_name

pytestmark = pytest.mark.timed

MIB = 2**20

HEAVY = '''\
"""A training in which a module, a function, an allocation and a list are each too much."""

import torch
from torch import nn


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(192))

    def forward(self, x):
        for _ in range(8):
            x = torch.tanh(x @ self.weight)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(192, 192)
        self.slow = Slow()
        self.last = nn.Linear(192, 4)

    def forward(self, x):
        return self.last(self.slow(self.first(x)))


def count_slowly():
    total = 0
    for number in range(150_000):
        total += number * number
    return total


def allocate():
    buffer = torch.ones(16 << 20)  # @allocation
    return buffer.numel()


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
history = []
for step in range(170):
    if step % 10 == 0:
        allocate()
    count_slowly()
    x = torch.randn(64, 192)
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(torch.ones(1 << 18))  # @leak
'''

SYNC = '''\
"""A training that asks for one number after the other."""

import torch
from torch import nn

net = nn.Linear(16, 16)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x = torch.randn(16, 16)
ones = torch.ones(4_000).unbind()
for step in range(60):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = sum(map(torch.Tensor.item, ones))  # @item
'''


def report_of(folder: Path, text: str, layers: str) -> dict[str, Any]:
    """The report of a script that was run by `profstack run`, as a user does."""
    (folder / "planted.py").write_text(text)
    return run_script(folder, "planted.py", layers)


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return report_of(tmp_path_factory.mktemp("heavy"), HEAVY, "torch,cprofile,memory,watch")


@pytest.fixture(scope="module")
def sync(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return report_of(tmp_path_factory.mktemp("sync"), SYNC, "torch")


def at(text: str, mark: str) -> int:
    lines = text.splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# @{mark}"))


def ranked(rows: list[dict[str, Any]], by: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
    """Rows with a figure, the largest first."""
    return sorted((row for row in rows if by(row) is not None), key=by, reverse=True)


@pytest.mark.parametrize("column", ["self_s", "calibrated_s"])
def test_a_slow_module_comes_first(heavy: dict[str, Any], column: str) -> None:
    rows = heavy["tables"]["modules"]
    inside = [row for row in rows if row["depth"] and not row["path"].startswith("(")]
    first, second, *_ = ranked(inside, lambda row: row[column])
    assert first["path"] == "Net.slow"
    assert first[column] > 2 * second[column]


def test_a_slow_function_comes_first(heavy: dict[str, Any]) -> None:
    rows = [row for row in heavy["tables"]["functions"] if row["phase"] == "step"]
    # The large allocation, planted for another table, may be as slow where its pages are new.
    others = [row for row in rows if "torch.ones" not in row["name"]]
    first = ranked(others, lambda row: row["self_s"])[0]
    assert (first["name"], first["own"], first["package"]) == ("count_slowly", True, "(own files)")
    # Every function belongs to somebody: the user, a package, or nobody in Python.
    whose = {row["package"] for row in rows}
    assert {"(own files)", "torch", "(built-in)"} <= whose
    assert all(row["own"] == (row["package"] == "(own files)") for row in rows)


def test_a_large_allocation_comes_first_among_the_lines(heavy: dict[str, Any]) -> None:
    first, second, *_ = ranked(heavy["tables"]["lines"], lambda row: row["largest_bytes"])
    assert first["line"] == at(HEAVY, "allocation")
    assert first["largest_bytes"] >= 63 * MIB
    assert first["largest_bytes"] > 4 * second["largest_bytes"]


def test_a_line_that_was_given_up_says_so_in_its_row(heavy: dict[str, Any]) -> None:
    rows = {row["line"]: row for row in heavy["tables"]["lines"]}
    hot = HEAVY.splitlines().index("        total += number * number") + 1
    assert rows[hot]["calls"] is None
    assert "count_slowly" in rows[hot]["reason"]
    called = at(HEAVY, "leak")
    assert (rows[called]["calls"], rows[called]["reason"]) == (1.0, None)
    assert all(row["own"] for row in rows.values())


def test_memory_that_grows_is_a_finding_at_its_line(heavy: dict[str, Any]) -> None:
    (finding,) = (each for each in heavy["findings"] if each["slug"] == "memory-growth")
    assert finding["line"] == at(HEAVY, "leak")
    growth = finding["evidence"][0]["growth_per_step_bytes"]
    assert growth == pytest.approx(MIB, rel=0.25)
    assert finding["gain_s"] is None
    assert "memory" in finding["gain_reason"]
    assert finding["title"] in heavy["said"]


def test_a_wait_for_numbers_comes_first(sync: dict[str, Any]) -> None:
    operators = operators_by_name(sync["tables"]["operators"])
    names = {"aten::item", "aten::_local_scalar_dense"}
    assert {row["name"] for row in ranked(operators, lambda row: row["calls"])[:2]} == names
    assert ranked(operators, lambda row: row["self_s"])[0]["name"] in names
    first = ranked(sync["tables"]["lines"], lambda row: row["operator_s"])[0]
    assert first["line"] == at(SYNC, "item")
    assert "torch.Tensor.item" in first["source"]
    (finding,) = (each for each in sync["findings"] if each["slug"] == "forced-synchronisation")
    assert finding["line"] == at(SYNC, "item")


def test_torchs_allocator_writes_no_line_of_the_profile(
    heavy: dict[str, Any], sync: dict[str, Any]
) -> None:
    for report in (heavy, sync):
        assert "Memory block of unknown size" not in report["said"]
