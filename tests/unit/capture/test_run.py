"""Starting and ending the engine: which layers share a slice, facts of torch, and the exit."""

import atexit
import cProfile
import json
import os
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from profstack.capture import run
from profstack.capture.run import OPTIONS, device_facts, layer_modes, make_plan, shared_modes
from profstack.capture.slices import SlicePlan, Targets, watch
from profstack.layer import Mode
from profstack.storage.folder import PROGRESS, facts_of, read_tables
from profstack.storage.vocabulary import undefined_profile
from tests.support.engine import Alpha, Beta, made_up_layers, patched, table
from tests.support.processes import raised_by
from tests.support.tables import of


@pytest.fixture(autouse=True)
def _layers(monkeypatch):
    made_up_layers(monkeypatch)


def test_layers_take_turns_and_share_a_slice_unless_they_occupy_the_same(monkeypatch):
    def set_modes(kind, *modes):
        monkeypatch.setattr(kind, "modes", modes)

    set_modes(Alpha, Mode("late", turn=60), Mode("never", 0, 0), Mode("first", turn=5))
    set_modes(Beta, Mode("timed", turn=30))
    found = layer_modes(["alpha", "no such layer", "beta"])
    turns = [("alpha", "first"), ("beta", "timed"), ("alpha", "late")]
    assert [(name, mode.name) for name, mode in found] == turns
    set_modes(Alpha, Mode("shared", turn=9), Mode("whole", turn=9))
    set_modes(Beta, Mode("shared", turn=4), Mode("other", turn=4))
    both, layers = (("beta", "shared"), ("alpha", "shared")), ["alpha", "beta"]
    assert (shared_modes(layers), shared_modes(layers, "whole")) == (both, (("alpha", "whole"),))
    monkeypatch.setattr(Beta, "occupies", frozenset({"a", "b"}))
    assert shared_modes(layers) == both[:1]
    # What the mode itself occupies counts, if that is less.
    set_modes(Beta, Mode("shared", turn=4, occupies=frozenset()))
    assert shared_modes(layers) == both


def test_the_plan_of_a_run_under_nsys_and_for_nsys_alone(monkeypatch):
    for session, rounds in (("", [1, 1, 2]), ("7", [2])):
        monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", session)
        slices = make_plan(["alpha"], Targets(rounds=2))
        assert [one.round for one in slices if one.observers] == rounds
    targets, capture = Targets(slice_s=0.7), {"warmup": 11, "steps": 6}
    layer = (("alpha", "count"),)
    assert list(make_plan(["alpha"], targets, capture)) == [
        SlicePlan("settle", (), 1, 11, prepares=layer),
        *(SlicePlan("alpha", layer, 2, 6, 0.7), watch(2)),
    ]
    (_, clean, _) = make_plan([], targets, capture)
    assert clean == SlicePlan("clean", (), 2, 6, 0.7)


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
def test_facts_of_a_gpu(newer, allowed):
    class Backend(SimpleNamespace):
        @property
        def allow_tf32(self):
            if newer:
                raise RuntimeError("the script chose it the newer way")
            return allowed

    words = [{"fp32_precision": "tf32" if each else "ieee"} for each in (allowed, not allowed)]
    products, other = words if newer else ({}, {})
    cuda = SimpleNamespace(is_initialized=lambda: True, get_device_name=lambda: "H200")
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=Backend(**products)))
    backends.cudnn = Backend(conv=SimpleNamespace(**other))
    tf32 = {"tf32_products": allowed, "tf32_convolutions": allowed is not newer}
    found = device_facts(SimpleNamespace(cuda=cuda, backends=backends))
    assert found == {"device": "cuda", "gpu": "H200", **tf32}


class Started:
    def __init__(self, folder, monkeypatch):
        self.folder, self.at_exit, self.in_child = folder, [], []
        self.options = {"layers": ["alpha"], "targets": asdict(Targets(slice_steps=6))}
        self.options |= {"step_by": None, "max_steps": 40, "max_seconds": 30.0}
        self.options |= {"lockstep": False, "whole": False}
        (folder / "logs").mkdir()
        monkeypatch.setattr(atexit, "register", self.at_exit.append)
        register = lambda **given: self.in_child.append(given)  # noqa: E731
        monkeypatch.setattr(os, "register_at_fork", register)
        self.patch = monkeypatch.setattr

    def begin(self, how, *arguments, **options):
        # pytest forgets it when a test begins.
        self.patch(sys, "last_type", ZeroDivisionError, raising=False)
        (self.folder / OPTIONS).write_text(json.dumps({**self.options, **options}), "utf-8")
        return how(str(self.folder), *arguments)

    def start(self, tools, **options):
        return self.begin(run.start_engine, torch, tools, 55.0, 60.0, lambda: None, **options)

    facts = property(lambda self: facts_of(read_tables(self.folder)))

    @property
    def last_event(self):
        return json.loads((self.folder / PROGRESS).read_text().splitlines()[-1])


@pytest.fixture
def started(tmp_path, monkeypatch):
    before = patched()
    yield Started(tmp_path, monkeypatch)
    assert patched() == before


def test_a_run_from_its_options_to_the_exit(started, monkeypatch):
    engine = started.start({"alpha": "a tool"}, sync=True, source=False, left_out={"beta": "why"})
    log = engine.log
    assert (log.origin, log.synchronised, log.writer.keep_source) == (55.0, True, False)
    assert (engine.queue.targets, engine.tools) == (Targets(slice_steps=6), {"alpha": "a tool"})
    assert set(engine.observers.layers) == {"alpha", "beta"}
    # In a forked child its hooks are taken off, and the exit ends nothing of its parent's.
    assert started.in_child == [{"after_in_child": engine.abandon}]
    (finish,) = started.at_exit
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        finish()
    assert not engine.events.done
    engine.stopped_by = "max_steps"
    finish()
    assert engine.events.done
    assert of(started.facts, "uncaught synchronised") == ["ZeroDivisionError", True]
    environment = of(started.facts["environment"], "torch device")
    assert environment == [torch.__version__, "cpu"]
    assert isinstance(started.facts["processes_made"], int)
    assert started.last_event == {"event": "finished", "stopped_by": "max_steps"}


@pytest.mark.parametrize("profiled", [True, False])
def test_a_script_that_never_imported_torch(started, profiled, tmp_path):
    profile = cProfile.Profile()
    profile.runcall(sum, range(3))
    tools = {"cprofile": profile} if profiled else {}
    layers = {"layers": ["cprofile", "alpha"], "left_out": {"beta": "why"}}
    error = raised_by(tmp_path) if profiled else NameError(name="other")
    started.patch(sys, "last_value", error, raising=False)
    started.begin(run.record_without_torch, tools, 55.0, **layers)
    status = {row["name"]: row["status"] for row in table(started.folder, "layers")}
    cprofile = "recorded" if profiled else "skipped"
    assert status == {"cprofile": cprofile, "alpha": "skipped", "beta": "skipped"}
    (row,) = table(started.folder, "slices")
    kind = ["cprofile", "cprofile"] if profiled else ["watch", None]
    assert of(row, "kind layer steps started_s plan") == [*kind, 1, 0.0, 1]
    assert started.facts["uncaught"] == "ZeroDivisionError"
    assert started.facts.get("remedy") == undefined_profile(error)
    assert started.last_event == {"event": "finished", "stopped_by": None}
