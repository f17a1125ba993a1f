"""What a run on a device tells: its kernels and their modules, why it is idle, memory, medians."""

import pickle

import pytest

from tests.support.gpu_programs import NEEDS_GPU, module, program, python, reported_program
from tests.support.tables import cases

pytestmark = NEEDS_GPU
WIDTH = 2048
WEIGHTS = 2 * (WIDTH * WIDTH + WIDTH) * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("device")


@pytest.fixture(scope="module")
def report(folder):
    return reported_program(folder, program(width=WIDTH))


def test_products_are_their_modules_and_busy_time_is_the_kernels(report):
    columns = ("forward_device_s", "backward_device_s")
    whole, wide, out = (
        [module(report, path)[column] for column in columns]
        for path in ("Net", "Net.wide", "Net.out")
    )
    assert min(*wide, *out) > 0
    # The same products forward; the inputs of the first one need no gradient.
    assert wide[0] == pytest.approx(out[0], rel=0.3)
    assert 1.4 < out[1] / out[0] < 3.0
    assert wide[1] < 0.8 * out[1]
    assert module(report, "(optimizer)")["forward_device_s"] > 0
    # A module holds what is inside.
    assert all(each >= one + other for each, one, other in zip(whole, wide, out, strict=True))
    assert {row["device"] for row in report["tables"]["kernels"]} == {"cuda:0"}
    copies = ("Memcpy", "Memset")
    kernels = [row for row in report["tables"]["kernels"] if not row["name"].startswith(copies)]
    rows = report["tables"]["launches"]
    busy = sum(row["device_busy_s"] for row in rows) / len(rows)
    # One stream: nothing runs beside another.
    assert sum(row["device_s"] for row in kernels) == pytest.approx(busy, rel=0.1)
    calls = sum(row["calls"] for row in kernels)
    assert report["launching"]["kernels"] == pytest.approx(calls, rel=0.2)
    assert all(row["launched_by"] == "runtime calls" for row in rows)


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


def test_the_host_runs_ahead_and_the_device_is_timed(tmp_path):
    # Steps long enough that the device sets the pace: its median is the steps' rate.
    report = reported_program(tmp_path, program(steps=120, width=8192))
    assert report["benchmark"]["device_median_s"] > 2 * 8192**3 * (2 + 3) / 2e15
    launches = report["tables"]["launches"]
    busy, idle = (sum(row[f"device_{each}_s"] for row in launches) for each in ("busy", "idle"))
    assert busy / (busy + idle) > 0.8


LATE = "time.sleep(0.005)"


@cases(
    "where does cause",
    *(("late", "loss.item(); time.sleep(0.005)", "synchronisation"), ("late", LATE, "host late")),
    ("early", LATE, "data wait"),
)
def test_a_pause_of_the_host_has_its_cause(tmp_path, where, does, cause):
    tables = reported_program(tmp_path, program(steps=120, width=1024, **{where: does}))["tables"]
    gaps = {row["cause"]: row["total_s"] for row in tables["gaps"]}
    assert max(gaps, key=gaps.get) == cause, gaps
    assert 0.004 < gaps[cause] < 0.008
    if cause == "host late":
        # Idle and busy are the step.
        idle = [row["device_idle_s"] for row in tables["launches"]]
        assert min(idle) > 0.004
        assert min(row["device_busy_s"] for row in tables["launches"]) > 0
        assert sum(gaps.values()) == pytest.approx(sum(idle) / len(idle), rel=0.05)


def test_a_copy_that_the_device_waits_for(tmp_path):
    early = 'pageable = torch.randn(64, 512, 512).to("cuda")'
    tables = reported_program(tmp_path, program(steps=80, width=1024, early=early))["tables"]
    copies = [row["name"] for row in tables["kernels"] if "HtoD" in row["name"]]
    assert copies
    assert all("Pageable" in name for name in copies)
    assert {row["cause"] for row in tables["gaps"]} & {"copy", "data wait"}
