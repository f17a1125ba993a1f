"""`Session`: the engine in the process that opens it, and the `Recording` it leaves."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from time import perf_counter
from typing import Any

import jsonschema
import pandas as pd
import pytest
import torch
from conftest import CHECKOUT, RunProfstack, clean_environment
from torch import nn

from profstack import layer, step
from profstack.capture import user_regions
from profstack.capture.slices import Targets
from profstack.capture.user_regions import region
from profstack.errors import RecordingError, UsageError
from profstack.launch import child
from profstack.readers.torchtrace import line_tracer
from profstack.recording import Recording
from profstack.report import files
from profstack.session import Session
from profstack.storage.schema.report import REPORT

LAYERS = ["cprofile", "torch"]
# Eight steps of round 1 and one round more.
TARGETS = Targets(
    slice_steps=3,
    slice_s=0.0,
    clean_steps=3,
    rounds=2,
    final_steps=4,
    final_s=0.0,
    settle_s=0.0,
)


class Training:
    """A small model and its losses; the same ones whoever watches."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.losses: list[float] = []

    def train(self, _: Any = None) -> float:
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(4, 8)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        return self.losses[-1]


class Loader:
    """Tells how often it was asked, as a data loader does that works for its items."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            self.asked += 1
            yield number


def session(name: str = "test", **options: Any) -> Session:
    options.setdefault("layers", LAYERS)
    options.setdefault("targets", TARGETS)
    return Session(name, **options)


def state() -> list[Any]:
    """Everything of torch and the interpreter that a session may change."""
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
        list(sys.meta_path),
        list(warnings.filters),
        threading.enumerate(),
        {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        torch._C._autograd._profiler_enabled(),
        gc.isenabled(),
        child.engine(),
        user_regions._on,
    ]


@pytest.fixture(scope="module", autouse=True)
def torch_is_warm() -> None:
    """The first training of a process imports more of torch, with filters of warnings."""
    Training().train()


@pytest.fixture(autouse=True)
def everything_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of a session stays behind; the script is this file."""
    monkeypatch.setattr(line_tracer, "script_folder", lambda: str(Path(__file__).parent))
    before = state()
    yield
    assert state() == before


def kinds(recording: Recording) -> list[str]:
    return [row["kind"] for row in recording.to_dict()["slices"]]


def steps_of(recording: Recording) -> pd.DataFrame:
    return recording.frames["steps"]


# -- steps -------------------------------------------------------------------------------------


def test_each_iteration_is_a_step_and_the_training_is_the_same() -> None:
    plain = Training()
    for _ in range(60):
        plain.train()
    watched = Training()
    loader = Loader(60)
    with session() as opened:
        steps = opened.steps(loader)
        assert len(steps) == 60
        for number in steps:
            assert child.engine() is not None
            assert loader.asked == number + 1
            watched.train()
    assert watched.losses == plain.losses
    report = opened.recording.to_dict()
    assert report["step"]["rule"] == "step"
    assert report["step"]["counts_by_phase"] == {"train": 60}
    assert report["status"] == "complete"
    assert {row["name"]: row["status"] for row in report["layers"]} == {
        "cprofile": "recorded",
        "torch": "recorded",
    }
    assert kinds(opened.recording)[-1] == "watch"
    assert report["step"]["batch_size"] == 4
    jsonschema.validate(report, files.schema())


def test_waiting_for_the_first_item_belongs_to_the_first_step() -> None:
    training = Training()
    moments: list[float] = []

    def items() -> Iterator[int]:
        for number in range(12):
            moments.append(perf_counter())
            yield number

    with session() as opened:
        training.model(torch.randn(4, 8))
        before = perf_counter()
        for _ in opened.steps(items()):
            training.train()
            moments.append(perf_counter())
    steps = steps_of(opened.recording)
    # What comes before the loop is no step; the first one begins when its item is asked for.
    assert len(steps) == 12
    first = opened.recording.to_dict()["slices"][0]
    assert (first["kind"], first["steps"]) == ("startup", 1)
    # From before the first item was asked for to after the work on it, and no further.
    asked, worked, asked_again = moments[:3]
    assert worked - asked <= first["wall_s"] <= asked_again - before


