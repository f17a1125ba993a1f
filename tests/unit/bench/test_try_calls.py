"""Changes of a model or a function in this process: what gains, what breaks, and what is undone."""

import math
import random

import pytest
import torch
from torch import nn

import profstack
from profstack.bench import try_calls as module
from profstack.bench.try_calls import try_calls
from profstack.changes.contract import Called, Change
from profstack.errors import UsageError
from tests.support.tables import cases, of

# How long a call takes, which changes change; and what a clock shows, with the noise of a machine.
WAITS, NOW, NOISE = [0.002], [0.0], random.Random(5)


class Clock:
    def __init__(self, torch): ...

    now = staticmethod(lambda: NOW[0])

    def synchronize(self): ...


class Waiting(nn.Module):
    """A model whose call takes 2 ms, or what a change has made of it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        NOW[0] += WAITS[0] * math.exp(NOISE.gauss(0.0, 0.01))
        return self.layer(x)


def change(name, results="equal", *, factor=1.0, add=0.0, error=None, of_model=True, **more):
    def on_call(torch, target, value, device):
        def call(x):
            if error is not None:
                raise error
            before = WAITS[0]
            WAITS[0] *= value or factor
            try:
                return target(x) + add
            finally:
                WAITS[0] = before

        return Called(call)

    known = {"applies": lambda seen: None, "on_call": on_call, "of_model": of_model}
    return Change(name, f"make it {name}", results, **{**known, **more})


@pytest.fixture
def known(monkeypatch):
    def known(*changes):
        monkeypatch.setattr(module, "changes", lambda: {each.name: each for each in changes})
        monkeypatch.setattr(module, "BLOCK_S", 0.004)
        monkeypatch.setattr(module, "Clock", Clock)

    return known


def tried(target=None, budget_s=20.0, names=None):
    x = torch.ones(2, 4)
    return try_calls(target or Waiting(), [x], {}, names=names, budget_s=budget_s, seed=3)


def test_gains_losses_and_breaks_are_told_and_the_gain_is_that_of_the_call(known):
    known(
        change("quick", factor=0.5), change("slow", factor=1.5), change("idle"),
        change("broken", error=ValueError("no such kernel\nmore")),
        change("other", factor=0.5, add=1.0), change("kind", "different", factor=0.6, add=1.0),
        change("alone", on_call=None), change("not", applies=lambda seen: "it has no layer"),
    )  # fmt: skip
    report = tried()
    rows = {row["change"]: row for row in report["trials"]}
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    assert verdicts == {
        "quick": "gains", "slow": "loses", "idle": "same", "broken": "breaks", "other": "gains",
        "kind": "gains",
    }  # fmt: skip
    assert rows["quick"]["ratio"] == pytest.approx(0.5, rel=0.02)
    assert rows["quick"]["ci95_low"] < rows["quick"]["ratio"] < rows["quick"]["ci95_high"]
    assert rows["slow"]["ratio"] == pytest.approx(1.5, rel=0.02)
    assert rows["broken"]["reason"] == "ValueError: no such kernel"
    results = {name: of(row, "results recommended") for name, row in rows.items()}
    assert results["quick"] == ["equal", True]
    assert results["other"] == ["different", False]
    assert results["kind"] == ["different", True]
    assert set(report["left_out"]) == {"alone", "not"}
    assert "processes of its own" in report["left_out"]["alone"]
    # Those of the gains that are recommended, together.
    (best,) = report["best"]
    assert of(best, "changes verdict") == [["quick", "kind"], "gains"]
    assert best["ratio"] == pytest.approx(0.3, rel=0.02)


def test_each_value_is_an_arm_and_excluded_changes_are_not_together(known):
    known(
        change("threads", values=lambda seen: [0.5, 0.7]),
        change("compile", factor=0.6, excludes=("threads",)),
    )
    report = tried()
    names = [row["change"] for row in report["trials"]]
    assert (names, report["best"]) == (["threads=0.5", "compile", "threads=0.7"], [])


def test_what_is_random_cannot_be_compared_and_is_not_recommended(known):
    known(change("quick", factor=0.4))

    class Random(Waiting):
        count = 0

        def forward(self, x):
            Random.count += 1
            return super().forward(x) * Random.count

    report = tried(Random())
    (row,) = report["trials"]
    assert (report["plain_results"], row["verdict"]) == ("different", "gains")
    assert of(row, "results recommended") == [None, False]
    assert "two plain calls" in row["reason"]

    def silent(x):
        Waiting()(x)

    def quick(*_):
        return Called(lambda x: NOW.__setitem__(0, NOW[0] + 0.001))

    known(change("quick", of_model=False, on_call=quick))
    (row,) = tried(silent)["trials"]
    assert of(row, "verdict results recommended") == ["gains", None, False]
    assert "no tensors or numbers" in row["reason"]


def test_the_targets_own_error_is_raised_and_a_name_that_is_none_is_refused(known):
    known(change("quick"))

    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        tried(fails)
    with pytest.raises(UsageError, match="no change 'nothing'"):
        tried(names=["nothing"])
    with pytest.raises(UsageError, match="cannot be called"):
        tried(target="model")
    made = tried(lambda x: x + 1)
    assert "a function was given" in made["left_out"]["quick"]


@cases("name", "bfloat16; matmul-precision; threads; inference-mode; eval-mode; channels-last")
def test_built_in_changes_are_undone(name):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    net[1].eval()
    image, threads = torch.rand(2, 3, 16, 16), torch.get_num_threads()
    before = [each.detach().clone() for each in net.state_dict().values()]
    state, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    report = try_calls(net, [image], {}, names=[name], budget_s=0.5, seed=0)
    assert [row["verdict"] for row in report["trials"] if row["verdict"] == "breaks"] == []
    assert len(report["trials"]) + len(report["left_out"]) >= 1
    assert [each.training for each in net.modules()] == [True, True, False, True]
    assert net[0].weight.is_contiguous()
    after = (torch.get_num_threads(), torch.get_float32_matmul_precision())
    assert after == (threads, precision)
    assert torch.equal(state, torch.get_rng_state())
    changed = [name for name, one in zip(net.state_dict(), before, strict=True)
               if not torch.equal(net.state_dict()[name], one)]  # fmt: skip
    assert changed == []


def test_the_answer_shows_itself(known):
    known(change("quick", factor=0.5))
    answer = profstack.try_(Waiting(), torch.ones(1, 4), budget=5)
    assert repr(answer).startswith("quick: a step takes ")
    assert answer._repr_html_().startswith("<pre>quick: ")
    assert answer.to_dict()["trials"][0]["change"] == "quick"
    assert "In turn, in blocks of" in repr(answer)
