"""Engines of the tests of capture, and the clock that these set."""

from pathlib import Path

import pytest

from profstack.capture import user_regions
from profstack.capture.engine import Engine
from profstack.readers.torchtrace import line_tracer
from tests.support import engine


@pytest.fixture
def moments(monkeypatch):
    return engine.VirtualTime(monkeypatch)


@pytest.fixture
def clock(moments):
    """Regions are observed, in a slice that has just begun, by this clock."""
    user_regions.switch_on()
    user_regions.begin_slice(moments.now)
    yield moments
    user_regions.forward_to(None)
    user_regions.switch_off()


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Make a bench; afterwards its engine is finished and torch is as it was found."""
    made = []
    engine.made_up_layers(monkeypatch)
    # A test makes its steps wherever it likes: those of `test_loops` put it back.
    monkeypatch.setattr(Engine, "elsewhere", lambda *_: None)
    # The script whose lines are traced is the test, not pytest.
    monkeypatch.setattr(line_tracer, "script_folder", lambda: str(Path(__file__).parents[2]))
    before = engine.patched()
    engine.Training.optimizers.clear()

    def make(*layers, **options):
        made.append(engine.Bench(tmp_path / f"rec{len(made)}", layers, **options))
        return made[-1]

    yield make
    for one in made:
        one.engine.finish()
    assert engine.patched() == before


@pytest.fixture
def virtual(bench, moments):
    """Begin an engine with virtual time, and make the training that it watches."""

    def make(*layers, **options):
        training = engine.VirtualTraining(moments)
        options = {"origin": moments.now, "live_optimizers": training.living, **options}
        one = bench(*layers, **options)
        one.engine.begin()
        return one, training

    return make
