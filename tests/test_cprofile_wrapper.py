"""The cProfile layer against cProfile itself: same counts, same sums, and nobody is harmed."""

from __future__ import annotations

import contextlib
import cProfile
import gc
import io
import json
import pstats
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from data_recording import Run
from torch import nn

from profstack.analysis.functions import place
from profstack.capture.hooks import DISCOVER, RANGES, ROOT, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.layer import SliceContext, SliceData
from profstack.readers import cprofile as readers_cprofile
from profstack.readers.cprofile import function_table, is_own
from profstack.report.trees import call_tree
from profstack.wrappers import cprofile
from profstack.wrappers.cprofile import CProfileWrapper

HERE = __file__
MONITORING = sys.version_info >= (3, 12)


@pytest.fixture(autouse=True)
def _nobody_profiles() -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(None)
    yield
    assert sys.getprofile() is None
    sys.setprofile(before)


def captured(
    work: Callable[[], object], folder: Path, wrapper: CProfileWrapper | None = None, index: int = 0
) -> SliceData:
    wrapper = wrapper or CProfileWrapper()
    wrapper.start(SliceContext(index, "timed", 1, folder / "cprofile"))
    try:
        work()
    finally:
        wrapper.stop()
    return wrapper.take([0.0, 1.0], {})


def counts(taken: SliceData) -> dict[tuple[str, str], tuple[int, int]]:
    return {
        (row["file"], row["name"]): (row["primitive_calls"], row["calls"])
        for row in taken.frames["functions"]
    }


def edges(taken: SliceData) -> dict[tuple[str, str], int]:
    return {(row["caller_name"], row["callee_name"]): row["calls"] for row in taken.frames["calls"]}


def leaf(number: int) -> int:
    return abs(number)


def branch(number: int) -> int:
    return leaf(number) + leaf(-number)


def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def even(number: int) -> bool:
    return number == 0 or odd(number - 1)


def odd(number: int) -> bool:
    return number != 0 and even(number - 1)


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def of_file(file: str) -> Callable[[int], int]:
    """A function `same` at line 1 of that file: of two files only the names differ."""
    made: dict[str, Any] = {}
    exec(compile("def same(number):\n    return abs(number)\n", file, "exec"), made)
    function: Callable[[int], int] = made["same"]
    return function


SAME = {file: of_file(file) for file in ("/a/twice.py", "/b/twice.py")}


def fails() -> None:
    for _ in range(3):
        with contextlib.suppress(IndexError):
            [].pop()


def calls_itself(count: int) -> int:
    """Recursion through a built-in function."""
    return sum(map(calls_itself, range(count))) + 1


def work() -> None:
    for number in range(7):
        branch(number)
    for _ in numbers(3):
        pass
    list(numbers(4))
    for file, count in (("/a/twice.py", 1), ("/b/twice.py", 2)):
        for number in range(count):
            SAME[file](number)
    fails()
    calls_itself(3)
    fibonacci(10)
    even(10)
    json.dumps({"a": [1, 2, 3]})
    sorted([3, 1, 2], key=leaf)


def test_counts_are_those_of_plain_cprofile(tmp_path: Path) -> None:
    json.dumps({})
    plain = cProfile.Profile()
    plain.enable()
    work()
    plain.disable()
    wanted = {
        (file, name): (primitive, calls)
        for (file, _, name), (primitive, calls, *_) in pstats.Stats(plain).stats.items()  # type: ignore[attr-defined]
        if "_lsprof" not in name
    }
    taken = captured(work, tmp_path)
    assert counts(taken) == wanted
    assert counts(taken)[HERE, "leaf"] == (17, 17)
    assert counts(taken)[HERE, "fibonacci"] == (1, 177)
    assert counts(taken)[HERE, "branch"] == (7, 7)
    # Entered for each value and once more to end.
    assert counts(taken)[HERE, "numbers"] == (9, 9)
    assert counts(taken)["/a/twice.py", "same"] == (1, 1)
    assert counts(taken)["/b/twice.py", "same"] == (2, 2)
    assert counts(taken)["~", "<method 'pop' of 'list' objects>"] == (3, 3)
    # The outermost call alone is no call inside itself.
    assert counts(taken)[HERE, "calls_itself"] == (1, 8)


