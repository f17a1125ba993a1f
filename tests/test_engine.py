"""The engine in one process: tiny models, small targets, and real tools.

What was recorded is read back from the recording; that training goes on as ever is shown by its
losses, to the last digit.
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from conftest import CHECKOUT, clean_environment
from torch import nn

from profstack.capture.engine import Engine, Limits
from profstack.capture.observers import Observers
from profstack.capture.run import make_plan, shared_modes
from profstack.capture.slices import Targets, plan
from profstack.capture.step_log import StopRun
from profstack.layer import Mode
from profstack.readers.torchtrace import line_tracer
from profstack.readers.watch import Sampler
from profstack.storage.folder import Writer, create_folder, read_tables

LAYERS = ["cprofile", "torch"]
TARGETS = Targets(
    slice_steps=3,
    slice_s=0.0,
    clean_steps=3,
    rounds=2,
    final_steps=4,
    final_s=0.0,
    settle_s=0.0,
)
# After the first step, which only shows the rule: eight of round 1, three rounds of settle,
# three observed (one with stacks), settle and three clean ones each, then settle, four clean ones
# and the watch.
PLANNED = [
    *("startup", "shared", "clean", "torch", "clean", "cprofile", "clean", "torch", "clean"),
    *("settle", "torch", "settle", "clean"),
    *("settle", "cprofile", "settle", "clean"),
    *("settle", "torch", "settle", "clean"),
    *("settle", "torch", "settle", "clean"),
    *("settle", "clean", "watch"),
]
ENOUGH = 60


class Bench:
    """An engine in a folder of its own, and the training it watches."""

    def __init__(self, folder: Path, layers: Sequence[str] = LAYERS, **options: Any) -> None:
        self.folder = create_folder("train", str(folder), force=False)
        self.writer = Writer(self.folder)
        self.observers = Observers(list(layers), self.writer)
        targets = options.pop("targets", TARGETS)
        plans = options.pop("make_plan", lambda: make_plan(list(layers), targets))
        self.engine = Engine(
            torch,
            self.observers,
            plans,
            targets,
            live_optimizers=options.pop("live", Training.living),
            wait_for_page=False,
            **options,
        )

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table of the recording."""
        columns, rows = read_tables(self.folder)[name]
        return [dict(zip(columns, row, strict=True)) for row in rows]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The recorded steps."""
        return sorted(self.table("steps"), key=lambda row: row["step"])

    @property
    def layers(self) -> dict[str, dict[str, Any]]:
        """The layers by name."""
        return {row["name"]: row for row in self.table("layers")}

    @property
    def notes(self) -> list[str]:
        """The slugs of all notes."""
        return [row["slug"] for row in self.table("notes")]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Make a bench; afterwards its engine is finished and torch is as it was found."""
    made: list[Bench] = []
    before = patched()
    Training.optimizers.clear()

    def make(*layers: str, **options: Any) -> Bench:
        one = Bench(tmp_path / f"rec{len(made)}", layers or LAYERS, **options)
        made.append(one)
        return one

    yield make
    for one in made:
        one.engine.finish()
    assert patched() == before


def patched() -> list[Any]:
    """Everything of torch and the interpreter that the engine or a wrapper may change."""
    from torch.optim import optimizer

    return [
        nn.Module.__call__,
        nn.Sequential.__call__,
        torch.autograd.backward,
        torch.autograd.grad,
        torch.autograd.profiler._prepare_profiler,
        len(optimizer._global_optimizer_pre_hooks),
        len(optimizer._global_optimizer_post_hooks),
        sys.getprofile(),
        sys.gettrace(),
        torch._C._autograd._profiler_enabled(),
        gc.isenabled(),
    ]


