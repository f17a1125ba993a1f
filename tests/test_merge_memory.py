"""Memory in the report: by line, by module, and over the time of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_recording import TORCH_S, Run, by, module, module_times

MIB = 2**20


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An empty recording."""
    return Run(tmp_path / "rec")


def line(number: int, **values: Any) -> dict[str, Any]:
    """A record of `memory_lines`."""
    place = {"file": "train.py", "line": number, "source": f"line {number}"}
    return {**place, "second_source": "torch's allocator", "occurrences": 1, **values}


def memory_slice(run: Run, mode: str, rows: list[dict[str, Any]], steps: int = 1) -> int:
    """A slice of the memory layer."""
    return run.slice(
        "memory", [0.05] * steps, layer="memory", mode=mode, number=0, frames={"memory_lines": rows}
    )


def test_lines_hold_what_all_memory_slices_saw(run: Run) -> None:
    first = line(5, usage_bytes=90, increment_bytes=64, largest_bytes=64, allocated_bytes=60)
    later = line(5, usage_bytes=80, increment_bytes=-4, largest_bytes=0, allocated_bytes=1)
    memory_slice(run, "discovery", [first])
    memory_slice(run, "lines", [later, line(6, usage_bytes=80, increment_bytes=0)])
    run.clean()
    timed = {"file": "train.py", "line": 6, "source": "line 6", "calls": 3, "python_s": 0.003}
    run.torch([TORCH_S] * 3, mode="lines", frames={"lines": [timed]})
    run.layers(torch="recorded", memory="recorded")
    report = run.finish()
    rows = by(report["tables"]["lines"], "line")
    assert list(rows) == [5, 6]
    assert [
        rows[5][name] for name in ("usage_bytes", "increment_bytes", "largest_bytes", "occurrences")
    ] == [90, 60, 64, 2]
    assert (rows[5]["allocated_bytes"], rows[5]["memory_source"]) == (61, "torch's allocator")
    # Of one line each layer saw its part; what it did not see is null, with a reason.
    assert (rows[5]["source"], rows[5]["python_s"]) == ("line 5", None)
    assert (rows[6]["python_s"], rows[6]["increment_bytes"]) == (pytest.approx(0.001), 0)
    assert "traced" in report["cells_reason"]["lines.python_s"]


def test_lines_stand_without_the_torch_layer(run: Run) -> None:
    memory_slice(run, "discovery", [line(5, increment_bytes=64)])
    run.layers(memory="recorded")
    report = run.finish()
    (row,) = report["tables"]["lines"]
    assert row["increment_bytes"] == 64
    assert report["columns_reason"]["lines.python_s"] == "the layer torch was not asked for"


def test_a_second_source_that_could_not_tell_says_why(run: Run) -> None:
    rows = [line(5, increment_bytes=64, allocated_bytes=None, second_source="no allocator hook")]
    memory_slice(run, "discovery", rows)
    run.layers(memory="recorded")
    report = run.finish()
    assert report["tables"]["lines"][0]["memory_source"] == "no allocator hook"
    assert "second source" in report["columns_reason"]["lines.allocated_bytes"]


def module_memory(run: Run, **more: Any) -> None:
    """One step in which the memory layer saw the model's calls."""
    rows = [{"module_id": 1, "calls": 1, "host_net_bytes": 8192, **more}]
    run.slice(
        *("memory", [0.05] * 2), layer="memory", mode="lines", number=1,
        frames={"module_memory": rows},
    )  # fmt: skip
    run.writer.replace("modules", [module(1, "Net")])


def test_the_allocator_goes_before_the_resident_set(run: Run) -> None:
    module_memory(run)
    times = [module_times(1, 1, 0.5, host_net_bytes=4096)]
    run.torch([0.5], mode="detail", number=1, frames={"module_times": times})
    report = run.finish()
    (row,) = report["tables"]["modules"]
    assert row["host_net_bytes"] == 4096
    source = report["columns_source"]["modules.host_net_bytes"]
    assert source == "what torch's allocator gave out and took back, 1 step"


