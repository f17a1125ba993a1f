"""Arming the measured process: it waits for an import, and leaves it as it was."""

import atexit
import importlib
import sys
from types import SimpleNamespace

import pytest

from profstack.capture import run as capture_run
from profstack.launch import child
from profstack.readers import watch
from tests.support.commands import fails
from tests.support.processes import raised_by
from tests.support.tables import cases


class Engine:
    def __init__(self, *tools):
        self.tools, self.heard = tools, []
        self.events = SimpleNamespace(user_step=lambda: self.heard.append("step"))
        self.generation_arrived = self.heard.append


class Sampler:
    seen = True

    def __init__(self, origin, sparing):
        self.origin, self.sparing, self.did = origin, sparing, []

    def __getattr__(self, name):
        return lambda: self.did.append(name)

    def has_seen(self):
        return Sampler.seen


def forget_torch(forget):
    for name in [each for each in sys.modules if each.split(".")[0] in ("torch", "transformers")]:
        forget(sys.modules, name)


@pytest.fixture
def armed(tmp_path, monkeypatch):
    """Arm this process; torch is a file of the test's own, and engines are made up."""
    told = SimpleNamespace(starts=[], engine=Engine(), exits=[], whole=[], inside=lambda: None)
    told.before = list(sys.meta_path)

    def start_engine(*given):
        told.starts.append(SimpleNamespace(given=given[:2], tools=dict(given[2]), more=given[3:]))
        told.inside()
        return told.engine

    def arm(*options, torch="x = 3\n", imported=True):
        (tmp_path / "torch.py").write_text(torch)
        child.arm("rec", options)
        return importlib.import_module("torch") if imported else None

    monkeypatch.setattr(capture_run, "start_engine", start_engine)
    monkeypatch.setattr(capture_run, "record_without_torch", lambda *one: told.whole.append(one))
    monkeypatch.setattr(atexit, "register", told.exits.append)
    monkeypatch.setattr(watch, "Sampler", Sampler)
    monkeypatch.setattr(Sampler, "seen", True)
    for name in ("_pid", "_folder", "_finder", "_engine", "_armed_at"):
        monkeypatch.setattr(child, name, getattr(child, name))
    monkeypatch.setattr(child, "_tools", {})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_torch(monkeypatch.delitem)
    told.arm = arm
    yield told
    if "cprofile" in child._tools:
        child._tools["cprofile"].disable()
    forget_torch(dict.__delitem__)


def test_the_import_of_torch_starts_the_engine_once(armed):
    assert not child.is_armed()
    armed.arm(imported=False)
    assert (child.is_armed(), child.engine()) == (True, None)
    child.user_step()
    import torch

    (start,) = armed.starts
    origin, begun, release = start.more
    assert begun >= origin
    assert (start.given, start.tools) == (("rec", torch), {})
    assert 0 < origin == child._armed_at
    assert child.engine() is armed.engine
    assert type(torch.__loader__).__module__ != child.__name__
    assert torch.__spec__.loader is torch.__loader__
    child.user_step()
    assert armed.engine.heard == ["step"]
    # The engine is not asked for twice, and lets go of imports at its end.
    assert len(sys.meta_path) == len(armed.before) + 1
    for _ in range(2):
        release()
        assert sys.meta_path == armed.before


def test_the_watch_pauses_for_imports_and_without_an_engine_nothing_is_waited_for(armed, capsys):
    heard = []
    armed.inside = lambda: heard.append(list(armed.starts[0].tools["watch"].did))
    armed.engine = None
    armed.arm("watch")
    (start,) = armed.starts
    assert (heard, list(start.tools)) == ([["resume", "pause"]], ["watch"])
    assert (start.tools["watch"].origin, sys.meta_path) == (child._armed_at, armed.before)
    assert start.tools["watch"].did == ["resume", "pause", "close"]
    assert start.tools["watch"].sparing is False
    armed.exits[0]()
    assert armed.whole == []
    armed.inside = fails(ValueError("a defect"))
    forget_torch(dict.__delitem__)
    assert armed.arm().x == 3
    assert capsys.readouterr().err == "profstack: not armed, ValueError: a defect\n"


def test_two_that_wait_for_one_module_both_hear_of_it(armed, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "comes_later.py").write_text("x = 5\n")
    heard = []
    for name in ("first", "second"):
        callback = lambda module, name=name: heard.append((name, module.x))  # noqa: E731
        sys.meta_path.insert(0, child._Finder({"comes_later": callback}))
    later = importlib.import_module("comes_later")
    assert sorted(heard) == [("first", 5), ("second", 5)]
    assert type(later.__loader__).__name__ == type(later.__spec__.loader).__name__
    assert type(later.__loader__).__name__ == "SourceFileLoader"


@pytest.mark.parametrize(("begun", "planned", "profiled"), [(0, 0, 1), (1, None, 1), (0, None, 0)])
def test_a_fork_knows_whether_its_parent_was_profiled(armed, monkeypatch, begun, planned, profiled):
    for name in ("_profiled_before", "_followed"):
        monkeypatch.setattr(child, name, False)
    armed.engine.log, armed.engine.planned = SimpleNamespace(next_slice=begun), planned
    armed.engine.abandon = lambda: armed.engine.heard.append("left")
    armed.arm()
    child._forked()
    found = [child._profiled_before, child.engine(), armed.engine.heard]
    assert found == [bool(profiled), None, ["left"]]


def marked():
    pass


@pytest.mark.parametrize("layers", [("cprofile",), ()])
def test_functions_are_profiled_from_the_first_line_but_not_our_imports(armed, layers):
    armed.engine, armed.inside = Engine(*layers), marked
    armed.arm("profile", imported=False)
    marked()
    importlib.import_module("torch")
    profiler = armed.starts[0].tools["cprofile"]
    marked()
    profiler.disable()
    calls = [each.callcount for each in profiler.getstats() if each.code is marked.__code__]
    assert sum(calls) == 1 + len(layers)


@cases(
    "seen last recorded",
    *((True, None, True), (False, None, False)),
    *((True, KeyboardInterrupt, False), (False, NameError, True)),
)
def test_a_script_without_torch_is_recorded(armed, monkeypatch, tmp_path, seen, last, recorded):
    monkeypatch.setattr(sys, "last_type", last, raising=False)
    value = raised_by(tmp_path) if last is NameError else None
    monkeypatch.setattr(sys, "last_value", value, raising=False)
    monkeypatch.setattr(Sampler, "seen", seen)
    armed.arm("watch", imported=False)
    (at_exit,) = armed.exits
    at_exit()
    found = [(folder, list(had), armed_at) for folder, had, armed_at in armed.whole]
    assert found == ([("rec", ["watch"], child._armed_at)] if recorded else [])
    assert (sys.meta_path == armed.before, sys.getprofile()) == (recorded, None)
    for _, had, _ in armed.whole:
        assert had["watch"].did == ["resume", "pause"]


def test_the_models_that_generate_are_waited_for_and_a_session_attaches_its_engine(armed, tmp_path):
    package = tmp_path / "transformers" / "generation"
    package.mkdir(parents=True)
    for file in ("../__init__.py", "__init__.py", "utils.py"):
        (package / file).touch()
    armed.arm()
    from transformers.generation import utils

    assert (armed.engine.heard, sys.meta_path) == ([utils], armed.before)
    armed.engine.heard.clear()
    child.attach(armed.engine)
    assert (child.engine(), child.is_armed()) == (armed.engine, True)
    assert armed.engine.heard == [utils]
    child.detach()
    assert (child.engine(), child.is_armed(), sys.meta_path) == (None, False, armed.before)
