"""`Session` and `benchmark`: the engine in the process that asks for it, in its own words."""

import json
import os
import sys
import threading
import traceback
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from profstack import Session, benchmark, layer, region, step
from profstack.bench.run import BenchRun
from profstack.capture import marks
from profstack.errors import RecordingError, UsageError
from profstack.launch import child, in_process
from profstack.readers.torchtrace import line_tracer
from profstack.storage.folder import facts_of, read_tables
from tests.support import engine
from tests.support.commands import fails
from tests.support.engine import TARGETS
from tests.support.reports import validate
from tests.support.tables import missing, of


class Training(engine.Training):
    def train(self, _=None):
        self.step()
        return self.losses[-1]


@pytest.fixture
def training(monkeypatch):
    made = Training()
    # Optimizers that other tests have left are not looked for.
    monkeypatch.setattr(in_process, "live_optimizers", lambda: frozenset([id(made.optimizer)]))
    return made


def session(name="test", **options):
    return Session(name, **{"layers": ["cprofile"], "targets": TARGETS, **options})


def state():
    """Everything of torch and the interpreter that a session may change."""
    variables = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    process = [list(sys.meta_path), list(warnings.filters), threading.enumerate(), variables]
    return [*engine.patched(), *process, child.engine()]


@pytest.fixture(autouse=True)
def everything_as_before(monkeypatch):
    """Nothing of a session stays behind; the script is this file, and no page is written."""
    # The first training of a process imports more of torch, with filters of warnings.
    Training().train()
    monkeypatch.setattr(line_tracer, "script_folder", lambda: str(Path(__file__).parent))
    monkeypatch.setattr(in_process, "write_report", lambda folder: folder / "report.html")
    before = state()
    yield
    assert state() == before


def facts(opened):
    return facts_of(read_tables(opened.recording.folder))


def counts(opened):
    return facts(opened)["counts_by_phase"]


def notes(opened, slug):
    rows = engine.table(opened.recording.folder, "notes")
    return [row["text"] for row in rows if row["slug"] == slug]


def test_each_iteration_is_a_step_and_the_training_is_the_same(training):
    asked = []

    class Loader:
        __len__ = lambda self: 60  # noqa: E731
        __iter__ = lambda self: (asked.append(number) or number for number in range(60))  # noqa: E731

    plain = Training().run(60)
    torch.manual_seed(0)
    Training()
    with session(layers=["cprofile", "torch"]) as opened:
        steps = opened.steps(Loader())
        assert len(steps) == 60
        for number in steps:
            assert (child.engine() is not None, asked[-1]) == (True, number)
            training.train()
    assert training.losses == plain.losses
    report = opened.recording.to_dict()
    assert of(report["step"], "rule counts_by_phase batch_size") == [*("step", {"train": 60}, 8)]
    assert (report["status"], report["slices"][-1]["kind"]) == ("complete", "watch")
    assert [row["status"] for row in report["layers"]] == ["recorded", "recorded"]
    validate(report)


# As markup, as an escape sequence, with a turned direction or no text at all, and far too long.
HOSTILE = ("</script><b>x</b>", "esc\x1b[31m\r\n\x9b", "turn\u202eed", "sur\ud800rogate")
HOSTILE += ("__proto__", "=1+1", "L" * 3_000)


def test_hostile_names_of_functions_modules_and_regions_are_recorded(training):
    class Net(nn.Module):
        def forward(self, x):
            for name, module in self.named_children():
                with region(name):
                    functions[name]()
                    x = module(x) + 1
            return x

    code, model = (lambda: None).__code__, Net()
    keys = ("co_name", "co_qualname") if sys.version_info >= (3, 11) else ("co_name",)
    functions = {}
    for name in HOSTILE:
        # torch's tracer of stacks refuses functions whose names are no text.
        own = dict.fromkeys(keys, name.replace("\ud800", ""))
        functions[name] = types.FunctionType(code.replace(**own), {})
        model.add_module(name, nn.Identity())
    with session(layers=["cprofile", "torch"]) as opened:
        for _ in opened.steps(range(60)):
            model(torch.ones(1))
            training.train()
    report = opened.recording.to_dict()
    names = {name.replace("\ud800", "\\ud800") for name in HOSTILE}
    found = {
        name: {row[key] for row in report["tables"][name]}
        for name, key in (("functions", "name"), ("regions", "path"), ("modules", "path"))
    }
    assert names - found["functions"] == {"sur\\ud800rogate"}
    assert names <= found["regions"]
    assert {f"Net.{name}" for name in names} <= found["modules"]
    assert [row["status"] for row in report["layers"]] == ["recorded"] * 2
    validate(report)


def test_clean_steps_alone_that_wait_for_the_device(training, tmp_path):
    with session(layers="none", sync=True) as opened:
        opened.run(training.train)
    report = opened.recording.to_dict()
    assert (report["layers"], report["benchmark"]["mode"]) == ([], "synchronised")
    kept = opened.recording.folder / "logs" / "peaks.json"
    assert (report["environment"]["device"], kept.is_file()) == ("cpu", True)


