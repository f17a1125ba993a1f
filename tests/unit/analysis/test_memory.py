"""Memory and source lines: by line, by module, by owner at the peak, and over time."""

import pytest

from profstack.analysis import memory
from profstack.code_owner import FACT
from profstack.storage.vocabulary import OPTIMIZER
from tests.support.cells import cell, cells
from tests.support.recordings import module, module_times

HOME = {"roots": ["/home/u/app/"], "libraries": ["/opt/python/"], "profstack": ["/opt/profstack/"]}
HOME |= {"working": "/home/u/", "text": False, "sep": "/"}
TRAIN = "/home/u/app/train.py"
TREE = [module(1, "Net"), module(2, "Net.fc", 1)]
near = pytest.approx


def held(number, **values):
    place = {"file": "train.py", "line": number, "source": f"line {number}"}
    return {**place, "second_source": "allocator", "occurrences": 2, **values}


def memory_slice(run, mode, *rows, **frames):
    frames = {"memory_lines": list(rows), **frames}
    run.slice("memory", [0.05, 0.04], layer="memory", mode=mode, number=0, frames=frames)


def test_memory_of_a_line_is_all_that_the_layer_saw(run):
    first = held(5, usage_bytes=90, increment_bytes=64, largest_bytes=61, allocated_bytes=60)
    later = held(5, usage_bytes=80, increment_bytes=-4, largest_bytes=66, allocated_bytes=1)
    other = held(6, increment_bytes=7, allocated_bytes=5, second_source=None)
    memory_slice(run, "discovery", first, other)
    lost = {**other, "allocated_bytes": None}
    memory_slice(run, "lines", {**later, "second_source": "rss"}, lost)
    found = memory.memory_lines(run.recorded())
    sums = {"increment_bytes": 60, "allocated_bytes": 61, "occurrences": 4}
    most = {"usage_bytes": 90, "largest_bytes": 66}
    words = {"source": "line 5", "memory_source": "allocator; rss"}
    assert found["train.py", 5].items() >= {**words, **sums, **most}.items()
    # Of two runs of a line of which one has no second figure, the sum is not known.
    names = "allocated_bytes increment_bytes usage_bytes memory_source"
    assert cell(found["train.py", 6], names) == (None, 14, None, None)


def timed(number, file=TRAIN, **values):
    times = {"python_s": 0.003, "operator_s": 0.006, "backward_s": 0.0}
    return {"file": file, "line": number, "source": "x", "calls": 3, **times, **values}


def test_the_users_lines_come_first_with_figures_per_step(run, monkeypatch):
    monkeypatch.setenv("HOME", "/home/u")
    run.writer.facts({FACT: HOME})
    rows = [timed(2, "/opt/python/lib.py"), timed(9, backward_s=0.0045, device_s=0.03)]
    rows.append(timed(5, calls=None, reason="it ran too often"))
    run.torch([0.012] * 2, mode="lines", frames={"lines": rows})
    again = [timed(5, operator_s=0.001), timed(9, calls=4)]
    run.torch([0.012] * 3, mode="lines", frames={"lines": again})
    recorded, watched = run.recorded(), {(TRAIN, 7): {"watch_share": 0.25, "source": "y"}}
    traced = recorded.select("torch", (("lines",),))
    found = memory.lines(recorded, traced, memory.memory_lines(recorded), watched)
    own = [("~/app/train.py", line, True) for line in (5, 7, 9)]
    assert cells(found, "file line own") == [*own, ("/opt/python/lib.py", 2, False)]
    sums = (7 / 5, 0.012 / 5, 0.0012, 0.0009, 0.006)
    assert cell(found[2], "calls operator_s python_s backward_s device_s") == near(sums)
    expected = (None, "it ran too often", near(0.007 / 5))
    assert cell(found[0], "calls reason operator_s") == expected
    assert cell(found[1], "watch_share source calls reason") == (0.25, "y", None, None)


