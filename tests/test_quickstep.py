"""Short steps, stamped by the hook of one frame, and evaluation seen where it is switched on."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from profstack.capture.arming import Aim, optimizer_hook
from profstack.capture.step_log import EVAL
from profstack.capture.step_rules import EvaluationWatch


class Told:
    """Counts what the hook reports besides the ends of steps."""

    def __init__(self) -> None:
        self.looks = 0
        self.others: list[Any] = []
        self.optimizer_ended = self.others.append

    def look(self) -> None:
        self.looks += 1


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)


@pytest.fixture
def followed() -> torch.optim.Optimizer:
    return optimizer()


def hook_of(followed: Any, told: Told, ends: list[float], steps: int = 1_000) -> Any:
    aim = Aim()
    aim.steps = steps
    return optimizer_hook(torch, weakref.ref(followed), ends, aim, told)


def test_every_step_of_the_followed_optimizer_is_stamped_in_order(followed: Any) -> None:
    told, ends = Told(), []
    hook = hook_of(followed, told, ends)
    for _ in range(5):
        hook(followed, (), {})
    assert len(ends) == 5
    assert ends == sorted(ends)
    assert (told.looks, told.others) == (0, [])


def test_a_look_is_taken_when_the_aim_is_reached(followed: Any) -> None:
    told, ends = Told(), []
    hook = hook_of(followed, told, ends, steps=3)
    looks = []
    for _ in range(4):
        hook(followed, (), {})
        looks.append(told.looks)
    assert looks == [0, 0, 1, 2]


def test_other_optimizers_and_other_threads_go_the_long_way(followed: Any) -> None:
    told, ends, other = Told(), [], optimizer()
    hook = hook_of(followed, told, ends)
    hook(other, (), {})
    thread = threading.Thread(target=hook, args=(followed, (), {}))
    thread.start()
    thread.join()
    assert ends == []
    assert told.others == [other, followed]


def test_the_hook_keeps_no_optimizer_alive() -> None:
    one = optimizer()
    hook = hook_of(one, Told(), [])
    seen = weakref.ref(one)
    del one
    assert seen() is None
    assert hook is not None


def test_nothing_is_stamped_while_a_graph_is_traced(
    followed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, ends = Told(), []
    hook = hook_of(followed, told, ends)
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True, raising=False)
    hook(followed, (), {})
    assert ends == []


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Frozen(Net):
    """A network that keeps a part of itself in evaluation, as fine-tuning does."""

    def train(self, mode: bool = True) -> Any:
        self.asked = mode
        return super().train(mode)


@pytest.mark.parametrize("kind", [Net, Frozen])
def test_a_switch_to_evaluation_is_reported_and_the_class_left_as_it_was(kind: type) -> None:
    before = dict(kind.__dict__)
    reported: list[Any] = []
    watch = EvaluationWatch(torch, reported.append)
    net, other = kind(), nn.Linear(2, 2)
    watch.put(net)
    assert watch.is_on(net)
    assert net.train() is net
    assert reported == []
    assert net.eval() is net
    net.train(False)
    other.eval()
    assert reported == [net, net]
    watch.take_off()
    net.eval()
    assert reported == [net, net]
    assert dict(kind.__dict__) == before


def test_a_wrapper_put_on_top_stays() -> None:
    class Own(Net):
        pass

    watch = EvaluationWatch(torch, lambda module: None)
    watch.put(Own())
    ours = Own.train

    def theirs(self: Any, mode: bool = True) -> Any:
        return ours(self, mode)

    Own.train = theirs  # type: ignore[method-assign,assignment]
    assert not watch.is_on(Own())
    watch.take_off()
    assert Own.__dict__["train"] is theirs


def test_an_error_in_train_passes_without_a_trace_of_the_wrapper() -> None:
    class Broken(Net):
        def train(self, mode: bool = True) -> Any:
            raise ValueError("no such mode")

    watch = EvaluationWatch(torch, lambda module: None)
    broken = Broken()
    watch.put(broken)
    try:
        with pytest.raises(ValueError, match="no such mode") as caught:
            broken.eval()
    finally:
        watch.take_off()
    names = [entry.name for entry in caught.traceback]
    assert names == [names[0], "eval", "train"]


def test_flags_of_quick_steps_stand_at_their_steps(tmp_path: Any) -> None:
    from profstack.capture.slices import SlicePlan
    from profstack.capture.step_log import StepLog
    from profstack.stats.clock import Clock
    from profstack.storage.folder import Writer, read_tables

    (tmp_path / "logs").mkdir()
    writer = Writer(tmp_path)
    log = StepLog(writer, Clock())
    log.begin_plan("optimizer", "train")
    planned = SlicePlan("clean", (), 2, 3)
    start = log.begin_slice(planned)
    for number in range(3):
        log.quick_ends.append(start + 0.001 * (number + 1))
        if number == 1:
            log.flag_quick(EVAL)
    assert (log.count, log.last) == (3, start + 0.003)
    log.stop(at_boundary=True)
    log.end_slice(planned, {}, 0.0)
    writer.close()
    columns, rows = read_tables(tmp_path)["steps"]
    steps = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [row["flags"] for row in steps] == ["", "eval", ""]
    assert [row["cpu_s"] for row in steps] == [None, None, None]
    assert all(row["wall_s"] == pytest.approx(0.001) for row in steps)
    columns, rows = read_tables(tmp_path)["slices"]
    (row,) = (dict(zip(columns, each, strict=True)) for each in rows)
    assert row["steps"] == 3
    assert row["cpu_s"] >= 0
