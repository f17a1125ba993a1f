"""memray: host allocations, by line, by module and by native function.

Measures: every host allocation on all threads (malloc, mmap and the like): how often, how many
bytes, and how many bytes are alive at the slice's peak, by line, module and native function.
Does not measure: device memory, objects inside Python's own pools, times, and lines or modules of
work on native threads (autograd's for a device), which have no Python stack.
Usual slowdown: 8 on a step of 1 ms, less on longer ones: its slices give no times.
Conflicts: sys.setprofile (cProfile, debuggers), another memray tracker, and memory allocators that
are preloaded.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from profstack.code_owner import Places, script_folder
from profstack.layer import Artifact, Description, Mode, SliceContext, SliceData, Wrapper
from profstack.privacy import presentable_argv
from profstack.storage.schema.column import Column, Records
from profstack.storage.schema.layer_table import LayerTable, column

# A slice with more allocations than this is read so far, and said to be cut.
MOST_RECORDS = 500_000
# Frames of a native stack that are read, from the allocator outwards.
_NATIVE_FRAMES = 12
# The command line begins within so many bytes of a capture file.
_HEAD_BYTES = 4096
# Native functions in which every allocation ends: the caller behind them says more.
_ALLOCATORS = ("operator new", "malloc", "calloc", "realloc", "posix_memalign", "mmap", "_PyObject")

_FIGURES: tuple[Column, ...] = (
    column("allocations", "REAL", "allocations", "counted"),
    column("allocated_bytes", "REAL", "bytes allocated, also those given back", "counted"),
    column("peak_bytes", "INTEGER", "bytes alive at the slice's highest moment", "counted"),
)
# A table of the layer's own.
_table = partial(LayerTable, order="allocated_bytes", largest=("peak_bytes",))


class _Forward(NamedTuple):
    """The lines of one class's `forward`, and the modules that run it."""

    first: int
    last: int
    type: str
    paths: tuple[str, ...]


class _Sums(dict[tuple[Any, ...], list[int]]):
    """Allocations, bytes and bytes at the peak by key."""

    def add(self, key: tuple[Any, ...], at: int, amount: int) -> None:
        """Add `amount` to one of the three figures of `key`."""
        self.setdefault(key, [0, 0, 0])[at] += amount

    def rows(self, slice_index: int, *names: str) -> Iterator[dict[str, Any]]:
        """Yield rows of one of the layer's tables, their keys under `names`."""
        columns = ("slice", *names, *(one.name for one in _FIGURES))
        for key, figures in self.items():
            yield dict(zip(columns, (slice_index, *key, *figures), strict=True))