def test_lines_by_module_have_their_parts_of_the_line_per_step(run):
    parts = {None: (3, 0.0031), 2: (0, 0.0047), OPTIMIZER: (0, 0.0012)}
    rows = [timed(5, module_id=at, calls=n, operator_s=s) for at, (n, s) in parts.items()]
    rows = [{name: row[name] for name in row if name != "source"} for row in rows]
    run.torch([0.012] * 4, mode="lines", frames={"module_lines": rows})
    recorded = run.recorded()
    found = memory.module_lines(recorded, recorded.select("torch", (("lines",),)))
    times = {row["module"]: (row["operator_s"], row["calls"]) for row in found}
    expected = {None: (0.0031 / 4, 0.75), "Net.fc": (0.0047 / 4, 0), "(optimizer)": (0.0003, 0)}
    assert times == {module: near(figures) for module, figures in expected.items()}


def test_the_allocator_goes_before_the_growth_over_calls(run):
    def of_modules():
        recorded = run.recorded()
        return memory.module_memory(recorded, recorded.select("torch", (("detail",),)))

    rows = [{"module_id": 1, "host_net_bytes": 8192, "device_net_bytes": 512}]
    rows[0]["device_peak_bytes"] = 65536
    rows.append({"module_id": 1, "host_net_bytes": 100, "device_peak_bytes": 70000})
    memory_slice(run, "lines", module_memory=[{"calls": 1, **row} for row in rows])
    found, sources = of_modules()
    device = {"device_net_bytes": 256, "device_peak_bytes": 70000}
    assert found[1] == {"host_net_bytes": 4146, **device}
    assert "malloc" in sources["modules.host_net_bytes"]
    times = {"module_times": [module_times(1, 1, 0.5, host_net_bytes=600)]}
    for peak, more in ((240, times), (190, {})):
        peaks = [{"module_id": 1, "host_peak_bytes": peak, "device_peak_bytes": None}]
        run.torch([0.5], mode="detail", number=1, frames={**more, "module_peaks": peaks})
    found, sources = of_modules()
    # Peaks of different steps are never added.
    assert found[1] == {"host_net_bytes": 300, "host_peak_bytes": 240, **device}
    assert "torch's allocator" in sources["modules.host_net_bytes"]


def owners(**peaks):
    ends = {"device": "cpu", "start_bytes": 7, "end_bytes": 3}
    return [{"kind": k, "peak_bytes": n, "largest_bytes": n, **ends} for k, n in peaks.items()]


def holder(kind, number, size, backward=None):
    row = {"device": "cpu", "kind": kind, "module_id": number, "bytes": size, "tensors": 1}
    return {**row, "operator": None if backward is None else "aten::mm", "backward": backward}


def observed(run, *holders, mode="detail", **peaks):
    frames = {"peak_holders": list(holders), "memory_owners": owners(**peaks)}
    run.torch([0.5], mode=mode, number=1, frames=frames)


def test_the_step_with_the_highest_peak_counts_whole(run):
    observed(run, holder("parameters", 1, 990), parameters=990)
    held = [holder("temporaries", -5, 100, 0), holder("parameters", 1, 600)]
    held += [holder("temporaries", 2, 240, 1), holder("activations", None, 30, 0)]
    held += [holder("not attributed", 1, 20), holder("temporaries", -2, 60, 0)]
    observed(run, *held, parameters=600, temporaries=450)
    observed(run, holder("parameters", 1, 980), parameters=980)
    recorded = run.recorded()
    found = cells(memory.memory_owners(recorded), "kind peak_bytes")
    assert sorted(found) == [("parameters", 600), ("temporaries", 450)]
    rows = memory.peak_holders(recorded)
    assert cells(rows, "module bytes backward") == [
        ("Net", 600, None), ("Net.fc", 240, True), ("(outside modules)", 100, False),
        ("(loss)", 60, False), (None, 30, False), ("Net", 20, None)]  # fmt: skip
    assert [row["share"] for row in rows] == [row["bytes"] / 1050 for row in rows]
    # Work outside modules, of no module, and of an unknown kind has no owner.
    assert memory.peak_facts(recorded) == (1050, near(900 / 1050))


def test_of_many_readings_each_stretch_keeps_its_extremes(run, monkeypatch):
    monkeypatch.setattr(memory, "MOST_SAMPLES", 4)
    samples = enumerate([5, 1, 7, 3, 9, 2, 4])
    same = {"frame": 1, "weight": 1.0}
    run.writer.write({"watch_samples": [{"t_s": t, "rss_bytes": n, **same} for t, n in samples]})
    assert cells(memory.memory_rows(run.recorded()), "rss_bytes") == [(1,), (7,), (9,), (2,)]
