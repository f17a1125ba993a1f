"""The GPU check fails in no row: layers, kernels, medians, peaks, planted mistakes, batch sizes."""

import json

import pytest

from tests.support.gpu_programs import NEEDS_GPU
from tests.support.processes import CHECKOUT, run_python

pytestmark = NEEDS_GPU


@pytest.mark.parametrize("part", ["mlp", "mistakes", "lock", "compare", "throughput"])
def test_no_row_of_the_check_fails(tmp_path, part):
    words = ("--parts", part, "--json", tmp_path / "table.json")
    run_python(CHECKOUT / "scripts" / "gpu_check.py", *words, code=None, timeout=600)
    rows = json.loads((tmp_path / "table.json").read_text("utf-8"))["rows"]
    assert rows
    assert [row for row in rows if row["verdict"] == "FAILED"] == []