def test_callers(tmp_path: Path) -> None:
    taken = captured(work, tmp_path)
    found = edges(taken)
    assert found["branch", "leaf"] == 14
    assert found["work", "branch"] == 7
    assert found["fibonacci", "fibonacci"] == 176
    assert found["even", "odd"] == 5
    assert found["<built-in method builtins.sorted>", "leaf"] == 3
    assert found["fails", "<method 'pop' of 'list' objects>"] == 3
    assert found["<built-in method builtins.sum>", "calls_itself"] == 7
    assert found["calls_itself", "<built-in method builtins.sum>"] == 8
    same = {
        row["callee_file"]: (row["caller_name"], row["calls"])
        for row in taken.frames["calls"]
        if row["callee_name"] == "same"
    }
    assert same == {"/a/twice.py": ("work", 1), "/b/twice.py": ("work", 2)}
    inside = {
        row["caller_file"]: row["calls"]
        for row in taken.frames["calls"]
        if row["caller_name"] == "same"
    }
    assert inside == {"/a/twice.py": 1, "/b/twice.py": 2}


def test_callers_and_callees_of_the_report_are_those_of_plain_cprofile(tmp_path: Path) -> None:
    json.dumps({})
    plain = cProfile.Profile()
    plain.enable()
    work()
    plain.disable()
    wanted = {
        # Of callers all calls stand first, and the primitive ones behind.
        (place(*caller), place(*callee)): four[0]
        for callee, row in pstats.Stats(plain).stats.items()  # type: ignore[attr-defined]
        for caller, four in row[4].items()
        if "_lsprof" not in callee[2]
    }
    taken = captured(work, tmp_path)
    run = Run(tmp_path / "rec")
    run.clean()
    frames = {name: list(taken.frames[name]) for name in ("functions", "calls")}
    run.cprofile([0.01], frames=frames)
    run.clean()
    tables = run.finish()["tables"]
    assert {(row["caller"], row["callee"]): row["calls"] for row in tables["calls"]} == wanted
    tree = call_tree(tables["functions"], tables["calls"])
    names = [f"{file}:{line}({name})" for file, line, name, *_ in tree.functions]
    drawn = {(names[caller], names[callee]): calls for caller, callee, calls, _ in tree.edges}
    assert drawn == wanted
    # Who calls whom in a circle stands in one frame; the work was entered from nowhere.
    together = [{names[member].rpartition("(")[2] for member in circle} for circle in tree.cycles]
    assert {"even)", "odd)"} in together
    assert {"calls_itself)", "sum>)"} in [
        {name.replace("<built-in method builtins.", "") for name in circle} for circle in together
    ]
    entered = {names[function]: seconds for function, seconds in tree.roots}
    (root,) = entered
    assert root.endswith("(work)")
    (row,) = [row for row in tables["functions"] if row["name"] == "work"]
    assert entered[root] == pytest.approx(row["total_s"], rel=1e-3)


def test_calls_into_a_function_add_up(tmp_path: Path) -> None:
    taken = captured(work, tmp_path)
    into: dict[tuple[str, int, str], list[float]] = {}
    for row in taken.frames["calls"]:
        key = row["callee_file"], row["callee_line"], row["callee_name"]
        sums = into.setdefault(key, [0, 0.0])
        sums[0] += row["calls"]
        sums[1] += row["self_s"]
    for row in taken.frames["functions"]:
        key = row["file"], row["line"], row["name"]
        if key in into and row["name"] != "work":
            assert into[key][0] == row["calls"]
            assert into[key][1] == pytest.approx(row["self_s"], abs=1e-9)


