"""The contract of a layer, and the one place that picks layers."""

import importlib.metadata
from types import SimpleNamespace

import pytest

from profstack import layer
from profstack.errors import UsageError
from profstack.layer import BUILT_IN, load, pick
from tests.support.engine import Alpha


class Entry:
    def __init__(self, name, value, package="theirs"):
        self.name, self.value = name, value
        self.dist = SimpleNamespace(name=package) if package else None


@pytest.fixture
def entries(monkeypatch):
    found = {"profstack.wrappers": []}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found[group])
    return found["profstack.wrappers"]


ALPHA = "tests.support.engine:Alpha"


def test_layers_are_picked_in_the_order_of_the_page(entries):
    assert pick() == layer.layer_names() == list(BUILT_IN)
    assert pick(["watch", "cprofile"]) == ["cprofile", "watch"]
    assert pick(skip=["torch", "watch"]) == ["cprofile", "nvtx", "memory", "flops"]
    assert (pick("torch"), pick(["memray"])) == (["torch"], ["memray"])
    entries.append(Entry("alpha", ALPHA))
    assert pick(["alpha", "torch"]) == ["torch", "alpha"]
    for wrong in ({"layers": ["sundial"]}, {"skip": ["sundial"]}):
        with pytest.raises(UsageError, match="sundial") as caught:
            pick(**wrong)
        assert "memray, alpha" in str(caught.value.next_step)


def test_a_layer_is_loaded_by_its_name(entries):
    for name in (*BUILT_IN, *layer.ON_REQUEST):
        assert load(name).name == name
    with pytest.raises(UsageError, match="sundial"):
        load("sundial")
    entries += [Entry("zeta", "no.such.module:Kind"), Entry("alpha", ALPHA, None)]
    assert load("alpha") is Alpha
    with pytest.raises(UsageError, match="ModuleNotFoundError"):
        load("zeta")


def test_what_cannot_be_used_of_other_packages_is_told(entries):
    entries += [
        *(Entry("torch", ALPHA), Entry("alpha", ALPHA), Entry("alpha", "tests.x:Second")),
        *(Entry("gamma", ALPHA), Entry("delta", "pathlib:Path"), Entry("eps", "os:getcwd")),
        Entry("memray", ALPHA, None),
    ]
    wrappers, problems = layer.third_party()
    assert (wrappers, len(problems)) == ({"alpha": Alpha}, 6)
    told = "\n".join(problems)
    for words in ("'torch' of theirs", "'alpha' of theirs", f"'memray' of {ALPHA}"):
        assert f"layer {words}: the name is taken" in told
    for words in ("'alpha', not 'gamma'", "pathlib:Path is not", "os:getcwd is not"):
        assert words in told
    assert layer.all_layer_names()[len(BUILT_IN) :] == ["memray", "alpha", "delta", "eps", "gamma"]


def test_memory_is_measured_by_a_tool_that_can():
    for memory_by, layers in (("profstack", []), ("memory_profiler", ["memory"])):
        layer.check_memory_by(memory_by, layers)
    for memory_by, layers in (("memory_profiler", ["torch"]), ("sundial", ["memory"])):
        with pytest.raises(UsageError, match=memory_by):
            layer.check_memory_by(memory_by, layers)


def test_beside_nsys_two_layers_alone(monkeypatch):
    layers = ["cprofile", "nvtx", "watch"]
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    assert (layer.beside_nsys(layers), layer.nsys_notes()) == ((layers, {}), [])
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    kept, left_out = layer.beside_nsys(layers)
    assert (kept, list(left_out)) == (["nvtx", "watch"], ["cprofile"])
    ((slug, text),) = layer.nsys_notes()
    assert (slug, "profstack import FILE.nsys-rep" in text) == ("under-nsys", True)
