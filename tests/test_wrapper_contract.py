"""The contract of design section 6, over every wrapper there is and every mode it has."""

from __future__ import annotations

import _thread
import ast
import inspect
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from profstack import layer
from profstack.capture.hooks import DISCOVER, RANGES, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.capture.observers import GuardedListener
from profstack.layer import LISTENED, Description, Listener, SliceContext, SliceData, Wrapper
from profstack.readers.torchtrace import line_tracer
from profstack.storage.schema.recorded import RECORDED as RECORDED_TABLES

NAMES = [*layer.BUILT_IN, *layer.ON_REQUEST]
CASES = [(name, mode.name) for name in NAMES for mode in layer.load(name).modes]
RECORDED = RECORDED_TABLES | {
    each.name: each.table for name in NAMES for each in layer.load(name).tables
}
BACKGROUND = [name for name in NAMES if layer.load(name).background]
HEADINGS = ("Measures:", "Does not measure:", "Usual slowdown:", "Conflicts:")


class Sink:
    """Told of everything, says nothing."""

    waiting = False
    follows_calls = True
    follows_backward = True
    evaluated = first_activity = call_started = call_ended = "".format
    backward_started = backward_ended = optimizer_started = optimizer_ended = "".format
    generate_started = generate_ended = "".format


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


@pytest.fixture(autouse=True, scope="module")
def _torch_is_warm() -> None:
    """The first step of a process imports half of torch, which changes filters and environment."""
    steps_of(Net(), 1)()


@pytest.fixture(autouse=True)
def _script_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(line_tracer, "script_folder", lambda: str(Path(__file__).parent))
    tracer, profiler = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    torch.manual_seed(0)
    yield
    sys.setprofile(profiler)
    sys.settrace(tracer)


@pytest.fixture
def hooks() -> Iterator[TorchHooks]:
    made = TorchHooks(torch, Sink(), ModuleNames())
    made.install()
    made.set_mode(DISCOVER)
    yield made
    made.remove()


