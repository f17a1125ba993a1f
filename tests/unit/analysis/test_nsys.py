"""What was imported of Nsight Systems: per step, and beside what the torch layer saw."""

import pytest

from profstack.analysis import nsys
from profstack.analysis.nsys import nsys_tables
from profstack.storage.reader import Recorded, Selection
from tests.support.cells import cell
from tests.support.nsys_recordings import MS, STEP_S, STEPS, TORCH, US, import_into, rows
from tests.support.recordings import Run, by

near = pytest.approx
# As the report has them; calls of a forward pass.
MODULES = [
    {"path": path, "calls": calls, "forward_s": host * MS, "forward_device_s": device * MS}
    for _, path, _, calls, host, device in TORCH
]


def imported(folder, frames=None, **facts):
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    import_into(folder, frames, **facts)
    return Recorded(folder)


def tables(folder, frames=None, modules=(), **facts):
    return nsys_tables(imported(folder, frames, **facts), modules, None)


# By table, the columns that are totals over the steps of the capture; all else stays as it is.
TOTALS = {
    "nsys_ranges": "calls wall_s self_s api_calls api_s kernels device_s elsewhere_s copies "
    "copied_bytes copies_s",
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


def test_figures_that_follow_from_others(tmp_path):
    found = tables(tmp_path)
    # The mean delay of one kernel, whatever the number of steps; unknown without a call.
    kernels = by(found["nsys_kernels"], "range_name")
    assert kernels["Net.head"]["delay_s"] == near(300 * US)
    assert cell(kernels[None], "delay_s in_graph") == (None, False)
    assert found["nsys_ranges"][0]["on_steps_thread"] is True
    copy = by(found["nsys_copies"], "direction")["host to device"]
    assert copy["bytes_per_s"] == near(38_535_168 / (3.1 * MS))
    shares = {row["symbol"]: row["self_share"] for row in found["nsys_samples"]}
    own = {"PyEval_EvalFrameDefault": 60, "at::native::conv2d": 30, "memcpy": 6}
    assert shares == near({name: count / 96 for name, count in own.items()})
    stacks = by(found["nsys_backtraces"], "source")
    assert stacks["cuda"]["stack"] == ["at::item(int, int) (libtorch.so)", "main"]
    assert stacks["cpu"]["stack"][1] == "unknown function (python3.12)"
    frames = {"nsys_ranges": [row | {"device_s": None} for row in rows()["nsys_ranges"]]}
    frames["nsys_backtraces"] = [rows()["nsys_backtraces"][0] | {"stack": None}]
    found = tables(tmp_path / "unknown", frames)
    for name in ("nsys_ranges", "nsys_modules"):
        assert {row["device_s"] for row in found[name]} == {None}
    assert found["nsys_backtraces"][0]["stack"] == []


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
    for number, modules in enumerate(([], [row | {"calls": None} for row in MODULES])):
        found = tables(tmp_path / str(number), modules=modules)["nsys_modules"]
        assert {row["disagreement"] for row in found} == {None}
        assert [row["path"] for row in found][:2] == ["Net", "Net.stem"]


def test_a_module_in_several_places_is_summed_and_one_inside_itself_is_not(tmp_path):
    # Ranges of a millisecond: node, parent, kind, name, if in the steps' thread.
    ranges = [
        (1, None, "step", "step", 1), (2, 1, "module", "Net", 1), (3, 2, "module", "Net.stem", 1),
        (4, 3, "region", "Net.stem", 1), (5, 4, "module", "Net.stem", 1),
        (6, 1, "module", "Net.stem", 1), (7, 1, "module", "Net.alone", 1),
        (8, None, "module", "Net.stem", 0), (9, None, "module", "Net.head", 0),
        (10, 1, "backward", "backward", 1), (11, 10, "forward", "forward", 1),
        (12, 11, "module", "Net", 1)]  # fmt: skip
    pattern = rows()["nsys_ranges"][0] | {"calls": STEPS, "wall_s": STEPS * MS}
    names = ("node", "parent", "kind", "name", "on_steps_thread")
    frames = {"nsys_ranges": [pattern | dict(zip(names, row, strict=True)) for row in ranges]}
    found = by(tables(tmp_path, frames, MODULES)["nsys_modules"], "path")
    # Threads of their own count where the steps' thread never calls the module: replicas.
    assert [found[name]["calls"] for name in ("Net.stem", "Net", "Net.head")] == [2.0, 1.0, 1.0]
    assert found["Net.stem"]["host_s"] == near(2 * MS)
    assert found["Net.alone"]["disagreement"] == nsys.ONLY_NSYS
    assert list(found)[-1] == "Net.alone"
    frames = {"nsys_ranges": [row | {"domain": "mine"} for row in rows()["nsys_ranges"]]}
    assert tables(tmp_path / "other", frames, MODULES)["nsys_modules"] == []


def test_runs_that_were_not_equally_fast_do_not_disagree_for_that(tmp_path):
    run = Run(tmp_path / "r")
    # The median counts: the last step lasts until a device is done.
    torch = run.torch([STEP_S, 0.9 * STEP_S, 1.1 * STEP_S, STEP_S, 9 * STEP_S])
    run.writer.close()
    frames = rows()
    for row in (*frames["nsys_ranges"], *frames["nsys_steps"]):
        row["wall_s"] *= 0.5
    # A step of 0.5 * 14.2 ms over one of 14 ms.
    frames["nsys_steps"][-1]["wall_s"] = 1.0
    import_into(tmp_path / "r", frames)
    recorded = Recorded(tmp_path / "r")
    for selection, apart in ((Selection([torch], None, 5, 0.1), False), (None, True)):
        found = by(nsys_tables(recorded, MODULES, selection)["nsys_modules"], "path")
        assert found["Net.stem"]["host_ratio"] == near(0.45)
        assert (found["Net.stem"]["disagreement"] is not None) is apart
        said = found["Net.blocks.1"]["disagreement"]
        assert "700 µs against 2.90 ms" in said
        assert ("steps that took 0.51 times" in said) is not apart


def apart(speed=1.0, **figures):
    row = dict.fromkeys(("host_s", "device_s", "torch_host_s", "torch_device_s"))
    return nsys.disagreement({**row, "calls": 1.0, "torch_calls": 1.0, **figures}, speed)


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
    # A slow run is told where it changes what is seen, and a module as slow as all is not.
    row = {"host_s": 9 * MS, "torch_host_s": 2 * MS}
    for speed, told in ((1.29, False), (1.31, True), (0.71, False), (0.69, True)):
        assert (f"{speed:.2f} times" in apart(speed, **row)) is told
    assert apart(4.5, **row) is None
