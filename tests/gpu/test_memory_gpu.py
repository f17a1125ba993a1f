"""The device's memory: the step's peak, what holds it, and a history that opens in memory_viz."""

import pickle

import pytest

from tests.support.gpu_programs import NEEDS_GPU, module, program, python, reported_program

pytestmark = NEEDS_GPU

WIDTH = 2048
WEIGHTS = 2 * (WIDTH * WIDTH + WIDTH) * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="module")
def report(folder):
    return reported_program(folder, program(width=WIDTH))


def test_the_peak_is_torchs_own_and_profstack_takes_none_of_it(report, folder):
    rows = [row for row in report["tables"]["memory_owners"] if row["device"] == "cuda:0"]
    peak = report["said"]["peak"]
    assert sum(row["peak_bytes"] for row in rows) == pytest.approx(peak, rel=0.02)
    assert f'"peak": {peak},' in python(folder, "program.py")
    largest = {row["kind"]: row["largest_bytes"] for row in rows}
    for kind in ("parameters", "gradients", "optimizer state"):
        # Blocks are multiples of 512 bytes, of which a bias takes several.
        assert largest[kind] == pytest.approx(WEIGHTS, rel=0.01), kind
    # A module's peak is its activations.
    wide = module(report, "Net.wide")
    assert wide["device_peak_bytes"] >= WIDTH * WIDTH * 4
    assert wide["device_net_bytes"] == pytest.approx(WIDTH * WIDTH * 4, rel=0.05)
    rows = [row for row in report["tables"]["memory"] if row["device_allocated_bytes"] is not None]
    allocated = [row["device_allocated_bytes"] for row in rows]
    assert 0 <= min(allocated) <= max(allocated) <= peak
    assert all(row["device_allocated_bytes"] <= row["device_reserved_bytes"] for row in rows)


def test_the_history_is_one_that_memory_viz_opens(report, folder):
    layer = next(layer for layer in report["layers"] if layer["name"] == "memory")
    paths = [artifact["path"] for artifact in layer["artifacts"]]
    (snapshot,) = [path for path in paths if path.endswith(".pickle")]
    content = pickle.loads((folder / "rec" / snapshot).read_bytes())
    assert content["segments"]
    assert any(content["device_traces"])
