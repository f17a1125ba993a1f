"""What was imported of Nsight Systems: per step, and beside what the torch layer saw."""

from statistics import mean, stdev

import pytest

from profstack.analysis import nsys
from profstack.analysis.nsys import nsys_tables
from profstack.storage.reader import Recorded
from tests.support.cells import cell
from tests.support.nsys_recordings import MS, STEP_S, STEPS, TORCH, import_into, rows
from tests.support.recordings import Run, by

near = pytest.approx
# As the report has them; calls of a forward pass.
MODULES = [
    {"path": path, "calls": calls, "forward_s": host * MS, "forward_device_s": device * MS}
    for _, path, _, calls, host, device in TORCH
]


# Steps of the torch layer's slice, about as long as those of the capture; the last one lasts until
# a device is done.
STEPS_S = [STEP_S * factor for factor in (1.0, 0.99, 1.01, 1.0, 1.02)]


def recorded_with(folder, **facts):
    """The recording of a run with a torch slice, and the import; and the selection of the slice."""
    run = Run(folder)
    run.torch(STEPS_S)
    run.writer.close()
    import_into(folder, **facts)
    recorded = Recorded(folder)
    return recorded, recorded.select_all("torch")


def tables(folder, modules=(), **facts):
    recorded, torch = recorded_with(folder, **facts)
    return nsys_tables(recorded, modules, torch)


# By table, the columns that are totals over the steps of the capture; all else stays as it is.
TOTALS = {
    "nsys_ranges": "calls wall_s self_s api_calls api_s kernels device_s elsewhere_s copies "
    "copied_bytes copies_s projected_s",
    "nsys_kernels": "calls device_s", "nsys_copies": "calls bytes device_s",
    "nsys_api": "calls host_s failed", "nsys_backtraces": "calls host_s",
    "nsys_samples": "self_samples total_samples", "nsys_gaps": "count total_s",
}  # fmt: skip


@pytest.mark.parametrize("steps", [STEPS, 0])
def test_totals_become_figures_per_step_or_of_a_capture_without_steps(tmp_path, steps):
    found = tables(tmp_path, steps=steps)
    for name, recorded in rows().items():
        totals = TOTALS.get(name, "").split()
        for row, before in zip(found[name], recorded, strict=True):
            expected = {key: before[key] for key in before if key not in ("delay_s", "stack")}
            for key in totals if steps else ():
                expected[key] = expected[key] and expected[key] / STEPS
            assert {column: row[column] for column in expected} == near(expected), name
    # Calls of a whole capture and calls per step do not compare.
    assert bool(found["nsys_modules"]) is bool(steps)


def test_modules_stand_beside_the_torch_layers(tmp_path):
    parts = {"path": "(optimizer)", "calls": 1, "forward_s": 1.0, "forward_device_s": None}
    # A container that is never called is in the tree for those inside it.
    uncalled = {"path": "Net.experts", "calls": None, "forward_s": None, "forward_device_s": None}
    found = by(tables(tmp_path, modules=[*MODULES, parts, uncalled])["nsys_modules"], "path")
    assert list(found) == [path for _, path, *_ in TORCH]
    stem = cell(found["Net.stem"], "host_s torch_host_s host_ratio device_ratio")
    assert stem == (near(0.9 * MS), 1.0 * MS, near(0.9), near(1.0))
    # One that is run again in a backward pass, as checkpointing does it: no forward call.
    again = cell(found["Net.blocks.0"], "calls torch_calls host_s")
    assert again == (1.0, 1, near(1.4 * MS))
    said = {path: row["disagreement"] for path, row in found.items() if row["disagreement"]}
    text = said.pop("Net.blocks.1")
    assert [figure in text for figure in ("1.40 ms", "2.90 ms", "1.10 ms")] == [True] * 3
    assert said == {"Net.head": "calls 2 against 1", "Net.dropout": nsys.ONLY_TORCH}
    assert cell(found["Net.dropout"], "calls host_ratio") == (None, None)