class MemrayWrapper(Wrapper):
    """Drives `memray.Tracker`; one capture file for each slice."""

    name = package = "memray"
    occupies = frozenset({"sys.setprofile"})
    # It counts and is slow: a slice or two are enough.
    modes: ClassVar[tuple[Mode, ...]] = (Mode("allocations", last_round=2, turn=18, steps=3),)
    tables: ClassVar[tuple[LayerTable, ...]] = (
        _table(
            "memray_lines",
            (
                column("file", "TEXT", "source file, null where no Python code was on the stack"),
                column("line", "INTEGER", "innermost line of the user's own, else of any file"),
                *_FIGURES,
            ),
            "allocations by line",
            "The innermost line of the script's own files that was on the stack of an allocation.",
            join="lines",
        ),
        _table(
            "memray_modules",
            (
                column("path", "TEXT", "module path; * stands for one of several in its place"),
                column("type", "TEXT", "class of the module"),
                *_FIGURES,
            ),
            "allocations by module",
            "The innermost module whose forward was on the stack of an allocation.",
            join="modules",
        ),
        _table(
            "memray_functions",
            (column("function", "TEXT", "native function behind the allocator"), *_FIGURES),
            "allocations by native function",
            "The innermost native function on the stack that is no allocator itself.",
        ),
    )
    description = Description(
        technique="tracing",
        tool="memray",
        measures="every host allocation: how often, how many bytes, and bytes at the peak, by "
        "line, module and native function",
        does_not_measure="device memory, objects inside Python's own pools, times, and lines of "
        "work on native threads",
        usual_slowdown="8 on a 1 ms step",
        conflicts="sys.setprofile; another memray tracker; preloaded allocators",
    )

    def __init__(self) -> None:
        super().__init__()
        self._tracker: Any = None
        self._file: Path | None = None
        self._index = self._process = 0
        self._places = Places.of(script_folder())

    @staticmethod
    def unavailable_reason() -> str | None:
        """The package is an extra of profstack."""
        try:
            import_module("memray")
        except ImportError as error:
            return f"memray cannot be imported ({error}): pip install 'profstack[memray]'"
        return None

    def busy_reason(self, mode: str) -> str | None:
        """memray sets a profile function of its own: the script's has precedence."""
        holder = sys.getprofile()
        if holder is not None:
            return f"the script uses sys.setprofile itself ({type(holder).__name__})"
        return None

    def step_limit(self) -> int | None:
        """A few steps make enough records."""
        return 5

    def start(self, context: SliceContext) -> None:
        """Begin a capture file of the slice's own."""
        memray = import_module("memray")
        self._index, self._process = context.index, os.getpid()
        self._file = context.folder / f"slice-{context.index:04d}.bin"
        # Compressed, the file's head could not be cleared of secrets.
        place = memray.FileDestination(str(self._file), overwrite=True, compress_on_exit=False)
        self._tracker = memray.Tracker(destination=place, native_traces=True)
        _run_in_thread(self._tracker.__enter__)

    def stop(self) -> None:
        """End the capture; safe to call twice."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.__exit__(None, None, None)

    def abandon(self) -> None:
        """Leave the file to the parent: memray itself does not follow a fork."""
        file, self._file = self._file, None
        if self._process == os.getpid():
            self.stop()
            if file is not None:
                file.unlink(missing_ok=True)
        self._tracker = None

    def take(
        self, stamps: Sequence[float], modules: Mapping[int, Any], left_out: Collection[int] = ()
    ) -> SliceData:
        """Rows of the layer's three tables from the capture file, which stays as an artifact."""
        file, self._file = self._file, None
        if file is None or not file.is_file():
            return SliceData(notes=[("empty-capture", "memray wrote no file in its slice")])
        kept = _mask_command_line(file)
        sums = lines, by_module, functions = _Sums(), _Sums(), _Sums()
        reader = import_module("memray").FileReader(file)
        cut = self._read(reader, _StackPlaces(self._places, _forwards(modules.values())), sums)
        frames: dict[str, Records] = {
            "memray_lines": list(lines.rows(self._index, "file", "line")),
            "memray_modules": list(by_module.rows(self._index, "path", "type")),
            "memray_functions": list(functions.rows(self._index, "function")),
        }
        if not lines:
            return SliceData(notes=[("empty-capture", "memray saw no allocation in its slice")])
        artifacts, notes = [Artifact(file, "memray flamegraph, memray table, memray tree")], []
        if not kept:
            file.unlink()
            text = "memray's file was removed: the command line in it could not be masked"
            artifacts, notes = [], [("no-memray-file", text)]
        # A capture file does not divide its records by steps: evaluation is not left out.
        return SliceData(frames, artifacts, notes, truncated=cut, holds_all=True)

    @staticmethod
    def _read(reader: Any, places: _StackPlaces, sums: Sequence[_Sums]) -> str | None:
        """Add all records up; return what was left out, or None."""
        number, cut = 0, None
        for record in reader.get_allocation_records():
            if not record.n_allocations or record.allocator in _FREEING:
                continue
            number += 1
            if number > MOST_RECORDS:
                # The peak is read whole: memray has added it up.
                cut = f"only the first {MOST_RECORDS:,} allocations of the slice were read"
                break
            for total, key in zip(sums, places.keys(record), strict=True):
                total.add(key, 0, record.n_allocations)
                total.add(key, 1, record.size)
        for record in reader.get_high_watermark_allocation_records(merge_threads=True):
            for total, key in zip(sums, places.keys(record), strict=True):
                total.add(key, 2, record.size)
        return cut


# `memray.AllocatorType` of what gives memory back: PYMALLOC_FREE, FREE, MUNMAP.
_FREEING = (1, 5, 15)