def test_file_opens_in_pstats_with_the_sums_of_the_rows(tmp_path: Path) -> None:
    wrapper = CProfileWrapper()
    slices = [captured(work, tmp_path, wrapper, index) for index in (3, 8)]
    (artifact,) = slices[-1].artifacts
    assert artifact.path == tmp_path / "cprofile" / "profile.prof"
    stats = pstats.Stats(str(artifact.path), stream=io.StringIO())
    stats.print_callees()
    stats.print_callers()
    rows: dict[tuple[str, int, str], list[float]] = {}
    for taken in slices:
        for row in taken.frames["functions"]:
            sums = rows.setdefault((row["file"], row["line"], row["name"]), [0, 0, 0.0, 0.0])
            for position, column in enumerate(("primitive_calls", "calls", "self_s", "total_s")):
                sums[position] += row[column]
    found = stats.stats  # type: ignore[attr-defined]
    assert found.keys() == rows.keys()
    for function, sums in rows.items():
        assert found[function][:4] == pytest.approx(sums, abs=1e-12)
        for caller, four in found[function][4].items():
            assert caller in found
            assert len(four) == 4
    assert stats.total_tt == pytest.approx(sum(row[2] for row in rows.values()))  # type: ignore[attr-defined]
    assert {row["slice"] for row in slices[0].frames["functions"]} == {3}
    assert {row["slice"] for row in slices[1].frames["calls"]} == {8}


def test_file_tells_callers_as_cprofiles_own_does(tmp_path: Path) -> None:
    json.dumps({})
    plain = cProfile.Profile()
    plain.enable()
    work()
    plain.disable()
    (artifact,) = captured(work, tmp_path).artifacts

    def callers(of: Any) -> dict[Any, Any]:
        return {
            callee: {caller: four[:2] for caller, four in row[4].items()}
            for callee, row in pstats.Stats(of).stats.items()  # type: ignore[attr-defined]
            if "_lsprof" not in callee[2]
        }

    found = callers(str(artifact.path))
    assert found == callers(plain)
    # Pairs that differ, so that their order is told: recursion.
    assert any(calls != primitive for each in found.values() for calls, primitive in each.values())


def test_second_slice_does_not_hold_the_first(tmp_path: Path) -> None:
    wrapper = CProfileWrapper()
    captured(work, tmp_path, wrapper)
    second = captured(lambda: leaf(1), tmp_path, wrapper, 1)
    assert counts(second)[HERE, "leaf"] == (1, 1)
    assert (HERE, "fibonacci") not in counts(second)


def test_times_are_sane(tmp_path: Path) -> None:
    import time

    def sleeps() -> None:
        time.sleep(0.02)

    rows = {row["name"]: row for row in captured(sleeps, tmp_path).frames["functions"]}
    assert rows["<built-in method time.sleep>"]["self_s"] >= 0.02
    assert rows["sleeps"]["total_s"] >= 0.02
    assert rows["sleeps"]["self_s"] < 0.01


# -- profstack's own part ------------------------------------------------------------------------


class Told:
    """A sink that calls something built in at every event, as the engine calls clocks."""

    waiting = True
    follows_calls = True
    follows_backward = True
    first_activity = call_started = call_ended = "".format
    backward_started = backward_ended = optimizer_started = optimizer_ended = "".format
    generate_started = generate_ended = "".format


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(x))
        return out