def apart(speed=1.0, **figures):
    row = dict.fromkeys(("host_s", "device_s", "torch_host_s", "torch_device_s"))
    row |= {"host_reach_s": 0.0, "torch_host_reach_s": 0.0, "calls": 1.0, "torch_calls": 1.0}
    return nsys.disagreement({**row, **figures}, speed, 0.0)


def test_two_differ_by_more_than_a_share_of_the_smaller_and_a_floor():
    for column, share, floor, figure in (
        ("host_s", nsys.HOST_SHARE, nsys.HOST_FLOOR_S, 100 * nsys.HOST_FLOOR_S),
        ("device_s", nsys.DEVICE_SHARE, nsys.DEVICE_FLOOR_S, 100 * nsys.DEVICE_FLOOR_S),
        ("calls", nsys.CALLS_SHARE, 0.0, 50.0),
    ):
        for small in (figure, floor / share / 10) if floor else (figure,):
            limit = max(share * small, floor)
            for factor in (1.001, 0.999):
                pair = (small, small + factor * limit)
                for own, other in (pair, pair[::-1]):
                    said = apart(**{column: own, f"torch_{column}": other})
                    assert (said is not None) is (factor > 1)
        assert not apart(**{column: None, f"torch_{column}": 9.0}) or column == "calls"
    # A module as slow as all is not slow; the sentence names the factor.
    row = {"host_s": 9 * MS, "torch_host_s": 2 * MS}
    assert "(2.00 ms x 1.29, the ratio of the steps)" in apart(1.29, **row)
    assert apart(4.5, **row) is None


def test_intervals_are_those_of_the_steps_and_slices(tmp_path):
    recorded, torch = recorded_with(tmp_path / "r")
    found = by(nsys_tables(recorded, MODULES, torch)["nsys_modules"], "path")["Net.stem"]
    # Student's 97.5 % quantiles of 11 and of 4 degrees of freedom.
    assert found["host_reach_s"] == near(2.20099 * 0.02 * 0.9 * MS / STEPS**0.5, rel=1e-3)
    share = 2.77645 * stdev(STEPS_S) / 5**0.5 / mean(STEPS_S)
    assert found["torch_host_reach_s"] == near(share * 1.0 * MS, rel=1e-3)
    # Medians of steps: of the capture 14.2 ms, of the slice one at its usual speed.
    assert nsys.nsys_facts(recorded, torch)["step_ratio"] == near(14.2 * MS / STEP_S)


def why(folder, torch=None, facts=None, **clean):
    """Why the two are not compared: of a capture of 12 steps that are clean ones of the run."""
    run = Run(folder)
    run.clean(STEPS, **clean)
    run.torch(STEPS_S, **torch or {})
    run.writer.close()
    frames = rows()
    for number, row in enumerate(frames["nsys_steps"]):
        row["step"] = number
    import_into(folder, frames, **facts or {})
    recorded = Recorded(folder)
    selection = recorded.select_all("torch")
    tables = nsys_tables(recorded, MODULES, selection)
    found = nsys.nsys_facts(recorded, selection)["not_compared"]
    said = {row["disagreement"] for row in tables["nsys_modules"]}
    warned = nsys.nsys_warnings(recorded, tables["nsys_modules"], selection)
    slugs = {"nsys-not-compared"} if found else {"nsys-disagrees"}
    assert ({each["slug"] for each in warned}, said == {None}) == (slugs, found is not None)
    assert (found or "(5 steps)") in warned[0]["text"]
    return found or ""


def test_only_the_same_steps_are_compared(tmp_path):
    all_of = dict.fromkeys(range(5), 64)
    for number, (part, given) in enumerate([
        ("", {}), ("1 of the capture's 12 steps hold evaluation", {"flags": {3: "eval"}}),
        # One batch of another size, and two.
        ("", {"batches": {3: 12}}), ("different shapes", {"batches": {3: 12, 4: 12}}),
        ("of other shapes", {"torch": {"batches": all_of}}),
        ("its ranges batch", {"facts": {"step_range": "batch"}}),
        ("every slice of the torch", {"torch": {"flags": dict.fromkeys(range(5), "eval")}}),
    ]):  # fmt: skip
        found = why(tmp_path / str(number), **given)
        assert (part in found, bool(part)) == (True, bool(found)), found