def _mask_command_line(file: Path) -> bool:
    """Replace the command line in a capture file by one without secrets and home folder.

    Return False where it has to be replaced and was not found: the file must not be kept.
    """
    words = getattr(sys, "argv", [])
    written = " ".join(words).encode("utf-8", "surrogateescape")
    shown = " ".join(presentable_argv(words)).encode("utf-8", "backslashreplace")
    if shown == written:
        return True
    with open(file, "r+b") as stream:
        at = stream.read(_HEAD_BYTES + len(written)).find(written)
        if at < 0:
            return False
        stream.seek(at)
        # The length of the text must stay: the records follow it.
        stream.write(shown[: len(written)].ljust(len(written)))
    return True


def _run_in_thread(work: Callable[[], object]) -> None:
    """Call `work` on a thread of its own and wait; its error is raised here.

    memray knows the frames that a thread is in when tracking begins, but not those of the thread
    that begins it: there every later return out of an older frame would hide a newer one.
    """
    done, errors = _thread.allocate_lock(), []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    done.acquire()
    _thread.start_new_thread(run, ())
    done.acquire()
    if errors:
        raise errors[0]


class _StackPlaces:
    """The line, the module and the native function of a record, worked out once for each stack."""

    def __init__(self, places: Places, forwards: Mapping[str, Sequence[_Forward]]) -> None:
        self._places = places
        self._forwards = forwards
        self._python: dict[int, tuple[tuple[Any, ...], tuple[Any, ...]]] = {}
        self._native: dict[tuple[int, int], tuple[str]] = {}

    def keys(self, record: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[str]]:
        """Keys of the three tables: (file, line), (path, type), (function,)."""
        python = self._python.get(record.stack_id)
        if python is None:
            # Frames as name, file and line, innermost first.
            stack = record.stack_trace()
            own = (frame for frame in stack if self._places.is_own(frame[1]))
            _, file, line = next(chain(own, stack), (None, None, None))
            python = self._python[record.stack_id] = ((file, line), self._module(stack))
        stacks = (record.native_stack_id, record.native_segment_generation)
        native = self._native.get(stacks)
        if native is None:
            trace = record.native_stack_trace(max_stacks=_NATIVE_FRAMES)
            names = (str(name) for name, *_ in trace if not str(name).startswith(_ALLOCATORS))
            # Templates of C++ may be longer than a screen.
            function = next((name.split("(")[0][:200] for name in names), "(unknown)")
            native = self._native[stacks] = (function,)
        return *python, native

    def _module(self, stack: Iterable[tuple[str, str, int]]) -> tuple[str, str | None]:
        """The pattern of module paths whose forwards are on the stack, and the innermost class."""
        chain = [
            forward
            for name, file, line in stack
            if name == "forward"
            for forward in self._forwards.get(file, ())
            if forward.first <= line <= forward.last
        ]
        if not chain:
            return "(outside modules)", None
        innermost, *around = chain
        # A path of it lies below a path of every forward around it.
        paths = [
            path
            for path in innermost.paths
            if all(path.startswith(tuple(f"{one}." for one in outer.paths)) for outer in around)
        ]
        return _pattern(paths or innermost.paths), innermost.type


def _pattern(paths: Sequence[str]) -> str:
    """One path for several: * for a name that differs; the shortest where their depths differ."""
    parts = [path.split(".") for path in paths]
    if len({len(each) for each in parts}) > 1:
        return f"{min(paths, key=len)} and {len(paths) - 1} more"
    return ".".join(names[0] if len(set(names)) == 1 else "*" for names in zip(*parts, strict=True))


def _forwards(modules: Iterable[Any]) -> dict[str, list[_Forward]]:
    """The `forward` functions of living modules by file."""
    by_code, found = defaultdict[Any, list[Any]](list), defaultdict[str, list[_Forward]](list)
    for info in modules:
        code = getattr(getattr(type(info.alive()), "forward", None), "__code__", None)
        if code is not None:
            by_code[code].append(info)
    for code, infos in by_code.items():
        lines = [line for _, _, line in code.co_lines() if line is not None]
        paths = tuple(sorted({info.path for info in infos}))
        found[code.co_filename].append(_Forward(min(lines), max(lines), infos[0].type, paths))
    return found
