"""The search for the largest batch on a device, up to where its memory ends."""

import json

from tests.support.gpu_programs import NEEDS_GPU, python

pytestmark = NEEDS_GPU

# 4 MiB for an item's inputs, and as much for what comes of it.
_TARGET = """
import torch

def target(batch_size=1):
    inputs = torch.randn(batch_size, 1024, 1024, device="cuda")
    return torch.nn.Linear(1024, 1024).cuda(), (inputs,)
"""
LIMIT = 1 << 30


def test_the_search_ends_where_memory_does(tmp_path):
    (tmp_path / "target.py").write_text(_TARGET, encoding="utf-8")
    options = ("--throughput", "--layers", "none", "--repeat", "10", "--memory-limit", "1GiB")
    python(tmp_path, "-m", "profstack", "bench", "-q", *options, "-o", "rec", "target.py:target")
    benchmark = json.loads((tmp_path / "rec" / "report.json").read_text("utf-8"))["benchmark"]
    (found,) = benchmark["throughput_limits"]
    assert 64 <= found["largest_batch"] <= LIMIT // (8 << 20)
    assert "memory" in found["limited_by"]
    (refused,) = [row for row in benchmark["throughput"] if row["status"] == "refused"]
    assert refused["batch_size"] == found["largest_batch"] + 1
    assert "OutOfMemoryError" in refused["reason"]
    measured = [row for row in benchmark["throughput"] if row["status"] == "measured"]
    assert all(row["peak_memory_bytes"] < 1.1 * LIMIT for row in measured)
    assert measured[-1]["items_per_s"] > 0
