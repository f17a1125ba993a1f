"""thop and fvcore beside the counter of record: their own figures, and nothing of them left behind.

`make test` installs both beside the environment: there they can be imported by these tests alone.
"""

from __future__ import annotations

import functools
import importlib
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from profstack.readers.flops import model_copies as flopcopies
from profstack.session import Session
from profstack.storage.vocabulary import MODEL_COUNTERS, MULTIPLYING
from profstack.wrappers.flops import CHECK

FOLDER = Path(sys.prefix) / "counters"

pytestmark = pytest.mark.skipif(
    not (FOLDER / "thop").is_dir(), reason="neither thop nor fvcore: make test installs them"
)


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both can be imported, and are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(FOLDER)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("thop", "fvcore"):
            del sys.modules[name]


@dataclass
class Known:
    """What the engine knows of a module."""

    module: nn.Module
    path: str

    def alive(self) -> nn.Module:
        return self.module


def counted(model: nn.Module, *inputs: Any, **named: Any) -> tuple[list[Any], list[str]]:
    """Rows with the module's path for its number, and the texts of the notes."""
    modules = {
        number: Known(module, f"Net.{name}".rstrip("."))
        for number, (name, module) in enumerate(model.named_modules(), 1)
    }
    with flopcopies.given(functools.partial(model, *inputs, **named)):
        rows, notes = flopcopies.count(0, modules, 1)
    known = {number: one.path for number, one in modules.items()}
    return [row | {"path": known.get(row["module_id"])} for row in rows], [
        note[1] for note in notes
    ]


def total(rows: list[Any], counter: str, multiplying: bool | None = None) -> int:
    return sum(
        row["flop"] or 0
        for row in rows
        if row["counter"] == counter
        and multiplying in (None, row["operator"] in MULTIPLYING[counter])
    )


def conv_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    )


# 8 x 6 x 6 values of 3 x 3 x 3 products, and 5 of 288, of 2 images.
MACS = 2 * (8 * 36 * 27 + 5 * 288)


def test_figures_are_the_tools_own_with_multiply_adds_doubled() -> None:
    model, x = conv_net().eval(), torch.randn(2, 3, 8, 8)
    rows, notes = counted(model, x)
    assert notes == []
    for counter in MODEL_COUNTERS:
        assert total(rows, counter, multiplying=True) == 2 * MACS
    by_thop = importlib.import_module("thop").profile(conv_net(), (x,), verbose=False)[0]
    assert by_thop == total(rows, "thop") - MACS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_fvcore = importlib.import_module("fvcore.nn").FlopCountAnalysis(model, x)
        by_fvcore.unsupported_ops_warnings(False)
        assert by_fvcore.total() == total(rows, "fvcore") - MACS
    assert {(row["path"], row["operator"]) for row in rows if row["counter"] == "thop"} == {
        *(("Net.0", "Conv2d"), ("Net.1", "BatchNorm2d"), ("Net.4", "Linear")),
    }
    assert {(row["path"], row["operator"]) for row in rows if row["counter"] == "fvcore"} == {
        *(("Net.0", "conv"), ("Net.1", "batch_norm"), ("Net.4", "linear")),
    }


def test_nothing_of_them_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(conv_net(), nn.Dropout(0.5)).train()
    x = torch.randn(2, 3, 8, 8)

    def state() -> list[Any]:
        return [
            (dict(vars(module)), set(module._buffers), dict(module._forward_hooks), module.training)
            for module in model.modules()
        ]

    before, values = state(), [value.clone() for value in model.state_dict().values()]
    inputs, generators = x.clone(), (torch.get_rng_state(), random.getstate())
    filters, hooks = list(warnings.filters), dict(nn.modules.module._global_forward_hooks)
    rows, notes = counted(model, x)
    assert notes == []
    assert rows
    assert state() == before
    assert all(map(torch.equal, model.state_dict().values(), values))
    assert torch.equal(x, inputs)
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert warnings.filters == filters
    assert nn.modules.module._global_forward_hooks == hooks
    assert not torch.compiler.is_compiling()
    assert capsys.readouterr() == ("", "")


def test_inputs_by_name_are_given_too() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 5)

        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
            return self.fc(x) * scale

    rows, notes = counted(Net(), torch.randn(3, 4), scale=torch.ones(5))
    assert notes == []
    assert Counter((row["counter"], row["path"], row["flop"]) for row in rows) == {
        ("thop", "Net.fc", 2 * 3 * 4 * 5): 1,
        ("fvcore", "Net.fc", 2 * 3 * 4 * 5): 1,
    }


def test_what_fvcore_misses_is_named() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(x, x, x).relu()

    rows, _ = counted(Net(), torch.randn(2, 4, 16, 8))
    (row,) = rows
    assert (row["counter"], row["operator"]) == ("fvcore", "aten::scaled_dot_product_attention")
    assert row["flop"] is None


class Odd(nn.Module):
    """Gives what no trace can take."""

    def forward(self, x: torch.Tensor) -> Any:
        return object()


class Single(nn.Module):
    """Cannot be copied."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("there is one of me\nand no more")


def test_what_they_raise_is_a_reason() -> None:
    rows, notes = counted(Odd(), torch.ones(2))
    assert rows == []
    (text,) = notes
    assert text.startswith("fvcore has no figures: it raises RuntimeError: Only tuples")
    rows, notes = counted(Single(), torch.ones(2))
    assert rows == []
    assert notes == [
        f"{tool} has no figures: it raises RuntimeError: there is one of me"
        for tool in MODEL_COUNTERS
    ]
    assert not torch.jit.is_tracing()


def test_models_that_nobody_gave_are_left_alone() -> None:
    rows, notes = flopcopies.count(0, {}, 1)
    assert rows == []
    assert [(slug, text.partition(":")[0]) for slug, text in notes] == [
        ("flops-uncounted", f"{tool} has no figures") for tool in MODEL_COUNTERS
    ]
    # A function may do anything: it is no model.
    with flopcopies.given(functools.partial(print, "called")):
        assert flopcopies.count(0, {}, 1) == ([], notes)


@pytest.mark.slow
def test_a_session_that_runs_a_model_has_them_beside_the_record() -> None:
    torch.manual_seed(0)
    model, x = conv_net().eval(), torch.randn(2, 3, 8, 8)
    with Session("counters", layers=["torch", "flops"]) as session, torch.no_grad():
        session.run(model, x)
    report = session.recording.to_dict()
    rows = {row["counter"]: row for row in report["tables"]["flops"]}
    assert set(MODEL_COUNTERS) < rows.keys()
    record = rows["FlopCounterMode"]
    assert record["forward_flop"] == rows["recorded_shapes"]["forward_flop"] == 2 * MACS
    assert rows["recorded_shapes"]["difference"] == "the same"
    assert record["difference"] is None
    for counter in MODEL_COUNTERS:
        assert rows[counter]["forward_flop"] > 2 * MACS
        assert "BatchNorm2d" in rows[counter]["difference"].replace("batch_norm", "BatchNorm2d")
        assert "leaves out by convention" in rows[counter]["difference"]
    # Calls of the copies are not the session's.
    paths = {row["path"].partition(".")[0] for row in report["tables"]["modules"]}
    assert {path for path in paths if not path.startswith("(")} == {"Sequential"}
    assert CHECK in {row["mode"] for row in report["slices"]}
