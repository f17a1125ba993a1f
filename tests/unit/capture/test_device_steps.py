"""What runs with CUDA alone, tried on things that stand for it: no device is needed here."""

import itertools

import pytest
import torch

from profstack.capture.slices import Targets
from profstack.layer import SliceContext
from profstack.session import Session
from profstack.stats.clock import Clock
from profstack.wrappers.torch_profiler import TorchProfilerWrapper


def test_the_torch_layer_does_not_ask_whether_there_is_a_device(monkeypatch, tmp_path):
    """To ask initialises the driver, and what the script forks later could not use it."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append(1) or False)
    wrapper = TorchProfilerWrapper()
    wrapper.start(SliceContext(0, "timed", 1, tmp_path))
    wrapper.stop()
    wrapper.close()
    assert asked == []


class Behind(Clock):
    """A device on which each step takes 10 ms, while the host launches it in no time."""

    def __init__(self):
        super().__init__(device=False)
        marks = itertools.count(1)
        self.synchronize = lambda: None
        self.record_event = lambda: (0, next(marks))

    has_device = property(lambda self: True)

    def elapsed_s(self, first, second):
        return 0.010 * float(second[1] - first[1])


def test_the_engine_waits_before_and_after_a_layers_slice(monkeypatch):
    monkeypatch.setattr("profstack.capture.engine.Clock", Behind)
    targets = Targets(rounds=2, final_steps=5, final_s=0.0, slice_s=0.0)
    with Session("behind", layers=["cprofile"], targets=targets) as session:
        session.run(lambda: None)
    report = session.recording.to_dict()
    figures = report["benchmark"]
    assert figures["clock"] == "device"
    assert figures["median_s"] == figures["device_median_s"] == pytest.approx(0.010)
    (effect,) = report["probe_effect"]
    assert effect["factor"] == pytest.approx(1.0, rel=0.01)
    rows = [row for row in report["slices"] if row["layer"] == "cprofile" and row["steps"]]
    assert all(row["wall_s"] >= 0.010 * row["steps"] * 0.99 for row in rows)
    assert not [row for row in report["tables"]["functions"] if "synchronize" in row["name"]]