def test_a_loop_entered_again_goes_on_and_what_lies_between_is_no_step() -> None:
    training = Training()
    with session() as opened:
        for _ in range(6):
            for _ in opened.steps(range(11)):
                with region("step"):
                    training.train()
            for _ in range(7):
                with region("between"):
                    training.train()
    report = opened.recording.to_dict()
    assert report["step"]["counts_by_phase"] == {"train": 66}
    assert {row["plan"] for row in report["slices"]} == {1}
    # What a slice lacked at the end of a loop came at the beginning of the next one.
    per_kind = pd.DataFrame(report["slices"]).groupby(["round", "kind"])["steps"].sum()
    assert per_kind[2, "cprofile"] == TARGETS.slice_steps
    assert kinds(opened.recording)[-1] == "watch"
    calls = opened.recording.frames["regions"].set_index("path")["calls"].to_dict()
    assert calls == {"step": 1.0}


def test_loops_of_one_step_get_through_the_plan_too() -> None:
    training = Training()
    with session() as opened:
        for _ in range(120):
            for _ in opened.steps([None]):
                training.train()
    assert opened.recording.to_dict()["step"]["counts_by_phase"] == {"train": 120}
    assert kinds(opened.recording)[-1] == "watch"
    assert all(row["steps"] for row in opened.recording.to_dict()["slices"])


def test_a_loop_at_another_place_is_other_work() -> None:
    training = Training()
    with session() as opened:
        for _ in opened.steps(range(30)):
            training.train()
        training.model.eval()
        for _ in opened.steps(range(12)):
            training.model(torch.randn(4, 8))
    report = opened.recording.to_dict()
    assert report["step"]["phase"] == "train"
    assert report["step"]["counts_by_phase"] == {"train": 30, "eval": 12}


def test_the_step_that_breaks_the_loop_counts_without_a_time() -> None:
    training = Training()
    with session() as opened:
        for _ in range(2):
            for number in opened.steps(range(100)):
                training.train()
                if number == 9:
                    break
    steps = steps_of(opened.recording)
    assert len(steps) == 20
    assert steps.loc[steps["flags"].str.contains("partial"), "wall_s"].isna().tolist() == [True] * 2
    assert steps["index"].tolist() == sorted(steps["index"])


def test_a_session_without_steps_finds_them_itself() -> None:
    training = Training()
    with session() as opened:
        for _ in range(30):
            training.train()
    report = opened.recording.to_dict()
    assert report["step"]["rule"] == "optimizer"
    assert report["step"]["counts_by_phase"] == {"train": 30}


def test_the_scripts_own_word_ends_steps() -> None:
    with session() as opened:
        model = nn.Linear(4, 4)
        for _ in range(30):
            model(torch.randn(2, 4))
            model(torch.randn(2, 4))
            step()
    assert opened.recording.to_dict()["step"]["rule"] == "step"


def ignored(recording: Recording) -> list[str]:
    warned = recording.to_dict()["warnings"]
    return [row["text"] for row in warned if row["slug"] == "step-ignored"]


def test_the_scripts_own_word_between_loops_ends_no_step() -> None:
    training = Training()
    with session() as opened:
        for _ in range(6):
            for _ in opened.steps(range(11)):
                training.train()
            for _ in range(7):
                training.train()
                step()
    report = opened.recording.to_dict()
    assert report["step"]["counts_by_phase"] == {"train": 66}
    assert report["step"]["count"] == 66
    assert len(steps_of(opened.recording)) == 66
    assert {row["plan"] for row in report["slices"]} == {1}
    assert len(ignored(opened.recording)) == 1


