"""Counts of cProfile as a table, without profstack's own functions, and the cost of a call."""

import pstats
import sys
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from types import SimpleNamespace

import pytest

import profstack
from profstack.readers import cprofile
from profstack.readers.cprofile import function_table, is_own, merge_tables
from profstack.wrappers import cprofile as wrapper

CLOCK = "<built-in method time.perf_counter>"


def code(name, file="script.py"):
    return compile("0", file, "exec").replace(co_name=name)


A, B, WRAPPED = code("a"), code("b"), code("wrapped")
WRAPS, OUTER, INNER = (code(name, cprofile.__file__) for name in ("wrapper", "outer", "inner"))


def entry(what, calls, own_s, total_s, *callees, again=0):
    """A row of `_lsprof`, made up; of its calls `again` were inside itself."""
    row = {"callcount": calls, "reccallcount": again, "inlinetime": own_s, "totaltime": total_s}
    return SimpleNamespace(code=what, calls=list(callees) or None, **row)


def table(*rows):
    """Figures by name; last the callers' figures by their names."""
    found = function_table(rows).items()
    return {key[2]: [*row[:4], {by[2]: four for by, four in row[4].items()}] for key, row in found}


def test_a_call_through_a_wrapper_goes_to_its_callers():
    found = table(
        entry(A, 1, 1.0, 7.0, entry(WRAPS, 2, 0.5, 6.0)),
        entry(B, 1, 1.0, 4.0, entry(WRAPS, 1, 0.25, 3.0), entry(CLOCK, 5, 0.1, 0.1)),
        entry(WRAPS, 3, 0.75, 9.0, entry(WRAPPED, 3, 8.0, 8.1), entry(CLOCK, 6, 0.2, 0.25)),
        *[entry(WRAPPED, 3, 8.0, 8.1), entry(CLOCK, 11, 0.3, 0.4)],
    )
    assert found.keys() == {"a", "b", "wrapped", CLOCK}
    # Times are shared out as the wrapper's: own time by calls, total time by total time.
    assert found["wrapped"][4] == {
        "a": [2, 2, pytest.approx(8.0 * 2 / 3), pytest.approx(8.1 * 6 / 9)],
        "b": [1, 1, pytest.approx(8.0 / 3), pytest.approx(8.1 * 3 / 9)],
    }
    # The wrapper's own clock is no work of the script's.
    edges = {"b": [5, 5, 0.1, 0.1]}
    assert found[CLOCK] == [5, 5, pytest.approx(0.1), pytest.approx(0.15), edges]


def test_wrappers_in_wrappers_their_guards_and_what_those_call_are_removed():
    guard, flag = code("is_compiling", "torch.py"), "<built-in flag>"
    of_guard = entry(guard, 5, 0.75, 1.25, entry(flag, 5, 0.5, 0.5))
    found = table(
        entry(A, 1, 1.0, 9.0, entry(OUTER, 3, 0.5, 6.0), entry(guard, 2, 0.25, 0.5)),
        entry(OUTER, 3, 0.5, 6.0, entry(INNER, 3, 0.75, 5.0), entry(guard, 3, 0.5, 0.75)),
        entry(INNER, 3, 0.75, 5.0, entry(WRAPPED, 3, 4.0, 4.5), entry("len", 3, 0.5, 0.5)),
        *[entry(WRAPPED, 3, 4.0, 4.5), of_guard, entry(flag, 5, 0.5, 0.5)],
        entry("len", 3, 0.25, 0.5),
    )
    assert found.keys() == {"a", "wrapped", "is_compiling", flag}
    assert found["wrapped"][4] == {"a": [3, 3, 4.0, 4.5]}
    assert found["is_compiling"] == [2, 2, 0.25, 0.5, {"a": [2, 2, 0.25, 0.5]}]
    ours = (wrapper.__file__, str(Path(wrapper.__file__).resolve()), profstack.__file__)
    others = (__file__, "~", pytest.__file__, f"{profstack.__path__[0]}_like.py")
    assert [*map(is_own, ours), *map(is_own, others)] == [True] * 3 + [False] * 4