def test_the_resident_set_stands_where_nothing_else_does(run: Run) -> None:
    module_memory(run, device_net_bytes=1024, device_peak_bytes=65536)
    report = run.finish()
    (row,) = report["tables"]["modules"]
    assert (row["host_net_bytes"], row["device_net_bytes"]) == (4096, 512)
    assert row["device_peak_bytes"] == 65536
    source = report["columns_source"]["modules.host_net_bytes"]
    assert source == (
        "growth of malloc's bytes in use, or of the resident set where the notes say so, over the "
        "module's calls, 2 steps"
    )


def owner(kind: str, start: int, peak: int, device: str = "cpu") -> dict[str, Any]:
    """A record of `memory_owners`."""
    sizes = {"start_bytes": start, "peak_bytes": peak, "largest_bytes": peak, "end_bytes": start}
    return {"device": device, "kind": kind, **sizes}


def holder(
    kind: str, number: int | None, nbytes: int, operator: str | None = None, device: str = "cpu"
) -> dict[str, Any]:
    """A record of `peak_holders`."""
    taken = None if operator is None else 0
    return {
        "device": device,
        "kind": kind,
        "module_id": number,
        "operator": operator,
        "backward": taken,
        "tensors": 1,
        "bytes": nbytes,
    }


def test_the_peak_is_told_by_who_holds_it(run: Run) -> None:
    run.writer.replace("modules", [module(1, "Net")])
    low = {
        "memory_owners": [owner("parameters", 10, 10)],
        "peak_holders": [holder("parameters", 1, 10)],
    }
    high = {
        "memory_owners": [owner("parameters", 600, 600), owner("temporaries", 0, 400)],
        "peak_holders": [
            holder("temporaries", -5, 100, "aten::cat"),
            holder("parameters", 1, 600),
            holder("temporaries", 1, 240, "aten::mm"),
            holder("temporaries", -2, 60, "aten::sum"),
        ],
        "module_peaks": [{"module_id": 1, "host_peak_bytes": 240, "device_peak_bytes": None}],
        "module_times": [module_times(1, 1, 0.5, host_net_bytes=0)],
    }
    for frames in (low, high):
        run.torch([0.5], mode="detail", number=1, frames=frames)
    run.layers(torch="recorded")
    report = run.finish()
    kinds = by(report["tables"]["memory_owners"], "kind")
    # Of two steps that with the higher peak, whole: peaks of different steps are never added.
    assert kinds["parameters"]["start_bytes"] == 600
    assert kinds["temporaries"]["peak_bytes"] == 400
    rows = report["tables"]["peak_holders"]
    assert [(row["module"], row["bytes"], row["share"]) for row in rows] == [
        ("Net", 600, 0.6),
        ("Net", 240, 0.24),
        ("(outside modules)", 100, 0.1),
        ("(loss)", 60, 0.06),
    ]
    assert [row["backward"] for row in rows] == [None, False, False, False]
    assert rows[0]["operator"] is None
    assert "before the step" in report["cells_reason"]["peak_holders.operator"]
    facts = report["attribution"]
    assert facts["memory_peak_bytes"] == 1000
    # Outside modules is not whose it is.
    assert facts["memory_attributed_share"] == pytest.approx(0.9)
    (row,) = [row for row in report["tables"]["modules"] if row["path"] == "Net"]
    assert row["host_peak_bytes"] == 240
    assert "gave out and took back" in report["columns_source"]["modules.host_peak_bytes"]
    assert "before the step" in report["columns_source"]["memory_owners.start_bytes"]


