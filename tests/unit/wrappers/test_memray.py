"""The memray layer over a stand-in of the tool: sums by line, module and native function."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from profstack import layer
from profstack.wrappers import memray as memray_layer
from tests.support.tables import cases

HERE = __file__
WORK = (("work", HERE, 3),)


def record(size, n=1, stack=WORK, native=("fill(int)",), allocator=6):
    made = SimpleNamespace(size=size, n_allocations=n, allocator=allocator, stack=stack)
    made.stack_id, made.native_stack_id, made.native_segment_generation = stack, native, 0
    made.native, made.stack_trace = native, lambda: list(stack)
    made.native_stack_trace = lambda max_stacks: [(name, "", 0) for name in native[:max_stacks]]
    return made


class Tool:
    def __init__(self, records=(), peak=()):
        self.records, self.peak, self.written, self.started_on = records, peak, b"", []

    def FileDestination(self, path, overwrite, compress_on_exit):  # noqa: N802
        assert (overwrite, compress_on_exit) == (True, False)
        return Path(path)

    def Tracker(self, destination, native_traces):  # noqa: N802
        def enter():
            self.started_on.append(threading.get_ident())
            destination.write_bytes(self.written)

        return SimpleNamespace(__enter__=enter, __exit__=lambda *_: self.started_on.append(0))

    def FileReader(self, path):  # noqa: N802
        reader = SimpleNamespace(get_allocation_records=lambda: iter(self.records))
        reader.get_high_watermark_allocation_records = lambda merge_threads: iter(self.peak)
        return reader


@pytest.fixture
def tool(monkeypatch):
    found = Tool()
    monkeypatch.setattr(memray_layer, "import_module", lambda name: found)
    monkeypatch.setattr(memray_layer, "script_folder", lambda: str(Path(HERE).parent))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return found


def captured(folder, modules=()):
    wrapper = memray_layer.MemrayWrapper()
    wrapper.start(layer.SliceContext(4, "allocations", 3, folder))
    wrapper.stop()
    wrapper.stop()
    return wrapper.take([0.0, 1.0], dict(enumerate(modules)))


def rows(data):
    """Allocations, bytes and bytes at the peak by key, of each of the three tables."""
    tables = [[tuple(row.values()) for row in table] for table in data.frames.values()]
    assert [*data.frames] == ["memray_lines", "memray_modules", "memray_functions"]
    assert {row[0] for table in tables for row in table} == {4}
    return [{row[1:-3]: row[-3:] for row in table} for table in tables]


OUTSIDE = ("(outside modules)", None)


def test_a_slice_has_its_three_tables_and_the_tools_file(tool, tmp_path, monkeypatch):
    main, away = (("work", HERE, 5), ("main", HERE, 9)), (("f", "/x.py", 2),)
    grow, deep = ("operator new", *["mmap"] * 10, "grow"), ("calloc",) * 12 + ("grow",)
    tool.records = [record(100, 2), record(10, 3, (*away, *WORK)), record(7, 1, main, grow)]
    # Records of memory that is given back are none.
    tool.records += [record(1000, n, allocator=by) for n, by in ((1, 1), (1, 5), (1, 15), (0, 6))]
    tool.records += [record(20, 4, away, deep), record(3, 1, (), ("malloc", "fill(int)"))]
    tool.peak = [record(70), record(5, 1, away, grow), record(6, 1, main)]
    data = captured(tmp_path)
    # The innermost line of the user's own.
    lines = {(HERE, 3): (5, 110, 70), (HERE, 5): (1, 7, 6)}
    lines |= {("/x.py", 2): (4, 20, 5), (None, None): (1, 3, 0)}
    functions = {("fill",): (6, 113, 76), ("grow",): (1, 7, 5), ("(unknown)",): (4, 20, 0)}
    assert rows(data) == [lines, {OUTSIDE: (11, 140, 81)}, functions]
    assert [each.path for each in data.artifacts] == [tmp_path / "slice-0004.bin"]
    assert (data.notes, data.truncated, data.holds_all) == ([], None, True)
    # It was begun on a thread of its own, and ended once.
    assert tool.started_on[0] not in (0, threading.get_ident())
    assert tool.started_on[1:] == [0]
    assert 250_000 < memray_layer.MOST_RECORDS < 1_000_000
    for most, cut in ((5, False), (2, True)):
        monkeypatch.setattr(memray_layer, "MOST_RECORDS", most)
        data = captured(tmp_path)
        assert (data.truncated is not None) is cut
    # The peak is read whole.
    assert " 2 " in data.truncated
    assert rows(data)[1] == {OUTSIDE: (5, 110, 81)}


class Outer:
    def forward(self):
        pass


class Inner:
    def forward(self):
        first = 1
        last = first
        del last


def info(path, module):
    return SimpleNamespace(path=path, type=type(module).__name__, alive=lambda: module)


def frame(kind, after, name="forward"):
    return (name, HERE, kind.forward.__code__.co_firstlineno + after)


IN_INNER, IN_OUTER = frame(Inner, 3), frame(Outer, 1)


@cases(
    "paths stack expected",
    ("Net.a Net.b", [IN_INNER], ("Net.*", "Inner")),
    ("Net.a", [frame(Inner, 4)], OUTSIDE),
    ("Net.a", [frame(Inner, 3, "backward")], OUTSIDE),
    # Their paths are below one of the module that called them.
    ("Net.a.x Net.b.x Out.x Net.c", [IN_INNER, IN_OUTER], ("Out.x", "Inner")),
    ("Net.a.x Net.c Net.b.x", [IN_INNER], ("Net.c and 2 more", "Inner")),
    ("Net.a", [IN_OUTER], ("Out", "Outer")),
)
def test_a_module_is_known_by_the_forwards_on_the_stack(tool, tmp_path, paths, stack, expected):
    tool.records, inner = [record(5, stack=tuple(stack))], Inner()
    inners = [info(path, inner) for path in paths.split()]
    data = captured(tmp_path, [info("Out", Outer()), *inners, info("gone", None)])
    assert rows(data)[1] == {expected: (1, 5, 0)}


@pytest.mark.parametrize(("written", "left"), [
    (b"head train.py --token=abc tail", b"head train.py --token=*** tail"),
    (b"h" * 4096 + b"train.py --token=abc", b"h" * 4096 + b"train.py --token=***"),
    (b"head of another form", None),
])  # fmt: skip
def test_a_command_line_is_masked_or_the_file_not_kept(tool, tmp_path, monkeypatch, written, left):
    monkeypatch.setattr(sys, "argv", ["train.py", "--token=abc"])
    tool.written, tool.records, file = written, [record(5)], tmp_path / "slice-0004.bin"
    data = captured(tmp_path)
    assert (file.read_bytes() if file.exists() else None) == left
    assert len(data.artifacts) == (left is not None)
    assert [slug for slug, _ in data.notes] == ([] if left else ["no-memray-file"])
    assert rows(data)[0] == {(HERE, 3): (1, 5, 0)}
