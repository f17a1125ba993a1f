"""The memory layer: rows and files of a slice, growth over modules' calls, and giving way."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import memory_profiler
import pytest
from mprof import read_mprofile_file

from profstack.layer import SliceContext
from profstack.readers.memory import memory_profiler as by_tool
from profstack.readers.memory import readings
from profstack.readers.memory.readings import MALLOC, Reading
from profstack.wrappers.memory import MemoryWrapper, ModuleGrowth
from tests.support.set_memory import HEAP, KEPT, marked, memory_is_set, take
from tests.support.tables import cases

TEXT = Path(__file__).read_text(encoding="utf-8")
SOURCE, AT = TEXT.splitlines(), marked(TEXT)


@pytest.fixture(autouse=True)
def _own_lines(monkeypatch):
    with memory_is_set(monkeypatch, __file__):
        yield


def observe(folder, step, steps=2, left_out=(), **context):
    """What the layer captures of calls of `step`, told of steps as the engine tells it."""
    wrapper = MemoryWrapper()
    wrapper.start(SliceContext(4, "lines", steps, folder, **context))
    told, stamps = wrapper.listener(), [time.perf_counter()]
    try:
        told.step_begun(0)
        for number in range(1, steps + 1):
            step(told)
            stamps.append(time.perf_counter())
            told.step_ended(number)
            told.step_begun(number)
    finally:
        wrapper.stop()
    return wrapper.take(stamps, {7: SimpleNamespace(path="Net")}, left_out)


def rows_of(captured):
    """Rows by line of this file."""
    rows = [row for row in captured.frames["memory_lines"] if row["file"] == __file__]
    return {row["line"]: row for row in rows}


def takes_and_frees(told):
    held = take(40 << 20)  # @take
    held = None  # @free
    KEPT.append((held, take(8 << 20)))  # @keep


def test_a_slice_has_rows_by_line_and_memory_profilers_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", "abc123"])
    before = time.time()
    captured = observe(tmp_path, takes_and_frees, steps=3, left_out=(1,), first_step=17)
    rows = rows_of(captured)
    for mark, mib in (("take", 40), ("free", -40), ("keep", 8)):
        figures = {"allocated_bytes": 2 * mib << 20, "increment_bytes": 2 * mib << 20, "slice": 4}
        figures |= {"largest_bytes": max(mib, 0) << 20, "second_source": MALLOC, "occurrences": 2}
        figures |= {"source": SOURCE[AT[mark] - 1]}
        assert rows[AT[mark]].items() >= figures.items()
    assert (captured.notes, captured.truncated) == ([], None)
    assert [each.opens_in for each in captured.artifacts] == ["mprof plot", "any editor"]
    listing = (tmp_path / "lines.txt").read_text(encoding="utf-8")
    assert ("17" in listing.splitlines()[0], "-80.0 MiB" in listing) == (True, True)
    assert captured.memory_bytes > 1 << 20
    # The next slice adds to both files.
    observe(tmp_path, takes_and_frees)
    read = read_mprofile_file(str(tmp_path / "mprofile.dat"))
    assert read["cmd_line"] == "python train.py --api-key ***\n"
    assert read["timestamp"] == sorted(read["timestamp"])
    assert before - 1 <= read["timestamp"][-1] <= time.time() + 1
    # Four steps keep 8 MiB each, and a fifth one has taken 40.
    assert max(read["mem_usage"]) == pytest.approx((4 * 8 + 40) + 1000 / 2**20, abs=2e-6)
    assert (tmp_path / "lines.txt").read_text(encoding="utf-8").count("from step 0") == 1


def calls_others(told):  # @first
    KEPT.extend(parts())
    for size in (20, 5):
        held = grown(size)  # @call
        del held  # @drop


def grown(size):  # @def
    return take(size << 20)  # @grow


def parts():
    yield take(5 << 20)  # @part


def test_memory_profilers_own_figures_of_the_same_runs_stand_beside(tmp_path, monkeypatch, capsys):
    read = lambda *_, **__: 1000 + HEAP[0] / 2**20  # noqa: E731
    monkeypatch.setattr(memory_profiler, "_get_memory", read)
    rows = rows_of(observe(tmp_path, calls_others, memory_by="memory_profiler"))
    names = [f"memory_profiler_{name}_bytes" for name in ("increment", "usage")]
    names = ("increment_bytes", *names, "occurrences", "memory_profiler_occurrences")

    def figures(mark):
        found = [rows[AT[mark]].get(name) for name in names]
        return *(size and size >> 20 for size in found[:3]), *found[3:]

    # What is called is counted on the line of the call too; of a line that gives back what the line
    # before took, the most that this has ever ended with is subtracted: 20 MiB, and not 5.
    assert figures("first") == (None, 1000, 1005, None, 2)
    assert figures("call") == (0, 50, 1030, 4, 4)
    assert figures("drop") == (-50, -80, 1010, 4, 4)
    assert figures("grow") == (50, 50, 1030, 4, 4)
    assert figures("part") == (10, None, None, 2, None)
    reasons = {"first": by_tool.WHOLE, "def": by_tool.WHOLE, "grow": None}
    reasons |= {"call": f"{by_tool.CALLS}; {by_tool.REPEATED}", "drop": by_tool.REPEATED}
    reasons |= {"part": by_tool.GENERATOR}
    assert {mark: rows[AT[mark]]["memory_profiler_reason"] for mark in reasons} == reasons
    assert "profstack" not in "".join(capsys.readouterr())
    # Evaluation cannot be taken out of its figures; by default it has none.
    for context, why in (({"memory_by": "memory_profiler"}, by_tool.EVALUATION), ({}, None)):
        row = rows_of(observe(tmp_path, calls_others, left_out=(1,), **context))[AT["grow"]]
        assert (row["increment_bytes"], row.get(names[1])) == (25 << 20, None)
        assert row.get("memory_profiler_reason") == why


def test_it_gives_way_to_a_trace_function_of_the_script(tmp_path, monkeypatch):
    wrapper = MemoryWrapper()
    assert wrapper.busy_reason("lines") is None
    captured = observe(tmp_path, lambda _: sys.settrace(lambda *_: None))
    assert "sys.settrace" in str(wrapper.busy_reason("lines"))
    profiler = memory_profiler.LineProfiler(backend="psutil")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "gettrace", lambda: profiler.trace_memory_usage)
        assert "memory_profiler uses" in str(wrapper.busy_reason("lines"))
    assert ([slug for slug, _ in captured.notes], captured.frames) == (["gave-way"], {})
    assert captured.memory_bytes
    sys.settrace(None)


# Resident set, malloc, device and its peak.
MEMORY = {"A": (10, 20, 30, 40), "B": (13, 25, 37, 45), "C": (14, None, 36, 45)}
MEMORY |= {"D": (20, 30, 40, 90), "E": (1, 2, None, None), "F": (3, 9, 5, 6)}
# Steps of begun and ended calls: one inside another, one of a module that is gone, and one whose
# end is unseen because of an error.
CALLS = ("+Net A, +Net.a A, -Net.a B, +gone B, -gone D, -Net D",)
CALLS += ("+Net B, +Net.a B, -Net C, -Net.a D", "+Net.a E, -Net.a F")


@cases(
    "steps left_out expected",
    # What came after the last step is left out. torch's peak is the script's: a call's own is
    # known where it is new. Without malloc's bytes it is the resident set's.
    (2, (), [(2, 3, 2, 11, 9, 60), (2, 5, 1, 5, 7, 15)]),
    (2, (0,), [(2, 3, 1, 1, -1, None)]),
    (3, (1,), [(2, 3, 1, 10, 10, 60), (2, 5, 2, 12, None, 15)]),
)
def test_growth_of_modules_adds_up_over_the_steps_that_count(steps, left_out, expected):
    now, tracer = [], MagicMock(running=True)
    tracer.readings.now = lambda: now[0]
    growth = ModuleGrowth(tracer)
    for number, calls in enumerate(CALLS):
        for path, reading in (text.split() for text in calls.split(", ")):
            now[:] = [Reading(*MEMORY[reading])]
            for kind in ("module", "backward"):
                (growth.enter if path[0] == "+" else growth.leave)(kind, path[1:])
        if number < 2:
            growth.step_ended(number)
    modules = {3: SimpleNamespace(path="Net"), 5: SimpleNamespace(path="Net.a")}
    rows = growth.records(steps, modules, 2, left_out)
    assert sorted(tuple(row.values()) for row in rows) == expected


def test_where_malloc_does_not_tell_the_growth_of_modules_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(readings, "_mallinfo", lambda: (None, "no malloc"))

    def calls(told):
        told.enter("module", "Net")
        told.leave("module", "Net")

    captured = observe(tmp_path, calls)
    assert captured.frames["module_memory"][0]["calls"] == 2
    text = "memory of modules is growth of the resident set: no malloc"
    assert ("modules-by-resident-set", text) in captured.notes