def test_the_peak_of_an_accelerator_goes_before_the_hosts(run: Run) -> None:
    run.writer.replace("modules", [module(1, "Net")])
    frames = {
        "memory_owners": [
            owner("inputs", 900, 900),
            owner("parameters", 300, 300, "cuda:0"),
            owner("not attributed", 100, 100, "cuda:0"),
        ],
        "peak_holders": [
            holder("inputs", None, 900),
            holder("parameters", 1, 300, device="cuda:0"),
            holder("not attributed", None, 100, device="cuda:0"),
        ],
        "module_times": [module_times(1, 1, 0.5)],
    }
    run.torch([0.5], mode="detail", number=1, frames=frames)
    report = run.finish()
    facts = report["attribution"]
    assert facts["memory_peak_bytes"] == 400
    assert facts["memory_attributed_share"] == pytest.approx(0.75)
    shares = [(row["device"], row["share"]) for row in report["tables"]["peak_holders"]]
    assert shares == [("cpu", 1.0), ("cuda:0", 0.75), ("cuda:0", 0.25)]


def test_without_a_watched_step_nothing_is_said_of_owners(run: Run) -> None:
    run.torch([0.5] * 3, frames={"module_times": [module_times(1, 1, 0.5)]})
    run.writer.replace("modules", [module(1, "Net")])
    run.layers(torch="recorded")
    report = run.finish()
    assert report["tables"]["memory_owners"] == report["tables"]["peak_holders"] == []
    assert report["attribution"]["memory_peak_bytes"] is None
    assert report["attribution"]["memory_attributed_share"] is None
    reason = report["columns_reason"]["modules.host_peak_bytes"]
    assert reason == "no slice watched what torch's allocator gives out"


def test_memory_over_time_holds_the_watch_too(run: Run) -> None:
    run.clean(5)
    run.writer.write(
        {
            "memory": [{"t_s": 1.05, "step": 5, "rss_bytes": 5 * MIB}],
            "watch_samples": [
                {"t_s": 1.025, "frame": 1, "rss_bytes": 4 * MIB, "weight": 1.0},
                {"t_s": 0.5, "frame": 1, "rss_bytes": 2 * MIB, "weight": 1.0},
                {"t_s": 0.6, "frame": 1, "rss_bytes": None, "weight": 1.0},
                {"t_s": 9.0, "frame": 1, "rss_bytes": 6 * MIB, "weight": 1.0},
            ],
        }
    )
    rows = run.finish()["tables"]["memory"]
    assert [(row["t_s"], row["step"], row["rss_bytes"]) for row in rows] == [
        (0.5, None, 2 * MIB),
        (1.025, 2, 4 * MIB),
        (1.05, 5, 5 * MIB),
        (9.0, None, 6 * MIB),
    ]


def test_a_long_watch_keeps_the_least_and_the_largest(run: Run) -> None:
    samples = [
        {"t_s": 0.01 * number, "frame": 1, "rss_bytes": 1000 + number % 7, "weight": 1.0}
        for number in range(50_000)
    ]
    samples[31_234]["rss_bytes"] = 99_999
    samples[7]["rss_bytes"] = 1
    run.writer.write({"watch_samples": samples})
    rows = run.finish()["tables"]["memory"]
    assert len(rows) <= 20_000
    sizes = [row["rss_bytes"] for row in rows]
    assert (min(sizes), max(sizes)) == (1, 99_999)
    times = [row["t_s"] for row in rows]
    assert times == sorted(times)


def test_regions_are_of_clean_steps_where_those_entered_them(run: Run) -> None:
    def seen(path: str, calls: int, wall_s: float) -> dict[str, Any]:
        return {"path": path, "calls": calls, "wall_s": wall_s}

    run.clean(5, frames={"region_times": [seen("augment", 10, 0.02)]})
    run.torch(
        [TORCH_S] * 3,
        frames={"region_times": [seen("augment", 6, 9.0), seen("augment/crop", 3, 0.009)]},
    )
    run.clean(5, frames={"region_times": [seen("augment", 10, 0.03)]})
    rows = by(run.finish()["tables"]["regions"], "path")
    assert rows["augment"]["calls"] == pytest.approx(2.0)
    assert rows["augment"]["wall_s"] == pytest.approx(0.005)
    assert rows["augment"]["measured_in"] == "clean slices"
    assert rows["augment/crop"]["calls"] == pytest.approx(1.0)
    assert "with a layer" in rows["augment/crop"]["measured_in"]
    assert rows["augment"]["device_s"] is None