@pytest.mark.parametrize("way", ["steps", "run", "decorated"])
def test_the_scripts_own_word_inside_a_marked_step_is_part_of_it(way: str) -> None:
    training = Training()

    def twice() -> None:
        for _ in range(2):
            training.train()
            step()

    with session() as opened:
        if way == "steps":
            for _ in opened.steps(range(30)):
                twice()
        elif way == "run":
            opened.run(twice)
        else:
            decorated = opened(twice)
            for _ in range(30):
                decorated()
    report = opened.recording.to_dict()
    assert report["step"]["counts_by_phase"] == {"train": len(training.losses) // 2}
    assert len(ignored(opened.recording)) == 1


@pytest.mark.parametrize("decorated", [False, True])
def test_after_an_inner_session_the_scripts_own_word_counts_again(decorated: bool) -> None:
    gc.collect()
    training = Training()
    with session("outer") as outer:
        for _ in range(20):
            training.train()
            step()
        with session("inner") as inner:
            train = inner(training.train) if decorated else training.train
            for _ in range(15) if decorated else inner.steps(range(15)):
                train()
        for _ in range(21):
            training.train()
            step()
    report = outer.recording.to_dict()
    # The first call says where the first step begins: it ended one that nobody saw begin.
    assert report["step"]["counts_by_phase"] == {"train": 20 + 15 + 20}
    assert ignored(outer.recording) == []
    frames = steps_of(outer.recording)
    assert frames["index"].tolist() == list(range(55))
    assert frames["wall_s"].notna().all()


def test_the_scripts_own_word_after_a_rule_that_was_found_counts_no_step_twice() -> None:
    gc.collect()
    training = Training()
    with session() as opened:
        # The only optimizer there is: its first step is a rule.
        for _ in range(30):
            training.train()
            step()
    report = opened.recording.to_dict()
    assert report["step"]["rule"] == "step"
    assert report["step"]["counts_by_phase"] == {"train": 30}


def test_no_step_at_all_leaves_a_recording_that_says_so() -> None:
    with session() as opened:
        for _ in opened.steps([]):
            pass
    report = opened.recording.to_dict()
    assert report["status"] == "failed"
    assert all(row["status"] == "empty" and row["reason"] for row in report["layers"])
    assert list(opened.recording.frames["modules"].columns) == list(REPORT["modules"].names)


# -- run and the decorator ---------------------------------------------------------------------


def test_run_calls_a_function_as_often_as_the_layers_need() -> None:
    training = Training()
    with session() as opened:
        last = opened.run(training.train, None)
    assert last == training.losses[-1]
    report = opened.recording.to_dict()
    assert report["step"]["counts_by_phase"] == {"train": len(training.losses)}
    assert [row["status"] for row in report["layers"]] == ["recorded", "recorded"]
    finals = [row for row in report["slices"] if row["round"] == TARGETS.rounds + 1]
    assert [(row["kind"], row["steps"]) for row in finals if row["kind"] == "clean"] == [
        ("clean", TARGETS.final_steps)
    ]
    [text] = [row["text"] for row in report["warnings"] if "run called" in row["text"]]
    assert text == f"run called Training.train {len(training.losses)} times"


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("gradients", [False, True], ids=["no_grad", "grad"])
def test_run_calls_a_model_as_it_is(training: bool, gradients: bool) -> None:
    seen = set()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor, *, scale: float) -> torch.Tensor:
            seen.add((self.training, torch.is_grad_enabled()))
            return self.linear(x) * scale

    model = Net().train(training)
    x = torch.randn(3, 4)
    with torch.set_grad_enabled(gradients):
        expected = model(x, scale=2.0)
        with session() as opened:
            result = opened.run(model, x, scale=2.0)
    assert torch.equal(result, expected)
    assert seen == {(training, gradients)}
    assert model.training is training
    warned = " ".join(row["text"] for row in opened.recording.to_dict()["warnings"])
    assert f"in {'train' if training else 'eval'} mode" in warned
    assert f"with gradients {'on' if gradients else 'off'}" in warned
    assert "Net.linear" in set(opened.recording.frames["modules"]["path"])
    assert opened.recording.to_dict()["step"]["phase"] == ("other" if training else "eval")