def test_a_loop_entered_again_goes_on_and_the_step_that_breaks_it_has_no_time(training):
    with session() as opened:
        for _ in range(2):
            for number in opened.steps(range(100)):
                training.train()
                if number == 9:
                    break
            training.train()
            step()
    report = opened.recording.to_dict()
    steps = report["tables"]["steps"]
    assert [row["index"] for row in steps] == sorted(row["index"] for row in steps)
    without = [(row["wall_s"] is None, "partial" in row["flags"]) for row in steps]
    assert without == ([(False, False)] * 9 + [(True, True)]) * 2
    assert {row["plan"] for row in report["slices"]} == {1}
    assert len(notes(opened, "step-ignored")) == 1


def test_a_session_finds_steps_itself_and_a_decorated_function_is_one(training):
    with session() as opened:
        training.run(30)
    assert (facts(opened)["plan_1"]["rule"], counts(opened)) == ("optimizer", {"train": 30})
    with session() as opened:
        decorated = opened(training.train)
        for _ in range(40):
            decorated()
    assert (decorated.__name__, counts(opened)) == ("train", {"train": 40})


@pytest.mark.parametrize(("training_mode", "gradients"), [(False, True), (True, False)])
def test_run_calls_a_function_or_a_model_as_it_is(training, training_mode, gradients):
    seen = set()

    class Net(nn.Linear):
        def forward(self, x, *, scale):
            seen.add((self.training, torch.is_grad_enabled()))
            return super().forward(x) * scale

    model, x = Net(4, 2).train(training_mode), torch.randn(3, 4)
    with torch.set_grad_enabled(gradients):
        expected = model(x, scale=2.0)
        with session() as opened:
            assert torch.equal(opened.run(model, x, scale=2.0), expected)
    assert (seen, model.training) == ({(training_mode, gradients)}, training_mode)
    (said,) = notes(opened, "session-run")
    words = f"Net {counts(opened)['other' if training_mode else 'eval']} times"
    words += f"|in {'train' if training_mode else 'eval'} mode"
    words += f"|with gradients {'on' if gradients else 'off'}"
    assert not missing(said, *words.split("|"))


def test_run_lets_go_of_each_result_ends_in_time_and_is_one_call_inside_a_step(monkeypatch):
    alive, calls = [], []

    class Big:
        def __init__(self):
            calls.append(1)
            alive.append(1)
            assert len(alive) == 1

        def __del__(self):
            alive.pop()

    with monkeypatch.context() as patched:
        patched.setattr(marks.Marks, "complete", False)
        patched.setattr(marks.Marks, "all_seen", True)
        with session(max_seconds=0.05) as opened:
            opened.run(Big)
    run = json.loads((opened.recording.folder / "logs" / "run.json").read_text())["run"]
    assert (alive, run["stopped_by"]) == ([], "max_seconds")
    said = f"run called {Big.__qualname__} {len(calls)} times, and ended after 0.05 s"
    assert notes(opened, "session-run")[0].startswith(said)
    calls.clear()
    with session() as opened:
        for number in opened.steps(range(10)):
            assert opened.run(lambda value: calls.append(value) or value, number) == number
    assert (calls, notes(opened, "session-run")) == (list(range(10)), [])


class OwnError(Exception):
    pass


@pytest.mark.parametrize("place", ["body", "loader", "run", "decorated"])
def test_an_error_passes_untouched_and_the_recording_is_closed(training, place, capsys):
    error, opened = OwnError(place), session()

    def items():
        yield from range(12)
        raise error

    def call(number=0):
        training.train()
        if len(training.losses) == 12 and place != "loader":
            raise error

    def use():
        if place == "run":
            opened.run(call)
        decorated = opened(call) if place == "decorated" else call
        for number in opened.steps(items()) if place in ("body", "loader") else range(20):
            decorated(number)

    with pytest.raises(OwnError) as caught, opened:
        use()
    assert caught.value is error
    found = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    assert place == "decorated" or found == {__file__}
    assert (facts(opened)["uncaught"], capsys.readouterr().err) == ("OwnError", "")
    assert counts(opened) == {"train": 12 if place == "loader" else 11}


