"""memray in a run: bytes by line, module and native function, against large allocations."""

import pytest

from tests.support.processes import run_python
from tests.support.recorded_runs import report_of

pytest.importorskip("memray")
SCRIPT = """
import numpy
import torch
class Wide(torch.nn.Module):
    def forward(self, x):
        return x.new_empty(10_000_000)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.wide = Wide()
    def forward(self, x):
        self.wide(x)
        return self.linear(x)
model = Net()
for step in range(60):
    scratch = numpy.empty(20_000_000, numpy.uint8)
    scratch = numpy.empty(5_000_000, numpy.uint8)
    model(torch.ones(2, 4)).sum().backward()
"""


def about(size):
    return pytest.approx(size, rel=0.01)


def test_bytes_are_at_the_lines_and_modules_that_allocate_and_secrets_nowhere(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = "--layers memray --budget 1000 -o rec train.py --token=s3cr3t tail"
    run_python("-m", "profstack", "run", "-q", *words.split(), cwd=tmp_path)
    report = report_of(tmp_path / "rec")
    row = next(each for each in report["layers"] if each["name"] == "memray")
    assert row["status"] == "recorded", row["reason"]
    tables = {each["name"]: each["rows"] for each in report["layer_tables"]}
    texts = SCRIPT.split("\n")
    rows = {texts[row["line"] - 1]: row for row in tables["memray_lines"] if row["file"]}
    found = {
        size: (row["allocated_bytes"], row["peak_bytes"])
        for text, row in rows.items()
        for size in ("20_000_000", "5_000_000")
        if f"({size}" in text
    }
    # At the highest moment, inside the module, the small array is alive and the large one gone.
    assert found == {"20_000_000": (about(2e7), 0), "5_000_000": (about(5e6), about(5e6))}
    by_path = {row["path"]: row["allocated_bytes"] for row in tables["memray_modules"]}
    assert by_path["Net.wide"] == about(40_000_000)
    assert by_path["(outside modules)"] >= 25_000_000
    heaviest = tables["memray_functions"][0]
    assert heaviest["allocated_bytes"] >= 20_000_000
    assert not heaviest["function"].startswith(("malloc", "operator new"))
    files = {path: path.read_bytes() for path in tmp_path.glob("rec/**/*") if path.is_file()}
    assert [path for path, text in files.items() if b"s3cr3t" in text] == []