@pytest.fixture(autouse=True)
def own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script whose lines are traced is this file, not pytest."""
    monkeypatch.setattr(line_tracer, "script_folder", lambda: str(Path(__file__).parent))


class Training:
    """A tiny training whose losses tell any difference.

    Optimizers of other tests may still live in this process, so the engine is told of these.
    """

    optimizers: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    @classmethod
    def living(cls) -> frozenset[int]:
        return frozenset(map(id, cls.optimizers))

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.optimizers.add(self.optimizer)
        self.losses: list[str] = []

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        self.losses.append(loss.item().hex())
        self.optimizer.step()

    def run(self, steps: int) -> Training:
        for _ in range(steps):
            self.step()
        return self

    def evaluate(self, batches: int = 3) -> None:
        self.model.eval()
        with torch.no_grad():
            for _ in range(batches):
                self.model(torch.ones(2, 4))
        self.model.train()


def expected_losses(steps: int) -> list[str]:
    """The losses without any engine."""
    return Training().run(steps).losses


# -- slices and steps --------------------------------------------------------------------------


def test_slices_are_recorded_in_the_planned_order(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.engine.begin()
    training = Training().run(ENOUGH)
    one.engine.finish()
    assert training.losses == expected_losses(ENOUGH)
    slices = one.table("slices")
    kinds = []
    for row in slices:
        # A shared slice has a row for each of its layers.
        kind = "shared" if row["mode"] == "shared" else row["kind"]
        if kind != "shared" or kinds[-1] != "shared":
            kinds.append(kind)
    # The profiler is not restarted inside the very call in which it stopped.
    without_settling = [kind for kind in PLANNED if kind != "settle"]
    assert [kind for kind in kinds if kind != "settle"] == without_settling
    assert [row["slice"] for row in slices] == sorted({row["slice"] for row in slices})
    assert {row["status"] for row in one.layers.values()} == {"recorded"}


def test_every_step_is_recorded_once_and_without_gaps(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.engine.begin()
    Training().run(ENOUGH)
    one.engine.finish()
    steps = one.steps
    assert [row["step"] for row in steps] == list(range(ENOUGH))
    assert all(row["wall_s"] > 0 for row in steps)
    for before, after in itertools.pairwise(steps):
        assert after["started_s"] >= before["started_s"] + before["wall_s"] - 1e-9
    by_slice = {row["slice"]: row for row in one.table("slices")}
    for row in steps[1:]:
        around = by_slice[row["slice"]]
        assert around["first_step"] <= row["step"] < around["first_step"] + around["steps"]
        assert row["batch_size"] in (8, None)
    clean = [row for row in steps if by_slice[row["slice"]]["kind"] == "clean"]
    assert clean
    # Of the shortest steps it is not asked in every slice.
    known = [(row["batch_size"], row["shape"]) for row in steps if row["batch_size"] is not None]
    assert len(known) > 3
    assert set(known) == {(8, "8x4")}
    waited = [row for row in clean if row["wait_s"] is not None]
    assert waited
    assert all(0 <= row["wait_s"] <= row["wall_s"] for row in waited)
    (facts,) = (value for key, value in read_tables(one.folder)["facts"][1] if "counts" in key)
    assert facts == f'{{"train": {ENOUGH}}}'


def test_a_layers_rows_are_of_exactly_the_steps_of_its_slice(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.engine.begin()
    Training().run(ENOUGH)
    one.engine.finish()
    slices = {row["slice"]: row for row in one.table("slices")}
    calls: dict[int, int] = {}
    for row in one.table("functions"):
        if row["name"] == "step" and row["file"] == __file__:
            calls[row["slice"]] = row["calls"]
    timed = [row for row in slices.values() if row["layer"] == "cprofile" and row["round"] == 2]
    # The first call was under way when the slice began, and has no row.
    assert [calls[row["slice"]] for row in timed] == [row["steps"] for row in timed]
    modules = {row["module_id"]: row["path"] for row in one.table("modules")}
    for row in one.table("module_times"):
        if modules.get(row["module_id"]) == "Sequential":
            assert row["calls"] == slices[row["slice"]]["steps"]


def test_fewer_steps_than_planned_leave_what_was_seen(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.engine.begin()
    Training().run(8)
    one.engine.finish()
    assert {row["status"] for row in one.layers.values()} == {"recorded"}
    assert len(one.steps) == 8


@pytest.mark.parametrize("layer", LAYERS)
def test_an_observer_cut_off_in_mid_slice_gives_no_rows(
    bench: Callable[..., Bench], layer: str
) -> None:
    table = {"cprofile": "functions", "torch": "operators"}[layer]
    one = bench(
        layer,
        make_plan=lambda: plan([(layer, Mode("timed", 2))], TARGETS),
    )
    one.engine.begin()
    # One that shows the rule, one to settle, and two of the three that the slice wants.
    Training().run(4)
    one.engine.finish()
    assert len(one.steps) == 4
    assert one.table(table) == []
    assert one.layers[layer]["status"] == "empty"
    assert all(row["layer"] is None for row in one.table("slices"))


def test_the_tail_after_the_last_boundary_is_not_counted(bench: Callable[..., Bench]) -> None:
    # The slice has its three steps, but wants more time than the script has left.
    targets = Targets(slice_steps=3, slice_s=60.0, settle_s=0.0, rounds=2)
    one = bench(
        "cprofile",
        targets=targets,
        make_plan=lambda: plan([("cprofile", Mode("timed", 2))], targets),
    )
    one.engine.begin()
    Training().run(8)

    def tail() -> int:
        return sum(range(100))

    for _ in range(50):
        tail()
    one.engine.finish()
    assert [row for row in one.table("functions") if row["name"] == "tail"] == []


def test_a_second_optimizer_begins_a_second_plan(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.engine.begin()
    first = Training().run(25)
    second = Training(1).run(45)
    one.engine.finish()
    plans = [row["plan"] for row in one.steps]
    assert [plans.count(number) for number in (1, 2)] == [25, 45]
    assert plans == sorted(plans)
    layers = {(row["plan"], row["layer"]) for row in one.table("slices") if row["layer"]}
    assert layers == {(number, layer) for number in (1, 2) for layer in LAYERS}
    assert len(first.losses) + len(second.losses) == 70


def test_an_optimizer_made_where_an_old_one_lay_begins_a_plan_too(
    bench: Callable[..., Bench],
) -> None:
    one = bench()
    one.engine.begin()
    old, new = Training(), Training(1)
    # Known to nobody: it makes room for the address to be used again.
    Training.optimizers.remove(new.optimizer)
    new.optimizer = None
    old.run(25)
    address = id(old.optimizer)
    old.optimizer = None
    new.optimizer = torch.optim.SGD(new.model.parameters(), lr=0.05)
    if id(new.optimizer) != address:
        pytest.skip("the address was not used again")
    Training.optimizers.add(new.optimizer)
    new.run(30)
    one.engine.finish()
    assert {row["plan"] for row in one.steps} == {1, 2}


def test_a_hand_written_update_is_counted_to_its_last_step(bench: Callable[..., Bench]) -> None:
    one = bench(live=frozenset)
    one.engine.begin()
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    for _ in range(30):
        model(torch.randn(8, 4)).pow(2).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    one.engine.finish()
    assert len(one.steps) == 30
    assert one.steps[-1]["wall_s"] is None
    assert one.steps[-1]["flags"] == "partial"


# -- evaluation --------------------------------------------------------------------------------


def with_evaluation(bench: Callable[..., Bench], at: Sequence[int], steps: int = ENOUGH) -> Bench:
    """Training with an evaluation before each of the steps `at`."""
    one = bench()
    one.engine.begin()
    training = Training()
    for number in range(steps):
        if number in at:
            training.evaluate()
        training.step()
    one.engine.finish()
    assert len(one.steps) == steps
    return one


def test_a_step_with_evaluation_in_it_is_flagged(bench: Callable[..., Bench]) -> None:
    # Steps 16 to 18 are a clean slice, 40 and later the last one.
    one = with_evaluation(bench, [17, 41])
    flagged = [row["step"] for row in one.steps if "eval" in row["flags"].split()]
    kinds = {row["slice"]: row["kind"] for row in one.table("slices")}
    assert set(flagged) <= {17, 41}
    for step in one.steps:
        if step["step"] in (17, 41) and kinds[step["slice"]] in ("clean", "torch"):
            assert step["step"] in flagged


def test_evaluation_in_a_slice_of_cprofile_is_flagged(bench: Callable[..., Bench]) -> None:
    one = with_evaluation(bench, range(2, ENOUGH))
    kinds = {row["slice"]: row["kind"] for row in one.table("slices")}
    seen = {kinds[row["slice"]] for row in one.steps[2:] if "eval" not in row["flags"].split()}
    assert "cprofile" not in seen


def test_evaluation_before_training_is_not_in_the_first_step(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.engine.begin()
    training = Training()
    training.evaluate(50)
    before = [row["t_s"] for row in one.table("memory")]
    assert before == []
    training.run(20)
    one.engine.finish()
    assert len(one.steps) == 20
    assert one.table("facts") != []


def test_what_an_inference_run_does_is_no_disturbance(bench: Callable[..., Bench]) -> None:
    one = bench(live=frozenset)
    one.engine.begin()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
    with torch.no_grad():
        for _ in range(50):
            model(torch.ones(2, 4))
    one.engine.finish()
    assert len(one.steps) == 50
    assert {row["phase"] for row in one.steps} == {"eval"}
    assert not any("eval" in row["flags"] for row in one.steps)


@pytest.mark.parametrize("same_class", [True, False])
def test_a_frozen_part_of_every_step_is_no_evaluation(
    bench: Callable[..., Bench], same_class: bool
) -> None:
    one = bench()
    one.engine.begin()
    teacher = nn.Sequential(nn.Linear(4, 1)) if same_class else nn.Linear(4, 1)
    teacher.eval()
    training = Training()
    for _ in range(ENOUGH):
        teacher(torch.ones(2, 4))
        training.step()
    one.engine.finish()
    assert [row["step"] for row in one.steps if "eval" in row["flags"].split()] == []


def test_evaluation_between_hand_written_updates_is_flagged_where_it_was(
    bench: Callable[..., Bench],
) -> None:
    one = bench(live=frozenset)
    one.engine.begin()
    model = nn.Linear(4, 1)
    calls = 0
    evaluated = []
    for number in range(50):
        if number in (20, 40):
            model.eval()
            for _ in range(3):
                evaluated.append(calls)
                model(torch.ones(2, 4))
                calls += 1
            model.train()
        model(torch.randn(8, 4)).mean().backward()
        calls += 1
        model.zero_grad()
    one.engine.finish()
    assert len(one.steps) == calls
    assert [row["step"] for row in one.steps if "eval" in row["flags"].split()] == evaluated


def test_the_module_that_ends_steps_need_not_be_the_first_called(
    bench: Callable[..., Bench],
) -> None:
    one = bench(live=frozenset)
    one.engine.begin()
    small, large = nn.Linear(4, 4).eval(), nn.Sequential(nn.Linear(4, 64)).eval()
    with torch.no_grad():
        for _ in range(ENOUGH):
            large(small(torch.ones(2, 4)))
    one.engine.finish()
    assert len(one.steps) == ENOUGH


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_script_that_ends_before_its_rule_is_known_has_its_steps(
    bench: Callable[..., Bench], steps: int
) -> None:
    one = bench()
    one.engine.begin()
    training, unused = Training(), Training(1)
    training.run(steps)
    one.engine.finish()
    assert len(one.steps) == steps
    assert not unused.losses


# -- failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["start", "stop", "take", "busy_reason", "step_limit"])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_wrapper_that_raises_ends_its_layer_and_nothing_else(
    bench: Callable[..., Bench], layer: str, method: str
) -> None:
    one = bench()
    wrapper = one.observers.layers[layer].wrapper
    assert wrapper is not None
    original = getattr(wrapper, method)

    def fail(*arguments: Any, **keywords: Any) -> Any:
        if method == "stop":
            original()
        raise RuntimeError("made to fail")

    setattr(wrapper, method, fail)
    one.engine.begin()
    training = Training().run(ENOUGH)
    one.engine.finish()
    assert training.losses == expected_losses(ENOUGH)
    if method == "step_limit":
        # Asked by the engine itself: whatever it makes of it, the script goes on.
        return
    other = next(name for name in LAYERS if name != layer)
    assert one.layers[layer]["status"] == "failed"
    assert "RuntimeError: made to fail" in one.layers[layer]["reason"]
    assert one.layers[other]["status"] == "recorded"
    assert "layer-failed" in one.notes
    assert len(one.steps) == ENOUGH


@pytest.mark.parametrize("place", ["write_modules", "end_slice", "begin_slice", "startup"])
def test_an_error_of_our_own_disarms_and_never_reaches_the_script(
    bench: Callable[..., Bench], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = patched()
    one = bench()
    calls = []

    def fail(*arguments: Any, **keywords: Any) -> Any:
        calls.append(place)
        raise RuntimeError("made to fail")

    monkeypatch.setattr(one.engine.log, place, fail)
    one.engine.begin()
    training = Training().run(20)
    # Everything is off at once, not only at the end.
    assert patched() == before
    assert calls == [place]
    one.engine.finish()
    assert training.losses == expected_losses(20)
    assert one.notes == ["disarmed"]
    (note,) = one.table("notes")
    assert "made to fail" in note["text"]


def test_a_broken_disk_does_not_reach_the_script(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.engine.begin()
    training = Training().run(6)
    one.writer.close()
    training.run(14)
    assert training.losses == expected_losses(20)
    assert nn.Module.__call__.__module__ == "torch.nn.modules.module"


def test_an_error_in_the_script_passes_unchanged(bench: Callable[..., Bench]) -> None:
    class Broken(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError("the script's own")

    one = bench()
    one.engine.begin()
    training = Training()
    for _ in range(ENOUGH):
        training.step()
        with pytest.raises(KeyError, match="the script's own") as caught:
            Broken()(torch.ones(1))
        frames = [entry.path for entry in caught.traceback]
        assert not any("profstack" in str(path.parent) for path in frames[1:])
    one.engine.finish()
    assert training.losses == expected_losses(ENOUGH)


@pytest.mark.parametrize("when", ["before the rule is known", "in a slice"])
def test_the_watch_takes_what_the_memory_tracer_leaves_by_ending_itself(
    bench: Callable[..., Bench], when: str
) -> None:
    """Else nobody would see a first compilation."""
    one = bench("memory", "watch")
    # As in a run: the samples' zero of time is the recording's.
    one.engine.tools["watch"] = Sampler(one.engine.log.origin)
    one.engine.begin()
    wrapper: Any = one.observers.layers["watch"].wrapper
    # As dynamo's file is called; by it the tracer knows that something is about to be compiled.
    names: dict[str, Any] = {}
    file = str(Path(__file__).parent / "torch/_dynamo/convert_frame.py")
    exec(compile("def convert(work): work()", file, "exec"), names)

    def compiling() -> None:
        before, until = wrapper._sampler.taken, time.perf_counter() + 20
        while wrapper._sampler.taken < before + 3 and time.perf_counter() < until:
            pass

    training = Training()
    if when == "in a slice":
        for _ in range(ENOUGH):
            slice_ = one.engine.planned
            if slice_ is not None and slice_.kind == "memory":
                break
            training.step()
    nn.Linear(4, 4)(torch.ones(4))
    assert sys.gettrace() is not None
    names["convert"](compiling)
    assert sys.gettrace() is None
    training.run(20)
    one.engine.finish()
    seen = {row["frame"] for row in one.table("watch_samples") if row["weight"]}
    frames = {row["frame"] for row in one.table("watch_frames") if row["name"] == "compiling"}
    assert seen & frames
    assert one.layers["watch"]["status"] == "recorded"
    clean = [row for row in one.table("slices") if row["kind"] == "clean"]
    times = [row["t_s"] for row in one.table("watch_samples") if row["weight"]]
    assert clean
    for row in clean:
        assert not any(row["started_s"] < at <= row["started_s"] + row["wall_s"] for at in times)


# -- ending ------------------------------------------------------------------------------------


def test_max_steps_ends_the_run_at_a_boundary(bench: Callable[..., Bench]) -> None:
    one = bench(limits=Limits(12))
    one.engine.begin()
    training = Training()
    with pytest.raises(StopRun) as stopped:
        training.run(100)
    assert stopped.value.code == 0
    assert one.engine.stopped_by == "max_steps"
    one.engine.finish()
    assert len(training.losses) == len(one.steps) == 12


def test_caught_it_is_raised_once_more_and_then_lets_go(bench: Callable[..., Bench]) -> None:
    one = bench(limits=Limits(5))
    one.engine.begin()
    before = patched()
    training = Training()
    caught = []
    for number in range(20):
        try:
            training.step()
        except SystemExit:
            caught.append(number)
    assert caught == [4, 5]
    assert patched() != before
    assert training.losses == expected_losses(20)
    assert [row["step"] for row in one.steps][:5] == [0, 1, 2, 3, 4]
    assert 5 <= len(one.steps) <= 6


def test_max_seconds_ends_the_run(bench: Callable[..., Bench]) -> None:
    one = bench(limits=Limits(max_seconds=1e-9))
    one.engine.begin()
    with pytest.raises(StopRun):
        Training().run(100)
    assert one.engine.stopped_by == "max_seconds"


@pytest.mark.parametrize("steps", [0, 1, 3, 5, 7, 12, 20, ENOUGH])
def test_nothing_is_left_on_wherever_the_script_ends(
    bench: Callable[..., Bench], steps: int
) -> None:
    before = patched()
    one = bench()
    one.engine.begin()
    Training().run(steps)
    one.engine.finish()
    assert patched() == before
    one.engine.finish()
    assert len(one.steps) == steps


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_is_as_the_script_had_it(
    bench: Callable[..., Bench], collecting: bool
) -> None:
    one = bench()
    one.engine.begin()
    training = Training()
    try:
        (gc.enable if collecting else gc.disable)()
        for _ in range(ENOUGH):
            training.step()
            assert gc.isenabled() is collecting
        one.engine.finish()
        assert gc.isenabled() is collecting
    finally:
        gc.enable()


def test_a_workload_without_steps_is_measured_whole(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.engine.begin(whole=shared_modes(LAYERS, "whole"))

    def work() -> Any:
        return torch.ones(8, 8) @ torch.ones(8, 8)

    for _ in range(7):
        work()
    one.engine.finish()
    functions = {row["name"]: row for row in one.table("functions")}
    assert functions["work"]["calls"] == 7
    operators = {row["name"]: row for row in one.table("operators")}
    assert operators["aten::matmul"]["calls"] == 7
    assert {row["mode"] for row in one.table("slices")} <= {"whole", "shared"}


IN_A_PROCESS = """
import sys
from pathlib import Path
from test_engine import LAYERS, Bench, Training, shared_modes

