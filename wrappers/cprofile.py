"""cProfile: every call of a Python or built-in function, with callers and callees.

Measures: calls, own time and time with callees of every Python and built-in function that the
workload's thread enters while the slice lasts, exactly, with its callers, by tracing.
Does not measure: lines, other threads, functions that were running before the slice began (they
have no row, and what they call has no caller), anything inside a built-in function.
Usual slowdown: 1.01 on a 100 ms step, 1.25 on a 0.3 ms step; more where calls are very short.
What it adds to a call is measured once, after a slice, and recorded.
Conflicts: anything else that uses `sys.setprofile`, and a torch profiler with stacks.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from profstack.layer import Description, Mode, SliceContext, SliceData, Wrapper, count_calls
from profstack.readers import cprofile
from profstack.readers.cprofile import Table, function_table, merge_tables, records, write_prof
from profstack.storage.schema.column import Records

# The fact under which the cost of a call is recorded.
COST = "cprofile_cost"

# Profilers replaced by the script's own. Freeing one switches off any running profiler, up to
# Python 3.11; so these are never freed.
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
        self._handed_over: Any = None
        self._lost = False
        self._guarded = False
        self._total: Table = {}
        self._has_cost = False

    @staticmethod
    def version() -> str | None:
        """Return the version of Python, which cProfile is a part of."""
        return f"Python {platform.python_version()}"

    def busy_reason(self, mode: str) -> str | None:
        """Return why the script's own profiler has precedence, if it has one."""
        holder, monitoring = sys.getprofile(), getattr(sys, "monitoring", None)
        if holder is not None and holder is not self._handed_over:
            return f"the script uses sys.setprofile itself ({type(holder).__name__})"
        if monitoring is None or self._handed_over is not None:
            return None
        tool = monitoring.get_tool(monitoring.PROFILER_ID)
        return f"another profiling tool is active ({tool})" if tool is not None else None

    def start(self, context: SliceContext) -> None:
        """Begin the profile of this slice."""
        from _lsprof import Profiler

        self._context = context
        self._lost = False
        self._profiler, self._handed_over = self._handed_over or Profiler(), None
        self._profiler.enable()
        if sys.version_info >= (3, 12):
            self._guard()

    def hand_over(self, profiler: Any) -> None:
        """Take over a profiler that has run since the script's first line."""
        self._handed_over = profiler

    def take_startup(self, profiler: Any, folder: Path) -> SliceData:
        """Return rows without a slice, and `startup.prof`, of the time before the first step."""
        profiler.disable()
        table = function_table(profiler.getstats())
        functions, calls = records(table, None)
        return SliceData(
            frames={"functions": functions, "calls": calls, **self._cost()},
            artifacts=[write_prof(folder / "startup.prof", table)],
        )

    def stop(self) -> None:
        """Stop profiling, unless the script's own profiler has replaced ours."""
        if self._guarded:
            import cProfile

            kind: Any = cProfile.Profile
            del kind.enable
            self._guarded = False
        if self._profiler is None or self._lost:
            return
        if sys.version_info < (3, 12) and sys.getprofile() is not self._profiler:
            self._lost = True
            _LOST.append(self._profiler)
            return
        self._profiler.disable()

    def _guard(self) -> None:
        """End our profile when the script's begins: a second profiler would raise."""
        import cProfile

        def enable(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            self.stop()
            self._lost = True
            return profiler.enable(*args, **kwargs)

        kind: Any = cProfile.Profile
        if "enable" not in vars(kind):
            kind.enable = enable
            self._guarded = True

    def take(
        self, stamps: Sequence[float], modules: Mapping[int, Any], left_out: Collection[int] = ()
    ) -> SliceData:
        """Return rows of `functions` and `calls`; add the slice to `profile.prof`."""
        profiler, self._profiler = self._profiler, None
        if profiler is None or self._context is None:
            return SliceData()
        if self._lost:
            text = "cProfile gave way to a profiler the script started itself"
            return SliceData(notes=[("gave-way", text)])
        stats, folder = profiler.getstats(), self._context.folder
        count_calls(folder.parent, sum(entry.callcount for entry in stats), len(stamps) - 1)
        table = function_table(stats)
        if not table:
            return SliceData(notes=[("empty-capture", "cProfile saw no call in its slice")])
        merge_tables(self._total, table)
        functions, calls = records(table, self._context.index)
        frames = {"functions": functions, "calls": calls, **self._cost()}
        artifact = write_prof(folder / "profile.prof", self._total)
        # A profile is one sum: single steps cannot be left out.
        return SliceData(frames=frames, artifacts=[artifact], holds_all=True)

    def _cost(self) -> dict[str, Records]:
        """Return the cost of a call under cProfile as a fact, once; nothing where it is not known.

        It is measured between slices, where the script waits anyway.
        """
        cost = None if self._has_cost else cprofile.measure()
        if cost is None:
            return {}
        self._has_cost = True
        return {"facts": [{"key": COST, "value": json.dumps(cost)}]}