@pytest.mark.parametrize("mode", [DISCOVER, RANGES, ROOT])
def test_profstacks_own_functions_never_appear(mode: str, tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(2, 4, requires_grad=True)

    def step() -> None:
        optimizer.zero_grad()
        net(x).sum().backward()
        torch.autograd.grad(net(x).sum(), x)
        optimizer.step()

    step()
    plain = captured(step, tmp_path)
    hooks = TorchHooks(torch, Told(), ModuleNames())
    hooks.install()
    hooks.set_mode(mode, net)
    try:
        step()
        taken = captured(step, tmp_path)
    finally:
        hooks.remove()
    # The same functions with the same counts and callers as without profstack.
    assert counts(taken) == counts(plain)
    assert edges(taken) == edges(plain)
    for row in taken.frames["functions"]:
        assert not is_own(row["file"])
        assert row["self_s"] >= 0
        assert row["total_s"] >= 0


def test_which_files_are_profstacks() -> None:
    assert is_own(cprofile.__file__)
    assert is_own(str(Path(cprofile.__file__).resolve()))
    assert is_own(sys.modules["profstack"].__file__ or "")
    assert not is_own(HERE)
    assert not is_own("~")
    assert not is_own(str(torch.__file__))


class Entry:
    """A row of `_lsprof`, made up."""

    def __init__(
        self, code: Any, calls: int, own: float, total: float, callees: list[Any] | None = None
    ) -> None:
        self.code, self.callcount, self.reccallcount = code, calls, 0
        self.inlinetime, self.totaltime, self.calls = own, total, callees


def _code(name: str, file: str = "script.py") -> Any:
    return compile("0", file, "exec").replace(co_name=name)


def test_call_through_a_wrapper_goes_to_its_callers() -> None:
    own = _code("wrapper", cprofile.__file__)
    wrapped, a, b = _code("wrapped"), _code("a"), _code("b")
    clock = "<built-in method time.perf_counter>"
    table = function_table(
        [
            Entry(a, 1, 1.0, 7.0, [Entry(own, 2, 0.5, 6.0)]),
            Entry(b, 1, 1.0, 4.0, [Entry(own, 1, 0.25, 3.0), Entry(clock, 5, 0.1, 0.1)]),
            Entry(own, 3, 0.75, 9.0, [Entry(wrapped, 3, 8.0, 8.1), Entry(clock, 6, 0.2, 0.2)]),
            Entry(wrapped, 3, 8.0, 8.1),
            Entry(clock, 11, 0.3, 0.3),
        ]
    )
    named = {function[2]: row for function, row in table.items()}
    assert named.keys() == {"a", "b", "wrapped", clock}
    callers = {caller[2]: four for caller, four in named["wrapped"][4].items()}
    assert callers["a"][:2] == [2, 2]
    assert callers["b"][:2] == [1, 1]
    assert callers["a"][3] == pytest.approx(5.4)
    assert callers["a"][3] + callers["b"][3] == pytest.approx(8.1)
    # The wrapper's own clock is no work of the script's.
    assert named[clock][:2] == [5, 5]
    assert named[clock][2] == pytest.approx(0.1)


# -- what it costs itself ------------------------------------------------------------------------


def tiny() -> None:
    """So short that its time under cProfile is mostly cProfile's."""


def many_calls() -> None:
    for _ in range(20_000):
        tiny()


def facts(taken: SliceData) -> dict[str, Any]:
    return {row["key"]: json.loads(row["value"]) for row in taken.frames.get("facts", ())}


def test_cost_of_a_call_is_measured_once_and_leaves_nothing(tmp_path: Path) -> None:
    wrapper, before = CProfileWrapper(), random.getstate()
    (cost,) = facts(captured(work, tmp_path, wrapper)).values()
    for kind in ("python", "builtin"):
        assert 0 < cost[kind]["inner_s"] < 1e-4
        assert 0 <= cost[kind]["outer_s"] < 1e-4
        assert cost[kind]["inner_spread_s"] >= 0
    assert cost["bytecode_factor"] > 0.5
    assert (cost["calls"], cost["rounds"] >= 5) == (500, True)
    again = captured(work, tmp_path, wrapper, 1)
    assert not facts(again)
    assert not any("callcost" in row["file"] for row in again.frames["functions"])
    assert random.getstate() == before


def test_cost_is_not_measured_under_a_trace_or_profile_function(tmp_path: Path) -> None:
    def own(frame: Any, event: str, argument: Any) -> None:
        seen.append(frame.f_code.co_filename)

    seen: list[str] = []
    for get, put in ((sys.getprofile, sys.setprofile), (sys.gettrace, sys.settrace)):
        before = get()
        put(own)
        try:
            cost = readers_cprofile.measure()
        finally:
            put(before)
        assert cost is None
    # Its own call and what it asks; no loop.
    assert len([file for file in seen if "callcost" in file]) < 20


@pytest.mark.timed
def test_corrected_self_time_is_nearer_to_the_clean_time(tmp_path: Path) -> None:
    """A loop of calls that do nothing: what cProfile adds is most of what it shows."""
    clean, raw, corrected = [], [], []
    for number in range(5):
        begun = perf_counter()
        many_calls()
        clean.append(perf_counter() - begun)
        run = Run(tmp_path / str(number))
        run.clean()
        taken = captured(many_calls, tmp_path)
        frames = {name: list(taken.frames[name]) for name in ("functions", "calls")}
        run.cprofile([0.01] * 3, frames=frames)
        run.writer.write({"facts": taken.frames["facts"]})
        rows = run.finish()["tables"]["functions"]
        ours = [row for row in rows if row["name"] in ("tiny", "many_calls")]
        assert len(ours) == 2
        raw.append(3 * sum(row["self_s"] for row in ours))
        # An empty function has nothing left that could be told.
        corrected.append(3 * sum(row["corrected_self_s"] or 0.0 for row in ours))
    # The least disturbed of five: other programs only add.
    assert abs(min(corrected) - min(clean)) < 0.7 * abs(min(raw) - min(clean))


# -- other profilers -----------------------------------------------------------------------------


def test_gives_way_to_the_scripts_own_profiler_and_leaves_it_whole(tmp_path: Path) -> None:
    wrapper = CProfileWrapper()
    wrapper.start(SliceContext(0, "timed", 3, tmp_path / "cprofile"))
    leaf(1)
    own = cProfile.Profile()
    own.enable()
    for _ in range(5):
        leaf(1)
    wrapper.stop()
    taken = wrapper.take([0.0, 1.0], {})
    del wrapper
    gc.collect()
    for _ in range(5):
        leaf(1)
    own.disable()
    found = {function[2]: row[1] for function, row in pstats.Stats(own).stats.items()}  # type: ignore[attr-defined]
    assert found["leaf"] == 10
    assert not any(taken.frames.values())
    assert [slug for slug, _ in taken.notes] == ["gave-way"]
    assert not (tmp_path / "cprofile").exists()


def test_own_profiler_inside_the_slice(tmp_path: Path) -> None:
    own = cProfile.Profile()

    def nested() -> None:
        own.runcall(fibonacci, 5)
        leaf(1)

    taken = captured(nested, tmp_path)
    found = {function[2]: row[1] for function, row in pstats.Stats(own).stats.items()}  # type: ignore[attr-defined]
    assert found["fibonacci"] == 15
    assert [slug for slug, _ in taken.notes] == ["gave-way"]
    assert "enable" not in vars(cProfile.Profile)


def test_profile_function_of_the_scripts_own(tmp_path: Path) -> None:
    wrapper = CProfileWrapper()
    assert wrapper.busy_reason("timed") is None

    def own(frame: Any, event: str, argument: Any) -> None:
        return None

    sys.setprofile(own)
    try:
        assert "sys.setprofile" in str(wrapper.busy_reason("timed"))
    finally:
        sys.setprofile(None)
    assert wrapper.busy_reason("timed") is None


def test_running_profiler_is_a_reason(tmp_path: Path) -> None:
    other = cProfile.Profile()
    other.enable()
    reason = CProfileWrapper().busy_reason("timed")
    other.disable()
    assert reason is not None


def test_profiler_handed_over(tmp_path: Path) -> None:
    from _lsprof import Profiler

    profiler = Profiler()
    profiler.enable()
    leaf(1)
    wrapper = CProfileWrapper()
    wrapper.hand_over(profiler)
    assert wrapper.busy_reason("whole") is None
    taken = captured(lambda: leaf(2), tmp_path, wrapper)
    assert counts(taken)[HERE, "leaf"] == (2, 2)


def test_start_up(tmp_path: Path) -> None:
    from _lsprof import Profiler

    profiler = Profiler()
    profiler.enable()
    work()
    taken = CProfileWrapper().take_startup(profiler, tmp_path)
    assert {row["slice"] for row in taken.frames["functions"]} == {None}
    assert counts(taken)[HERE, "fibonacci"] == (1, 177)
    assert pstats.Stats(str(tmp_path / "startup.prof")).total_calls > 0  # type: ignore[attr-defined]


@pytest.mark.skipif(MONITORING, reason="sys.monitoring sees every thread")
def test_other_threads_are_not_seen(tmp_path: Path) -> None:
    def elsewhere() -> None:
        thread = threading.Thread(target=fibonacci, args=(5,))
        thread.start()
        thread.join()

    assert (HERE, "fibonacci") not in counts(captured(elsewhere, tmp_path))