def armed() -> dict[str, Any]:
    """Whatever a wrapper may switch on or replace in this process."""
    return {
        "profile": sys.getprofile(),
        "trace": sys.gettrace(),
        "thread profile": threading.getprofile() if sys.version_info >= (3, 10) else None,
        "torch profiler": torch._C._autograd._profiler_enabled(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "monitoring": [sys.monitoring.get_tool(number) for number in range(6)]
        if sys.version_info >= (3, 12)
        else None,
        "environment": dict(os.environ),
        "profiler names": {
            name: value
            for name, value in vars(torch.autograd.profiler).items()
            if inspect.isfunction(value) or inspect.isbuiltin(value)
        },
        "cProfile": dict(vars(__import__("cProfile").Profile)),
        "call": nn.Module.__call__,
        "functions": (torch.autograd.backward, torch.autograd.grad, nn.functional.relu),
        "filters": list(warnings.filters),
        "threads": {thread.name for thread in threading.enumerate()},
        "default dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "frame": (sys._getframe().f_back.f_trace, sys._getframe().f_back.f_trace_lines),  # type: ignore[union-attr]
    }


def make(name: str) -> Wrapper:
    return layer.load(name)()


def steps_of(
    net: nn.Module, count: int, listener: Listener | None = None
) -> Callable[[], list[float]]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def run() -> list[float]:
        # That this began before the step is told by two clocks, which agree to a microsecond.
        time.sleep(0.0001)
        stamps = [time.perf_counter()]
        for number in range(1, count + 1):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            stamps.append(time.perf_counter())
            if listener is not None:
                listener.step_ended(number)
                if number < count:
                    listener.step_begun(number)
        return stamps

    return run


def hooks_for(kind: type[Wrapper], mode: str) -> str:
    """The hooks that stand in a slice of that mode, as far as they matter here."""
    return DISCOVER if kind.mode(mode).calls == LISTENED else RANGES


def failed(error: Exception) -> None:
    pytest.fail(f"the listener raised {error!r}")


def observe(
    wrapper: Wrapper, mode: str, folder: Path, hooks: TorchHooks, index: int = 0, steps: int = 2
) -> SliceData:
    net = Net()
    steps_of(net, steps)()
    hooks.set_mode(hooks_for(type(wrapper), mode))
    assert wrapper.busy_reason(mode) is None
    folder.mkdir(exist_ok=True)
    wrapper.start(SliceContext(index, mode, steps, folder))
    hooks.emit_ranges(True)
    told = wrapper.listener()
    # As in a run: told of calls are those alone who ask for it, and their errors are kept in.
    listener = GuardedListener(told, failed) if told is not None else None
    hooks.listen(listener)
    try:
        stamps = steps_of(net, steps, listener)()
    finally:
        hooks.listen(None)
        hooks.emit_ranges(False)
        wrapper.stop()
    return wrapper.take(stamps, hooks.names.by_number())


def check(taken: SliceData, folder: Path, index: int) -> None:
    """What was handed over fits the tables, has sane figures, and its files are there."""
    for table, records in taken.frames.items():
        rows = RECORDED[table].rows(records)
        names = RECORDED[table].names
        for row in rows:
            values = dict(zip(names, row, strict=True))
            # A fact is of the run, whatever slice it was seen in.
            assert table == "facts" or values["slice"] == index
            for column, value in values.items():
                if value is None:
                    continue
                assert type(value) in (int, float, str) or float(value) == value, (table, column)
                if column.endswith(("_s", "calls")):
                    assert value >= 0, (table, column, values)
    for artifact in taken.artifacts:
        assert artifact.path.is_relative_to(folder)
        assert artifact.path.stat().st_size > 0
        assert artifact.opens_in
    for slug, text in taken.notes:
        assert re.fullmatch(r"[a-z-]+", slug)
        assert text


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_slice_is_captured_and_nothing_is_left(
    name: str, mode: str, tmp_path: Path, hooks: TorchHooks
) -> None:
    hooks.set_mode(hooks_for(layer.load(name), mode))
    before = armed()
    wrapper = make(name)
    taken = observe(wrapper, mode, tmp_path / name, hooks)
    assert any(taken.frames.values())
    check(taken, tmp_path / name, 0)
    wrapper.finish(tmp_path / name)
    wrapper.close()
    wrapper.close()
    assert armed() == before


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_used_twice_gives_the_same_counts_again(
    name: str, mode: str, tmp_path: Path, hooks: TorchHooks
) -> None:
    wrapper = make(name)
    found = []
    for index in range(2):
        taken = observe(wrapper, mode, tmp_path / name, hooks, index)
        check(taken, tmp_path / name, index)
        found.append(
            {
                table: sorted(row.get("calls") or 0 for row in rows)
                for table, rows in taken.frames.items()
                # A fact is said once, and caches are allocated once.
                if table != "facts" and not table.startswith("memray_")
            }
        )
    wrapper.close()
    assert found[0] == found[1]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_empty_slice_is_no_error(name: str, mode: str, tmp_path: Path) -> None:
    wrapper = make(name)
    before = armed()
    wrapper.start(SliceContext(0, mode, 1, tmp_path))
    now = time.perf_counter()
    wrapper.stop()
    taken = wrapper.take([now, now + 1e-6], {})
    check(taken, tmp_path, 0)
    assert any(taken.frames.values()) or taken.notes
    # A wrapper may watch until it is closed for tools of the script's; that stood before, too.
    assert armed() == before
    wrapper.close()


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_error_of_the_workload_is_its_own(
    name: str, mode: str, tmp_path: Path, hooks: TorchHooks
) -> None:
    before = armed()
    wrapper = make(name)
    error = KeyError("the script's own")

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    net = Fails()
    wrapper.start(SliceContext(0, mode, 3, tmp_path))
    begun = time.perf_counter()
    with pytest.raises(KeyError) as caught:
        net(torch.ones(2, 4))
    stamps = [begun, time.perf_counter()]
    wrapper.stop()
    assert caught.value is error
    check(wrapper.take(stamps, hooks.names.by_number()), tmp_path, 0)
    wrapper.close()
    assert armed() == before
    # And it goes on working.
    again = make(name)
    assert any(observe(again, mode, tmp_path, hooks).frames.values())
    again.close()


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_stopping_and_taking_twice_is_harmless(name: str, mode: str, tmp_path: Path) -> None:
    before = armed()
    wrapper = make(name)
    wrapper.stop()
    wrapper.start(SliceContext(0, mode, 1, tmp_path))
    wrapper.stop()
    wrapper.stop()
    wrapper.take([0.0, 1.0], {})
    again = wrapper.take([0.0, 1.0], {})
    assert not any(again.frames.values())
    wrapper.abandon()
    wrapper.close()
    assert armed() == before


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_abandoned_slice_leaves_nothing_and_writes_nothing(
    name: str, mode: str, tmp_path: Path
) -> None:
    before = armed()
    wrapper = make(name)
    wrapper.start(SliceContext(0, mode, 1, tmp_path))
    torch.ones(2) + 1
    wrapper.abandon()
    wrapper.close()
    assert armed() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_results_and_random_numbers_are_untouched(
    name: str, mode: str, tmp_path: Path, hooks: TorchHooks
) -> None:
    def run() -> tuple[Any, ...]:
        torch.manual_seed(3)
        net = Net()
        out = net(torch.rand(2, 4))
        out.sum().backward()
        gradient = net.linear.weight.grad
        assert gradient is not None
        return out.tolist(), gradient.tolist(), torch.random.get_rng_state().tolist()

    plain = run()
    wrapper = make(name)
    wrapper.start(SliceContext(0, mode, 1, tmp_path))
    try:
        observed = run()
    finally:
        wrapper.stop()
        wrapper.close()
    assert observed == plain


@pytest.mark.parametrize("name", NAMES)
def test_wrapper_says_what_it_is(name: str) -> None:
    kind = layer.load(name)
    assert kind.name == name
    # What observes in the background has no slices, and may be in nobody's way.
    assert kind.occupies or kind.background
    assert kind.modes or kind.background
    assert kind.unavailable_reason() is None
    assert kind.version()
    made = kind()
    assert made.step_limit() is None or made.step_limit() > 0  # type: ignore[operator]
    made.close()


@pytest.mark.parametrize("name", NAMES)
def test_description_says_what_the_file_says(name: str) -> None:
    """The page shows the description; the file opens with the same, perhaps at more length."""
    description = layer.load(name).description
    module = sys.modules[layer.load(name).__module__]
    text = ast.get_docstring(ast.parse(inspect.getsource(module))) or ""
    assert [heading for heading in HEADINGS if f"\n{heading}" in text] == list(HEADINGS)
    sections = _sections(text)
    for heading, said in zip(HEADINGS, _said(description), strict=True):
        words = _words(said)
        missing = words - _words(sections[heading])
        assert len(missing) <= len(words) / 3, (heading, sorted(missing))
    assert description.technique in ("counting", "sampling", "tracing")
    assert description.tool in text


def _said(description: Description) -> tuple[str, ...]:
    return (
        description.measures,
        description.does_not_measure,
        description.usual_slowdown,
        description.conflicts,
    )


def _sections(text: str) -> dict[str, str]:
    parts = re.split("(" + "|".join(HEADINGS) + ")", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _words(text: str) -> set[str]:
    """Words that carry meaning, without their endings."""
    return {word[:5] for word in re.findall(r"[a-z0-9.]+", text.lower()) if len(word) > 3}


class CountingDomain:
    """Stands for a domain of nvtx that a tool listens to, and knows what is open in it."""

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.push_range = self.open.append
        self.pop_range = self.open.pop

    def get_event_attributes(self, message: str, **_: Any) -> str:
        return message


@pytest.mark.parametrize("name", NAMES)
def test_occupied_slots_are_really_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a wrapper says it occupies is what changes when it is on, in one mode or another."""
    domain = CountingDomain()
    monkeypatch.setattr("nvtx.get_domain", lambda _: domain)
    functions = armed()["functions"]
    wrapper = make(name)
    changed: set[str] = set()
    for mode in (each.name for each in wrapper.modes):
        wrapper.start(SliceContext(0, mode, 1, tmp_path))
        told = wrapper.listener()
        if told is not None:
            told.enter("module", "Net", Net())
        during = armed()
        changed |= {"nvtx domain"} if domain.open else set()
        if told is not None:
            told.leave("module", "Net")
        wrapper.stop()
        assert domain.open == []
        wrapper.take([0.0, 1.0], {})
        monitored = sys.version_info >= (3, 12) and any(during["monitoring"])
        changed |= {"sys.setprofile"} if during["profile"] or monitored else set()
        changed |= {"sys.settrace"} if during["trace"] else set()
        changed |= {"kineto"} if during["torch profiler"] else set()
        changed |= {"dispatch mode"} if during["dispatch modes"] else set()
        changed |= {"patched functionals"} if during["functions"] != functions else set()
    wrapper.close()
    # memray's profile function is one of C, which `sys.getprofile` does not show.
    changed |= {"sys.setprofile"} if name == "memray" else set()
    assert changed <= wrapper.occupies
    assert wrapper.occupies <= changed | {"cupti"}


# -- layers in the background ----------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKGROUND)
def test_background_layer_hands_over_what_it_saw_and_leaves_nothing(name: str) -> None:
    before, threads = armed(), _thread._count()
    wrapper = make(name)
    work = steps_of(Net(), 1)
    for _ in range(2):
        wrapper.resume()
        wrapper.resume()
        until = time.perf_counter() + 0.1
        while time.perf_counter() < until:
            work()
        wrapper.pause()
        wrapper.pause()
        work()
        taken = wrapper.flush()
        assert any(taken.frames.values())
        for table, records in taken.frames.items():
            assert len(RECORDED[table].rows(records)) == len(records)
        assert taken.memory_bytes
        assert taken.memory_bytes > 0
        assert armed() == before
    assert not any(wrapper.flush().frames.values())
    wrapper.close()
    wrapper.close()
    # Asked again by a run that has ended meanwhile, it stays what it is.
    wrapper.resume()
    wrapper.pause()
    assert _thread._count() == threads


@pytest.mark.parametrize("name", BACKGROUND)
def test_background_layer_that_never_began_has_nothing_and_says_so(name: str) -> None:
    wrapper = make(name)
    wrapper.pause()
    wrapper.abandon()
    assert not any(wrapper.flush().frames.values())
    wrapper.close()
    wrapper = make(name)
    wrapper.resume()
    wrapper.pause()
    taken = wrapper.flush()
    assert any(taken.frames.values()) or taken.notes
    wrapper.close()


@pytest.mark.parametrize("name", BACKGROUND)
def test_background_layer_leaves_results_and_random_numbers_alone(name: str) -> None:
    def run() -> list[Any]:
        torch.manual_seed(3)
        net = Net()
        steps_of(net, 50)()
        return [*net.linear.weight.tolist(), *torch.random.get_rng_state().tolist()]

    plain = run()
    wrapper = make(name)
    wrapper.resume()
    try:
        observed = run()
    finally:
        wrapper.close()
    assert observed == plain


# -- the script's own torch.profiler ---------------------------------------------------------------


@pytest.mark.parametrize("mode", ["timed", "detail", "lines"])
def test_torch_layer_gives_way(mode: str, tmp_path: Path) -> None:
    wrapper = make("torch")
    told: list[str] = []
    wrapper.on_give_way = lambda: told.append("gave way")
    wrapper.start(SliceContext(0, mode, 3, tmp_path))
    torch.ones(3).sum()
    with torch.profiler.profile() as own:
        torch.ones(3).sum()
        assert wrapper.busy_reason(mode) is not None
    wrapper.stop()
    taken = wrapper.take([0.0, 1.0], {})
    assert told == ["gave way"]
    assert not any(taken.frames.values())
    assert [slug for slug, _ in taken.notes] == ["gave-way"]
    assert {row.key: row.count for row in own.key_averages()}["aten::ones"] == 1
    assert wrapper.busy_reason(mode) is None
    assert sys.gettrace() is None
    wrapper.close()


def test_torch_layer_gives_way_once_and_for_the_whole_slice(tmp_path: Path) -> None:
    """Two profiles of the script's own in one slice: what was seen before the first is no slice."""
    wrapper = make("torch")
    wrapper.start(SliceContext(0, "timed", 3, tmp_path))
    for _ in range(2):
        torch.ones(3).sum()
        with torch.profiler.profile():
            torch.ones(3).sum()
    wrapper.stop()
    taken = wrapper.take([0.0, 1.0], {})
    assert not any(taken.frames.values())
    assert [slug for slug, _ in taken.notes] == ["gave-way"]
    wrapper.close()


def test_torch_layer_tells_of_other_profilers_between_slices_too(tmp_path: Path) -> None:
    """Ranges may be on already for the slice to come."""
    wrapper = make("torch")
    told: list[str] = []
    wrapper.on_give_way = lambda: told.append("gave way")
    with torch.profiler.profile():
        torch.ones(3).sum()
    assert told == ["gave way"]
    wrapper.close()


def test_torch_layer_stays_away_from_a_profiler_that_is_only_prepared(tmp_path: Path) -> None:
    wrapper = make("torch")
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=2)
    traced: list[int] = []
    with torch.profiler.profile(
        schedule=schedule, on_trace_ready=lambda p: traced.append(len(p.events()))
    ) as own:
        reasons = []
        for _ in range(6):
            reasons.append(wrapper.busy_reason("timed") is not None)
            torch.ones(3).sum()
            own.step()
    assert len(traced) == 1
    assert traced[0] > 0
    # Free in the waiting step, and again when the trace is done.
    assert reasons[:4] == [False, True, True, True]
    assert wrapper.busy_reason("timed") is None
    wrapper.close()


def test_lines_give_way_to_a_tracer(tmp_path: Path) -> None:
    wrapper = make("torch")
    sys.settrace(lambda *_: None)
    try:
        assert "settrace" in str(wrapper.busy_reason("lines"))
        assert wrapper.busy_reason("timed") is None
    finally:
        sys.settrace(None)
        wrapper.close()


def test_slices_of_the_torch_layer_stay_within_their_bounds(
    tmp_path: Path, hooks: TorchHooks
) -> None:
    from profstack.readers.torchtrace import bounds

    wrapper = make("torch")
    observe(wrapper, "detail", tmp_path, hooks, steps=2)
    limit = wrapper.step_limit()
    assert limit is not None
    # One step of this tiny training makes some dozens of events.
    assert bounds.MOST_EVENTS / 500 < limit < bounds.MOST_EVENTS / 10
    wrapper.close()


def test_clocks_are_compared_where_nothing_ran_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from profstack.readers.torchtrace import events as torchtrace_events

    # The process stands still for 5 ms between the first reading of one and of the other.
    now = iter([0, *[5_000_000 + 100 * reading for reading in range(100)]])
    monkeypatch.setattr(torchtrace_events.time, "perf_counter_ns", lambda: next(now))
    monkeypatch.setattr(torchtrace_events.time, "time_ns", lambda: 7_000 + next(now))
    offset = torchtrace_events.clock_offset_ns()
    monkeypatch.undo()
    assert offset == 7_000


def test_a_step_of_too_many_events_is_traced_once_only(
    tmp_path: Path, hooks: TorchHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profstack.readers.torchtrace import bounds

    wrapper = make("torch")
    observe(wrapper, "timed", tmp_path, hooks, steps=1)
    assert wrapper.busy_reason("timed") is None
    monkeypatch.setattr(bounds, "MOST_EVENTS", 10)
    for mode in ("timed", "detail", "lines", "stacks"):
        assert "a slice is bounded to 10 events" in str(wrapper.busy_reason(mode))
    wrapper.close()