def test_the_file_is_one_of_pstats_and_rows_are_of_functions_and_calls(tmp_path):
    f, g, made = ("a.py", 3, "f"), ("b.py", 7, "g"), {}
    merge_tables(made, {f: [1, 3, 1.0, 4.0, {}], g: [4, 4, 0.25, 6.0, {}]})
    merge_tables(made, {f: [1, 1, 0.25, 0.5, {g: [0, 1, 0.25, 0.5]}], g: [2, 2, 0.0, 2.0, {}]})
    merge_tables(made, {f: [0, 1, 0.25, 0.0, {g: [1, 3, 0.25, 2.0]}]})
    assert made == {f: [2, 5, 1.5, 4.5, {g: [1, 4, 0.5, 2.5]}], g: [6, 6, 0.25, 8.0, {}]}
    artifact = cprofile.write_prof(tmp_path / "cprofile" / "profile.prof", made)
    assert "snakeviz" in artifact.opens_in
    wanted = {f: (2, 5, 1.5, 4.5, {g: (4, 1, 0.5, 2.5)}), g: (6, 6, 0.25, 8.0, {})}
    assert pstats.Stats(str(artifact.path)).stats == wanted
    functions, calls = cprofile.records(made, 4)
    rows = [(4, *f, 2, 5, 1.5, 4.5), (4, *g, 6, 6, 0.25, 8.0)]
    assert [tuple(row.values()) for row in functions] == rows
    columns = "slice caller_file caller_line caller_name callee_file callee_line callee_name "
    columns = (columns + "primitive_calls calls self_s total_s").split()
    assert calls == [dict(zip(columns, (4, *g, *f, 1, 4, 0.5, 2.5), strict=True))]


PARTS = ("python_inner", "python_outer", "builtin_inner", "builtin_outer", "bytecode_factor")


def test_the_cost_is_the_median_of_rounds_but_the_first(monkeypatch):
    rounds = [
        {part: 1.5**at * (3 + n) for n, part in enumerate(PARTS)} | {"builtin_outer": at - 9}
        for at in range(20)
    ]
    done = []
    monkeypatch.setattr(cprofile, "_round", lambda: rounds[len(done)] if not done.append(0) else {})
    monkeypatch.setattr(cprofile, "perf_counter", lambda: 0.0)
    cost, kept = cprofile.measure(), rounds[2:17]
    assert (cost["rounds"], cost["calls"], len(done)) == (15, 500, 16)
    for kind, part in (name.split("_") for name in PARTS[:4]):
        values = [float(each[f"{kind}_{part}"]) for each in kept]
        first, _, third = quantiles(values, n=4)
        found = (cost[kind][f"{part}_s"], cost[kind][f"{part}_spread_s"])
        assert found == (max(0.0, median(values)), third - first)
    assert cost["bytecode_factor"] == median(each["bytecode_factor"] for each in kept)


def test_a_round_is_what_the_profiler_adds_to_the_clean_loops(monkeypatch):
    loops = (cprofile._idle, cprofile._compute, cprofile._call_python, cprofile._call_builtin)
    clean = dict(zip(loops, (0.5, 8.0, 4.0, 3.0), strict=True))
    profiled, seen, now = dict(zip(loops, (1.0, 20.0, 9.5, 6.5), strict=True)), [], [0.0]

    def look():
        # Looked at before and after each loop.
        now[0] += clean[loops[len(seen) // 2]] if len(seen) % 2 else 100.0
        seen.append(0)
        return now[0]

    own = {loop.__code__: seconds for loop, seconds in profiled.items()}
    own |= {cprofile._empty.__code__: 1.5, "<built-in method gc.isenabled>": 0.75, "x": 9.0}
    stats = [SimpleNamespace(code=each, inlinetime=seconds) for each, seconds in own.items()]
    switch = partial(seen.append, "profiler")
    profiler = SimpleNamespace(enable=switch, disable=switch, getstats=lambda: stats)
    monkeypatch.setattr(cprofile, "perf_counter", look)
    monkeypatch.setattr("_lsprof.Profiler", lambda *_, **__: profiler)
    # Less the loop's own code, in both.
    outer = [((9.5 - 1.0) - (4.0 - 0.5)) / 500, ((6.5 - 1.0) - (3.0 - 0.5)) / 500]
    values = (1.5 / 500, outer[0], 0.75 / 500, outer[1], 20.0 / 8.0)
    assert cprofile._round() == dict(zip(PARTS, values, strict=True))
    assert seen == [0] * 8 + ["profiler"] * 2


def test_no_cost_under_a_trace_or_profile_function():
    for get, put in ((sys.getprofile, sys.setprofile), (sys.gettrace, sys.settrace)):
        before = get()
        put(lambda *_: None)
        try:
            assert cprofile.measure() is None
        finally:
            put(before)