one = Bench(Path(sys.argv[1]))
case = sys.argv[2]
one.engine.begin(whole=shared_modes(LAYERS, "whole") if case == "whole" else ())
if case != "whole":
    # Ends inside a slice of torch: the shared one is the second step, the settled one the twelfth.
    Training().run(int(case))
    Training(1).run(20)
else:
    Training().run(30)
one.engine.finish()
print(len(one.steps), sum(row["mode"] == "whole" for row in one.table("slices")))
"""


@pytest.mark.parametrize(("case", "steps"), [("whole", 30), ("11", 31)])
def test_a_plan_that_begins_in_a_slice_of_torch_does_not_crash(
    tmp_path: Path, case: str, steps: int
) -> None:
    # In a process of its own: torch writes the end of a range into freed memory, or does not.
    # Two at once: nothing in them is timed.
    attempts = [
        subprocess.Popen(
            [sys.executable, "-c", IN_A_PROCESS, str(tmp_path / f"rec{attempt}"), case],
            env=clean_environment(PYTHONPATH=f"{CHECKOUT / 'tests'}{os.pathsep}{CHECKOUT}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for attempt in range(2)
    ]
    for attempt in attempts:
        printed, complaint = attempt.communicate()
        assert attempt.returncode == 0, complaint
        assert printed == f"{steps} 0\n"


# -- processes and threads ---------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("steps", [1, 2, 4, 6, 20])
def test_a_forked_child_is_not_recorded_and_writes_nothing(
    bench: Callable[..., Bench], steps: int
) -> None:
    expected = expected_losses(ENOUGH)
    Training.optimizers.clear()
    one = bench()
    one.engine.begin()
    training = Training().run(steps)
    before = len(one.steps)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # What register_at_fork does in a run.
        try:
            one.engine.abandon()
            losses = training.run(10).losses[-10:]
            one.engine.finish()
            clean = sys.getprofile() is None and sys.gettrace() is None
            os.write(writer, f"{clean} {losses[-1]}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    told = os.read(reader, 1000).decode()
    os.close(reader)
    os.close(writer)
    assert len(one.steps) == before
    training.run(ENOUGH - steps)
    assert told == f"True {expected[steps + 9]}"
    one.engine.finish()
    assert training.losses == expected
    assert [row["step"] for row in one.steps] == list(range(ENOUGH))


def test_training_in_a_second_thread_is_measured_there(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.engine.begin()
    training = Training()
    thread = threading.Thread(target=training.run, args=(ENOUGH,))
    thread.start()
    thread.join()
    one.engine.finish()
    assert len(one.steps) == ENOUGH
    assert training.losses == expected_losses(ENOUGH)
    assert one.layers["cprofile"]["status"] == "recorded"


def test_steps_of_another_thread_are_no_steps(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.engine.begin()
    first = Training().run(5)
    other = Training(1)
    thread = threading.Thread(target=other.run, args=(20,))
    thread.start()
    thread.join()
    first.run(25)
    one.engine.finish()
    assert len(one.steps) == 30


def test_detached_steps_go_by_unseen_until_rearmed(bench: Callable[..., Bench]) -> None:
    one = bench()
    before = patched()
    one.engine.begin()
    training = Training().run(ENOUGH)
    assert patched() != before
    one.engine.detach()
    assert patched() == before
    training.run(10)
    one.engine.rearm()
    training.run(5)
    one.engine.rearm()
    training.run(5)
    one.engine.finish()
    assert training.losses == expected_losses(ENOUGH + 20)
    assert len(one.steps) == ENOUGH + 10


def test_an_inner_optimizer_is_part_of_the_outer(bench: Callable[..., Bench]) -> None:
    class Outer(torch.optim.Optimizer):
        def __init__(self, inner: Any) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    one = bench()
    one.engine.begin()
    training = Training()
    training.optimizer = Outer(training.optimizer)
    training.run(30)
    one.engine.finish()
    assert len(one.steps) == 30
    assert {row["plan"] for row in one.steps} == {1}


def test_a_step_that_fails_inside_does_not_stop_the_counting(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.engine.begin()
    training = Training()

    def closure() -> Any:
        raise ValueError("the script's own")

    for _ in range(10):
        with pytest.raises(ValueError, match="own"):
            training.optimizer.step(closure)
        training.step()
    one.engine.finish()
    assert len(one.steps) == 10
