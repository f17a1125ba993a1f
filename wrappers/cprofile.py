"""cProfile: every call of a Python or built-in function, with callers and callees.

Measures: calls, own time and time with callees of every Python and built-in function that the
workload's thread enters while the slice lasts, exactly, with its callers, by tracing.
Does not measure: lines, other threads, functions that were running before the slice began (they
have no row, and what they call has no caller), anything inside a built-in function.
Usual slowdown: 1.01 on a 100 ms step, 1.25 on a 0.3 ms step; more where calls are very short.
What it adds to a call is measured once, after a slice, and recorded (see `callcost`).
Conflicts: anything else that uses `sys.setprofile`, and a torch profiler with stacks.
"""

from __future__ import annotations

import json
import marshal
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar

from profstack import callcost
from profstack.stepcalls import count_calls
from profstack.wrapper import Artifact, Captured, Description, Mode, Records, SliceContext, Wrapper

# file, line, name: what pstats and snakeviz call a function by.
Function = tuple[str, int, str]

_OWN_PARTS = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in {
        os.path.dirname(os.path.abspath(__file__)),
        os.path.dirname(os.path.abspath(sys.modules["profstack"].__file__ or "")),
    }
)


# The fact under which the cost of a call is recorded.
COST = "cprofile_cost"

# What profstack's wrappers of torch's functions ask before they pass a call on.
_ASKED = frozenset({"is_compiling", "is_dynamo_compiling"})

# Profilers that lost their place to the script's own. One that is freed switches off whatever
# profiles by then, up to Python 3.11; so these are never freed.
_LOST: list[Any] = []