def test_run_ends_in_time_once_every_layer_has_seen_the_work() -> None:
    calls = []
    endless = Targets(final_s=1e6, max_final_steps=1_000_000_000)
    with session(targets=endless, max_seconds=0.05) as opened:
        opened.run(calls.append, 1)
    report = opened.recording.to_dict()
    assert report["run"]["stopped_by"] == "max_seconds"
    assert {row["name"] for row in report["layers"] if row["status"] == "recorded"} >= {"cprofile"}
    assert report["step"]["counts_by_phase"] == {"other": len(calls)}


def test_run_lets_go_of_each_result_before_the_next_call() -> None:
    alive = []

    class Big:
        def __init__(self) -> None:
            alive.append(1)
            assert len(alive) == 1

        def __del__(self) -> None:
            alive.pop()

    with session(layers=["cprofile"]) as opened:
        opened.run(Big)


def test_run_inside_a_step_is_one_call() -> None:
    calls = []
    with session(layers=["cprofile"]) as opened:
        for number in opened.steps(range(10)):
            assert opened.run(lambda value: calls.append(value) or value, number) == number
    assert calls == list(range(10))


def test_what_cannot_be_run_is_said_in_one_line() -> None:
    async def job() -> None:
        pass

    with session(layers=["cprofile"]) as opened:
        for wrong in (job, 3, None):
            with pytest.raises(UsageError, match="run calls functions and models"):
                opened.run(wrong)
        with pytest.raises(UsageError, match="decorates functions"):
            opened(job)


def test_each_call_of_a_decorated_function_is_a_step() -> None:
    training = Training()
    with session() as opened:
        decorated = opened(training.train)
        for _ in range(40):
            decorated()
    assert decorated.__name__ == "train"
    assert opened.recording.to_dict()["step"]["counts_by_phase"] == {"train": 40}
    losses = len(training.losses)
    assert decorated() == training.losses[losses]


def test_a_decorated_function_is_a_session_of_its_own() -> None:
    training = Training()
    opened = session()

    @opened
    def main(count: int) -> int:
        for _ in range(count):
            training.train()
        return count

    assert main(30) == 30
    report = opened.recording.to_dict()
    assert (report["step"]["rule"], report["step"]["count"]) == ("optimizer", 30)
    assert main(2) == 2
    assert opened.recording.to_dict() is report


# -- what goes wrong ---------------------------------------------------------------------------


class OwnError(Exception):
    """Of the program that is measured."""


def frames_of(error: BaseException) -> set[str]:
    return {frame.filename for frame in traceback.extract_tb(error.__traceback__)}


@pytest.mark.parametrize("place", ["body", "loader", "run", "decorated"])
def test_an_error_passes_untouched_and_the_recording_is_closed(place: str) -> None:
    training = Training()
    error = OwnError(place)

    def items() -> Iterator[int]:
        yield from range(12)
        if place == "loader":
            raise error

    def call(number: int = 0) -> None:
        training.train()
        if len(training.losses) == 12 and place != "loader":
            raise error

    def use(opened: Session) -> None:
        if place == "run":
            opened.run(call)
        elif place == "decorated":
            decorated = opened(call)
            while True:
                decorated()
        else:
            for number in opened.steps(items()):
                call(number)

    opened = session()
    with pytest.raises(OwnError) as caught, opened:
        use(opened)
    assert caught.value is error
    if place != "decorated":
        assert frames_of(error) == {__file__}
    report = opened.recording.to_dict()
    assert report["status"] == "partial"
    assert report["step"]["counts_by_phase"] == {"train": 12 if place == "loader" else 11}
    assert (opened.recording.folder / "report.html").is_file()


def test_a_defect_of_ours_costs_the_recording_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from profstack.capture import marks

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(marks.Marks, "_end", broken)
    training = Training()
    with session() as opened:
        for _ in opened.steps(range(20)):
            training.train()
    assert len(training.losses) == 20
    slugs = {row["slug"] for row in opened.recording.to_dict()["warnings"]}
    assert "disarmed" in slugs

    monkeypatch.setattr("profstack.launch.in_process.write_report", broken)
    with session() as lost:
        for _ in lost.steps(range(20)):
            training.train()
    assert "has no recording, RuntimeError: a defect" in capsys.readouterr().err
    with pytest.raises(RecordingError, match="a defect"):
        _ = lost.recording