def test_a_defect_of_ours_costs_the_recording_and_nothing_else(training, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        patched.setattr(marks.Marks, "_end", fails(RuntimeError("a defect")))
        with session() as opened:
            for _ in opened.steps(range(20)):
                training.train()
    assert len(training.losses) == 20
    assert notes(opened, "disarmed")
    for owner, place in ((in_process.InProcess, "begin"), (in_process, "write_report")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, place, fails(RuntimeError("a defect")))
            with session("lost") as lost:
                assert len(list(lost.steps(range(5)))) == 5
        said = capsys.readouterr().err
        assert "session 'lost' has no recording, RuntimeError: a defect" in said
        with pytest.raises(RecordingError, match="a defect"):
            _ = lost.recording


def test_misuse_is_said_in_one_line():
    async def job():
        pass

    def refused(kind, said, use, *arguments, **given):
        with pytest.raises(kind, match=said):
            use(*arguments, **given)

    opened = session()
    for use in (opened.steps, opened.run):
        refused(UsageError, r"is not open; with Session\(\.\.\.\)", use, print)
    with opened:
        refused(RecordingError, "no recording yet", getattr, opened, "recording")
        for wrong in (job, 3):
            refused(UsageError, "run calls functions and models", opened.run, wrong)
        refused(UsageError, "decorates functions", opened, job)
    refused(UsageError, "has been used", opened.__enter__)


@pytest.mark.parametrize("why", ["could not measure this process", "PROFSTACK=0"])
def test_where_nothing_is_measured_it_only_calls(monkeypatch, why):
    with monkeypatch.context() as off:
        if why == "PROFSTACK=0":
            off.setenv("PROFSTACK", "0")
        else:
            off.setattr(child, "is_armed", lambda: True)
        with session() as opened:
            assert list(opened.steps([1, 2, 3])) == [1, 2, 3]
            assert (opened.run(lambda: 5), opened(lambda: 7)()) == (5, 7)
            assert child.engine() is None
    with pytest.raises(RecordingError, match=why):
        _ = opened.recording


@pytest.fixture
def benches(monkeypatch):
    """The benchmarks that were made; they measure nothing but a median."""
    made = []

    def clean(run):
        made.append(run)
        run.result.update({"median_s": 0.25})
        run.subject.step()

    monkeypatch.setattr(BenchRun, "clean", clean)
    monkeypatch.setattr(BenchRun, "check", lambda run: None)
    monkeypatch.setattr(BenchRun, "parts", lambda run: None)
    monkeypatch.setattr("profstack.session.write_report", lambda folder: folder / "report.html")
    return made


def test_a_benchmark_is_told_all_that_was_asked_for(benches, tmp_path, capsys, monkeypatch):
    folder, asked = tmp_path / "rec", {"mode": "pipelined", "mistakes": True, "ablation": True}
    asked |= {"compare": ["eager"], "throughput": True, "search": "linear", "dtypes": ["float32"]}
    asked |= {"memory_limit": 99, "max_batch": 8}
    limits = {"warmup": 3, "repeat": 7, "max_seconds": 2.5, "collect": True}
    more = {"name": "net", "gradients": True, "layers": [], "output": folder}
    net = nn.Linear(3, 2).eval()
    recording = benchmark(net, torch.ones(5, 3), **asked, **limits, **more)
    (run,) = benches
    assert of(vars(run.options), " ".join(asked)) == list(asked.values())
    policy = of(vars(run.options.policy), "warmup repeat collect max_s max_warmup_s")
    assert policy == [3, 7, True, 2.5, 2.5]
    assert of(vars(run.subject), "name gradients batch_size") == ["net", True, 5]
    assert recording.folder == folder
    assert capsys.readouterr().err == f"Wrote {folder / 'report.html'}\n"
    fact = facts_of(read_tables(folder))["bench"]
    assert (fact["figures"]["median_s"], fact["problems"]) == (0.25, [])
    recorded = []
    monkeypatch.setattr(
        "profstack.session.record_layers",
        lambda subject, name, layers, *, output: recorded.append((name, layers)),
    )
    benchmark(len, [1, 2, 3], target_interval=0.05)
    assert recorded == [("len", layer.layer_names())]
    assert benches[1].options.policy.target == 0.05


def test_a_function_is_called_with_its_inputs_and_its_error_is_kept(benches, tmp_path):
    given = []
    work = lambda *inputs, **named: given.append((inputs, named))  # noqa: E731
    work.__name__ = "work"
    benchmark(work, 3, named_inputs={"scale": 2}, layers=[])
    benchmark(work, torch.ones(7, 2), layers=[])
    benchmark(work, batch_size=9, layers=[])
    assert (given[0], given[2]) == (((3,), {"scale": 2}), ((), {}))
    subjects = [(run.subject.name, run.subject.batch_size) for run in benches]
    assert subjects == [("work", None), ("work", 7), ("work", 9)]
    with pytest.raises(OwnError, match="mine"):
        benchmark(fails(OwnError("mine")), output=tmp_path / "rec")
    assert facts_of(read_tables(tmp_path / "rec"))["bench"]["problems"] == ["OwnError: mine"]


def test_a_benchmark_refuses_what_is_no_work_or_inside_another_measurement(benches, monkeypatch):
    def refused(said, target=len, **given):
        with pytest.raises(UsageError, match=said):
            benchmark(target, [1], **given)

    refused("measures models and functions, not 3", 3)
    with session():
        refused("inside a measured run")
    with monkeypatch.context() as off:
        off.setenv("PROFSTACK", "0")
        refused("PROFSTACK=0")
    assert benches == []