class CProfileWrapper(Wrapper):
    """Drives `_lsprof.Profiler`, the engine of cProfile, and writes what pstats reads."""

    name = "cprofile"
    occupies = frozenset({"sys.setprofile"})
    modes: ClassVar[tuple[Mode, ...]] = (
        Mode("timed", turn=50),
        Mode("shared", 0, 0),
        Mode("whole", 0, 0),
    )
    from_start: ClassVar[bool] = True
    description = Description(
        technique="tracing",
        tool="cProfile",
        measures="calls, own time and time with callees of every Python and built-in function, "
        "with its callers",
        does_not_measure="lines, other threads, and functions that were already running when the "
        "slice began",
        usual_slowdown="1.01 on a 100 ms step, 1.25 on a 0.3 ms step",
        conflicts="another user of sys.setprofile; torch.profiler with stacks",
    )

    def __init__(self) -> None:
        super().__init__()
        self._profiler: Any = None
        self._slice: int | None = None
        self._folder: Path | None = None
        self._handed_over: Any = None
        self._lost = False
        self._guarded = False
        self._total: dict[Function, list[Any]] = {}
        self._has_cost = False

    @staticmethod
    def version() -> str | None:
        """cProfile comes with Python: its version is Python's."""
        return f"Python {platform.python_version()}"

    def busy_reason(self, mode: str) -> str | None:
        """Another profile function is set: the script's own profiler has precedence."""
        holder = sys.getprofile()
        if holder is not None and holder is not self._handed_over:
            return f"the script uses sys.setprofile itself ({type(holder).__name__})"
        monitoring = getattr(sys, "monitoring", None)
        if monitoring is not None:
            tool = monitoring.get_tool(monitoring.PROFILER_ID)
            if tool is not None and self._handed_over is None:
                return f"another profiling tool is active ({tool})"
        return None

    def start(self, context: SliceContext) -> None:
        """Begin a profile of its own for this slice."""
        from _lsprof import Profiler

        self._slice = context.index
        self._folder = context.folder
        self._lost = False
        self._profiler, self._handed_over = self._handed_over, None
        if self._profiler is None:
            self._profiler = Profiler()
        self._profiler.enable()
        if sys.version_info >= (3, 12):
            self._guard()

    def hand_over(self, profiler: Any) -> None:
        """Take over a profiler that runs since the script's first line."""
        self._handed_over = profiler

    def take_startup(self, profiler: Any, folder: Path) -> Captured:
        """Rows without a slice, and `startup.prof`, of the time before the first step."""
        profiler.disable()
        table = function_table(profiler.getstats())
        functions, calls = records(table, None)
        return Captured(
            frames={"functions": functions, "calls": calls, **self._cost()},
            artifacts=[write_prof(folder / "startup.prof", table)],
        )

    def stop(self) -> None:
        """Stop profiling, unless the script has put its own profiler in our place."""
        self._unguard()
        if self._profiler is None or self._lost:
            return
        if sys.version_info < (3, 12) and sys.getprofile() is not self._profiler:
            self._lost = True
            _LOST.append(self._profiler)
            return
        self._profiler.disable()

    def _guard(self) -> None:
        """A second profiler raises where there is one: ours ends when the script's begins."""
        import cProfile

        def enable(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            self.stop()
            self._lost = True
            return profiler.enable(*args, **kwargs)

        kind: Any = cProfile.Profile
        if "enable" not in vars(kind):
            kind.enable = enable
            self._guarded = True

    def _unguard(self) -> None:
        if self._guarded:
            import cProfile

            kind: Any = cProfile.Profile
            del kind.enable
            self._guarded = False

    def take(
        self,
        stamps: Sequence[float],
        modules: Mapping[int, Any],
        left_out: Collection[int] = (),
    ) -> Captured:
        """Rows of `functions` and `calls`; adds the slice to `profile.prof`."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return Captured()
        if self._lost:
            return Captured(
                notes=[("gave-way", "cProfile gave way to a profiler the script started itself")]
            )
        stats = profiler.getstats()
        if self._folder is not None:
            made = sum(entry.callcount for entry in stats)
            count_calls(self._folder.parent, made, len(stamps) - 1)
        table = function_table(stats)
        if not table:
            return Captured(notes=[("empty-capture", "cProfile saw no call in its slice")])
        merge_tables(self._total, table)
        artifacts = []
        if self._folder is not None:
            artifacts = [write_prof(self._folder / "profile.prof", self._total)]
        functions, calls = records(table, self._slice)
        # A profile is one sum: single steps cannot be taken out of it.
        frames = {"functions": functions, "calls": calls, **self._cost()}
        return Captured(frames=frames, artifacts=artifacts, holds_all=True)

    def _cost(self) -> dict[str, Records]:
        """What a call costs under cProfile, as a fact; once, and none where it cannot be told.

        Measured between slices, where the script stands still anyway.
        """
        cost = None if self._has_cost else callcost.measure()
        if cost is None:
            return {}
        self._has_cost = True
        return {"facts": [{"key": COST, "value": json.dumps(cost)}]}


def is_own(code_file: str) -> bool:
    """Whether a source file belongs to profstack itself."""
    return code_file.startswith(_OWN_PARTS) or os.path.realpath(code_file).startswith(_OWN_PARTS)


def function_of(code: CodeType | str) -> Function:
    """The name pstats gives to a function."""
    if isinstance(code, str):
        return ("~", 0, code)
    return (code.co_filename, code.co_firstlineno, code.co_name)


def function_table(stats: Iterable[Any]) -> dict[Function, list[Any]]:
    """`[primitive calls, calls, own s, total s, {caller: the same four}]` of every function.

    Several functions of one name at one place are added up. The rows of profstack's own
    functions are taken out; what they called is handed to their caller.
    """
    table: dict[Function, list[Any]] = {}
    edges: dict[Function, dict[Function, list[Any]]] = defaultdict(dict)
    for entry in stats:
        function = function_of(entry.code)
        _add(table.setdefault(function, [0, 0, 0.0, 0.0, {}]), _four(entry))
        for call in entry.calls or ():
            callee = function_of(call.code)
            _add(edges[callee].setdefault(function, [0, 0, 0.0, 0.0]), _four(call))
    for function, callers in edges.items():
        if function in table:
            table[function][4] = callers
    for function in _innermost_first(table):
        # One may have gone with another, as its only callee.
        if function in table:
            _splice(table, function)
    for function in [name for name in table if "_lsprof.Profiler" in name[2]]:
        del table[function]
    return table


def _four(entry: Any) -> tuple[int, int, float, float]:
    calls = entry.callcount
    return calls - entry.reccallcount, calls, entry.inlinetime, entry.totaltime


def _add(into: list[Any], four: Iterable[Any]) -> None:
    for position, value in enumerate(four):
        into[position] += value


def _innermost_first(table: dict[Function, list[Any]]) -> list[Function]:
    """profstack's own functions, those that call others of them after those they call."""
    left = {function for function in table if is_own(function[0])}
    order = []
    while left:
        callers = {caller for callee in left for caller in table[callee][4] if caller != callee}
        # A circle of them has no innermost one: any will do.
        function = next((own for own in sorted(left) if own not in callers), min(left))
        left.remove(function)
        order.append(function)
    return order


def _splice(table: dict[Function, list[Any]], own: Function) -> None:
    """Take one of profstack's functions out.

    The one function it wraps goes to its callers; what it calls besides (clocks, mostly) is no
    work of the script's and is taken off.
    """
    around = {caller: four for caller, four in table[own][4].items() if caller in table}
    # One that only others of them call hands on to those; they are taken out later.
    callers = {caller: four for caller, four in around.items() if not is_own(caller[0])} or around
    del table[own]
    for function, row in list(table.items()):
        through = row[4].pop(own, None)
        if through is None:
            continue
        if function[0] == "~" or function[2] in _ASKED:
            _take_off(table, function, through)
        else:
            _pass_on(row[4], callers, through)


def _take_off(table: dict[Function, list[Any]], function: Function, calls: list[Any]) -> None:
    """Take calls off a function; if none are left, also those that it made itself."""
    row = table[function]
    _add(row, (-value for value in calls))
    row[2:4] = max(row[2], 0.0), max(row[3], 0.0)
    if row[1] > 0:
        return
    del table[function]
    for callee, its in list(table.items()):
        through = its[4].pop(function, None)
        if through is not None and callee in table:
            _take_off(table, callee, through)


def _pass_on(
    into: dict[Function, list[Any]], callers: dict[Function, list[Any]], through: list[Any]
) -> None:
    """Give the calls made through a wrapper to the wrapper's callers.

    A wrapper calls what it wraps once per call, so that the counts are known; the times are
    shared out as the wrapper's are, which differ by its own fraction of a microsecond.
    """
    counts = sum(four[1] for four in callers.values())
    spent = sum(four[3] for four in callers.values())
    if len(callers) > 1 and counts != through[1]:
        return
    for caller, (primitive, calls, _, total) in callers.items():
        share = total / spent if spent else calls / counts
        part = (primitive, calls) if len(callers) > 1 else through[:2]
        times = (through[2] * calls / counts, through[3] * share)
        _add(into.setdefault(caller, [0, 0, 0.0, 0.0]), (*part, *times))


def merge_tables(into: dict[Function, list[Any]], table: dict[Function, list[Any]]) -> None:
    """Add one slice's table to the table of all slices."""
    for function, row in table.items():
        sums = into.setdefault(function, [0, 0, 0.0, 0.0, {}])
        _add(sums, row[:4])
        for caller, four in row[4].items():
            _add(sums[4].setdefault(caller, [0, 0, 0.0, 0.0]), four)


def write_prof(path: Path, table: dict[Function, list[Any]]) -> Artifact:
    """Write a table as a file that pstats, snakeviz and gprof2dot read.

    Of a function that has the primitive calls first, of its callers all calls first.
    """
    stats = {
        function: (
            *row[:4],
            {
                caller: (calls, primitive, own, total)
                for caller, (primitive, calls, own, total) in row[4].items()
            },
        )
        for function, row in table.items()
    }
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        marshal.dump(stats, file)
    return Artifact(path, "snakeviz, pstats, gprof2dot")


def records(
    table: dict[Function, list[Any]], index: int | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Records of the tables `functions` and `calls`; index None is the start-up."""
    functions, calls = [], []
    for (file, line, name), (primitive, count, own, total, callers) in table.items():
        functions.append(
            {
                "slice": index,
                "file": file,
                "line": line,
                "name": name,
                "calls": count,
                "primitive_calls": primitive,
                "self_s": own,
                "total_s": total,
            }
        )
        for (caller_file, caller_line, caller_name), four in callers.items():
            calls.append(
                {
                    "slice": index,
                    "caller_file": caller_file,
                    "caller_line": caller_line,
                    "caller_name": caller_name,
                    "callee_file": file,
                    "callee_line": line,
                    "callee_name": name,
                    "primitive_calls": four[0],
                    "calls": four[1],
                    "self_s": four[2],
                    "total_s": four[3],
                }
            )
    return functions, calls