def test_misuse_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no layer 'nothing'; the layers are cprofile, torch"):
        session(layers=["nothing"])
    with pytest.raises(UsageError, match="no layer is left"):
        session(layers=[])
    opened = session()
    for use in (lambda: opened.steps([]), lambda: opened.run(print)):
        with pytest.raises(UsageError, match=r"is not open; with Session\(\.\.\.\)"):
            use()
    with pytest.raises(RecordingError, match="no recording yet"):
        _ = opened.recording
    with opened, pytest.raises(RecordingError, match="no recording yet"):
        _ = opened.recording
    with pytest.raises(UsageError, match="has been used"), opened:
        pass
    (tmp_path / "file").write_text("mine")
    said = r"in use; .* output=, .* force=True$"
    with pytest.raises(RecordingError, match=said), session(output=tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_is_not_measured() -> None:
    training = Training()
    reader, writer = os.pipe()
    with session(layers=["cprofile"]) as opened:
        for number in opened.steps(range(30)):
            training.train()
            if number == 12 and (pid := os.fork()) == 0:
                said = b"wrong"
                try:
                    training.train()
                    opened.__exit__(None, None, None)
                    if child.engine() is None and not user_regions._on:
                        said = b"right"
                finally:
                    os.write(writer, said)
                    # Without the exit handlers: they are pytest's.
                    os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"right"
    assert opened.recording.to_dict()["step"]["counts_by_phase"] == {"train": 30}
    assert opened.recording.folder.is_dir()


@pytest.mark.skipif("nvtx" not in layer.layer_names(), reason="there is no such layer")
def test_regions_become_nvtx_ranges_too() -> None:
    training = Training()
    with session(layers=["nvtx"]) as opened, region("outer"):
        for _ in opened.steps(range(40)):
            with region("update"):
                training.train()
    ranges = opened.recording.frames["ranges"]
    calls = ranges[ranges["kind"] == "region"].set_index("name")["calls"].to_dict()
    assert calls["outer/update"] == 1.0
    # Open all the time: it is told of once in each slice.
    assert 0 < calls["outer"] <= 1.0


def test_a_profiler_of_the_programs_own_inside_a_region_sees_nothing_of_ours() -> None:
    training = Training()
    seen = []
    with session(layers=["torch"]) as opened:
        for number in opened.steps(range(40)):
            with region("outer"):
                if number % 3:
                    training.train()
                else:
                    with torch.profiler.profile(acc_events=True) as own, region("inner"):
                        training.train()
                    seen += [event.name for event in own.events()]
    assert "aten::addmm" in seen
    assert not [name for name in seen if "profstack" in name]
    slugs = {row["slug"] for row in opened.recording.to_dict()["warnings"]}
    assert "gave-way" in slugs
    assert opened.recording.to_dict()["step"]["counts_by_phase"] == {"train": 40}


# -- sessions inside other runs ----------------------------------------------------------------


def test_a_session_in_a_session_marks_steps_there(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training()
    with session("outer") as outer:
        with session("inner") as inner:
            for _ in inner.steps(range(20)):
                training.train()
        for _ in outer.steps(range(30)):
            training.train()
            with session("third") as third:
                # Inside a step: it is a part of it.
                third.run(training.train)
        assert inner.recording.to_dict()["step"]["rule"] == "step"
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "profstack: session 'inner' marks the steps of the run it is in"
    report = outer.recording.to_dict()
    assert report["step"]["counts_by_phase"] == {"train": 50}
    assert len(training.losses) == 20 + 30 + 30
    assert inner.recording.folder == outer.recording.folder


SCRIPT = """
import sys
from profstack import Session
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []

def train(number):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

with Session("digits", layers=["cprofile"]) as session:
    for epoch in range(2):
        for number in session.steps(range(30)):
            train(number)
print(losses[-1], len(losses), session.recording.to_dict()["step"]["counts_by_phase"])
print(type(session.recording.frames["steps"]).__name__)
"""


@pytest.mark.slow
def test_a_session_inside_profstack_run_marks_the_steps_of_that_run(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    environment = {"OMP_NUM_THREADS": "1"}
    plain = subprocess.run(
        [sys.executable, "script.py", "--token", "hunter2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=clean_environment(**environment),
        check=False,
    )
    assert plain.returncode == 0, plain.stderr
    assert plain.stderr == ""
    done = run_profstack(
        ["run", "-o", "rec", "--layers", "cprofile,torch", "script.py"], env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert "session 'digits' marks the steps of the run it is in" in done.stderr
    report = json.loads((tmp_path / "rec" / "report.json").read_text(encoding="utf-8"))
    assert report["status"] == "complete"
    assert report["step"]["rule"] == "step"
    assert report["step"]["counts_by_phase"] == {"train": 60}
    switched_off = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=clean_environment(PROFSTACK="0", **environment),
        check=False,
    )
    assert switched_off.returncode == 1
    assert switched_off.stderr.endswith("no recording: PROFSTACK=0 switched profstack off\n")


def test_switched_off_it_only_calls() -> None:
    calls = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PROFSTACK", "0")
        with session() as opened:
            assert list(opened.steps([1, 2, 3])) == [1, 2, 3]
            assert opened.run(lambda: calls.append(1) or 5) == 5
            assert opened(lambda: 7)() == 7
            assert child.engine() is None
    assert calls == [1]
    assert opened._repr_html_() is None


def test_torch_may_be_imported_late_and_arguments_are_masked(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "import profstack\n"
        "with profstack.Session('late', layers=['cprofile'], output='rec') as session:\n"
        "    import torch\n"
        "    session.run(torch.nn.Linear(2, 2).eval(), torch.ones(1, 2))\n"
        "assert 'pandas' in sys.modules\n"
        "print(repr(session), session.recording.to_dict()['argv'])\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "script.py", "--api-token", "hunter2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=clean_environment(OMP_NUM_THREADS="1"),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "<Session 'late', over> ['script.py', '--api-token', '***']\n"
    assert done.stderr.splitlines()[-1] == f"Wrote {Path('rec', 'report.html')}"
    for path in (tmp_path / "rec").rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes()
    facts = json.loads((tmp_path / "rec" / "report.json").read_text(encoding="utf-8"))
    assert facts["script"] == "late"
    assert facts["environment"]["torch"] == torch.__version__
    assert facts["run"]["exit_code"] is None


# -- the recording -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> Recording:
    """A recording to read."""
    training = Training()
    with session("to <read> & 'save'") as opened:
        for _ in opened.steps(range(60)):
            training.train()
    return opened.recording


def test_every_table_is_a_data_frame(recorded: Recording) -> None:
    assert set(recorded.frames) == set(REPORT)
    for name, frame in recorded.frames.items():
        assert isinstance(frame, pd.DataFrame)
        assert set(REPORT[name].names) <= set(frame.columns)
        assert len(frame) == len(recorded.to_dict()["tables"][name])
    modules = recorded.frames["modules"].set_index("path")
    assert modules.loc["Sequential", "calls"] == 1.0
    assert modules.loc["Sequential.0", "forward_s"] > 0
    # Not measured is missing, never 0.
    assert modules["forward_device_s"].isna().all()
    assert recorded.frames["steps"]["wall_s"].gt(0).all()
    assert recorded.frames["modules"] is recorded.frames["modules"]
    with pytest.raises(KeyError, match="the tables are steps, modules"):
        _ = recorded.frames["nothing"]


def test_it_is_saved_loaded_and_never_overwritten(
    recorded: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = recorded.save(tmp_path / "kept")
    assert saved == tmp_path / "kept"
    assert (saved / "cprofile" / "profile.prof").is_file()
    for path in (saved, saved / "report.html", str(saved / "report.json")):
        loaded = Recording.load(path)
        assert loaded.to_dict() == recorded.to_dict()
        pd.testing.assert_frame_equal(loaded.frames["modules"], recorded.frames["modules"])
    (saved / "report.json").unlink()
    rebuilt = Recording.load(saved).to_dict()
    assert rebuilt["tables"]["modules"] == recorded.to_dict()["tables"]["modules"]
    with pytest.raises(RecordingError, match=r"in use; .* path=, .* force=True$") as refused:
        recorded.save(saved)
    assert "--" not in str(refused.value)
    with pytest.raises(RecordingError, match=r"cannot be written .* with path=$"):
        recorded.report(tmp_path / "nowhere" / "page.html")
    assert recorded.save(saved, force=True) == saved
    assert (saved / "report.json").is_file()
    assert Recording.load(saved).save(saved) == saved
    monkeypatch.chdir(tmp_path)
    assert recorded.save() == Path("profstack-runs/to-read-save-0001")
    assert recorded.save() == Path("profstack-runs/to-read-save-0002")
    with pytest.raises(RecordingError, match="not a recording"):
        Recording.load(tmp_path)


def test_a_temporary_folder_goes_with_its_recording() -> None:
    with session(layers=["cprofile"]) as opened:
        opened.run(sum, [1, 2])
    folder = opened.recording.folder
    recording = opened.recording
    frame = recording.frames["functions"]
    del opened
    gc.collect()
    assert folder.is_dir()
    del recording
    gc.collect()
    assert not folder.parent.exists()
    assert len(frame)


def test_its_page_is_written_anywhere(recorded: Recording, tmp_path: Path) -> None:
    page = recorded.report(tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    assert recorded.report(tmp_path) == tmp_path / "report.html"
    text = page.read_text(encoding="utf-8")
    assert "to \\u003cread\\u003e" in text
    assert (recorded.folder / "report.html").is_file()


class Frames(HTMLParser):
    """The attributes of all elements of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_notebook_shows_the_page_in_a_frame(recorded: Recording) -> None:
    from profstack.report import html

    [(tag, attributes)] = Frames(recorded._repr_html_()).found
    assert tag == "iframe"
    assert attributes["srcdoc"] == html.render(recorded.to_dict())
    assert attributes["title"] == "profstack: to <read> & 'save'"
    assert attributes["sandbox"] == "allow-scripts"
    assert "to <read> & 'save'" in repr(recorded)
    assert "60 steps" in repr(recorded)


def test_all_layers_are_the_default() -> None:
    training = Training()
    with Session("all", targets=TARGETS) as opened:
        opened.run(training.train)
    layers = {row["name"]: row for row in opened.recording.to_dict()["layers"]}
    assert list(layers) == layer.layer_names()
    for row in layers.values():
        assert row["status"] in ("recorded", "emitted") or row["reason"], row


def test_sessions_follow_one_another() -> None:
    use: Callable[[Session, Training], Any]
    for use in (
        lambda opened, training: [training.train() for _ in opened.steps(range(20))],
        lambda opened, training: [training.train() for _ in range(20)],
        lambda opened, training: opened.run(training.train),
    ):
        training = Training()
        with session() as opened:
            use(opened, training)
        counts = opened.recording.to_dict()["step"]["counts_by_phase"]
        assert counts == {"train": len(training.losses)}


@pytest.mark.slow
def test_the_example_by_hand_measures_both_parts(tmp_path: Path) -> None:
    script = CHECKOUT / "examples" / "session_by_hand.py"
    done = subprocess.run(
        [sys.executable, str(script), "--steps", "100", "--output", "tones"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=clean_environment(OMP_NUM_THREADS="1"),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "answers: (32, 2)" in done.stdout
    assert "update    1.0" in done.stdout
    training, inference = (
        Recording.load(tmp_path / "tones" / name) for name in ("training", "inference")
    )
    assert training.to_dict()["step"]["counts_by_phase"] == {"train": 100}
    assert inference.to_dict()["step"]["phase"] == "eval"
    for recording in (training, inference):
        assert "Tones.recurrent" in set(recording.frames["modules"]["path"])
    assert set(training.frames["regions"]["path"]) == {"add noise", "update"}
