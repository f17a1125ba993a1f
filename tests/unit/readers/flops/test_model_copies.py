"""thop and fvcore beside the counter of record: their own figures, and nothing of them left behind.

`make test` installs both beside the environment: there they can be imported by these tests alone.
"""

import functools
import importlib
import random
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from profstack.readers.flops import model_copies
from profstack.storage.vocabulary import MODEL_COUNTERS, MULTIPLYING

FOLDER = Path(sys.prefix) / "counters"
WHY = "neither thop nor fvcore: make test installs them"
pytestmark = pytest.mark.skipif(not (FOLDER / "thop").is_dir(), reason=WHY)


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    """Both can be imported, and are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(FOLDER)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("thop", "fvcore"):
            del sys.modules[name]


def counted(model, *inputs, **named):
    """Counter, path, operator, calls, MAC and FLOP of three steps, and the texts of the notes."""
    modules = {
        number: SimpleNamespace(alive=lambda module=module: module, path=f"Net.{name}".rstrip("."))
        for number, (name, module) in enumerate(model.named_modules(), 1)
    }
    with model_copies.given(functools.partial(model, *inputs, **named)):
        rows, notes = model_copies.count(5, modules, 3)
    found = []
    for index, counter, module, operator, backward, *figures in map(dict.values, rows):
        calls, flop, masked, mac = figures
        assert (index, backward, masked) == (5, 0, None)
        path = modules[module].path if module else None
        found.append((counter, path, operator, calls, mac, flop))
    return found, [text for _, text in notes]


def conv_net():
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(8 * 36, 5))


# 8 x 6 x 6 values of 3 x 3 x 3 products, and 5 of 288, of 2 images.
MACS, IMAGES = 2 * (8 * 36 * 27 + 5 * 288), torch.randn(2, 3, 8, 8)


def test_figures_are_the_tools_own_with_multiply_adds_doubled():
    model = conv_net().eval()
    rows, notes = counted(model, IMAGES)
    assert (notes, len(rows)) == ([], 6)
    by_thop = importlib.import_module("thop").profile(conv_net(), (IMAGES,), verbose=False)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        analysis = importlib.import_module("fvcore.nn").FlopCountAnalysis(model, IMAGES)
        by_fvcore = analysis.unsupported_ops_warnings(False).total()
    names = (("Conv2d", "BatchNorm2d", "Linear"), ("conv", "batch_norm", "linear"))
    for counter, theirs, operators in zip(MODEL_COUNTERS, (by_thop, by_fvcore), names, strict=True):
        own = {row[2]: row for row in rows if row[0] == counter}
        products = sum(row[-1] for name, row in own.items() if name in MULTIPLYING[counter])
        every = sum(row[-1] for row in own.values())
        assert (products, every) == (3 * 2 * MACS, 3 * (theirs + MACS))
        assert sum(row[-2] for row in own.values()) == 3 * theirs
        places = [(path, calls) for _, path, _, calls, *_ in map(own.get, operators)]
        assert places == [("Net.0", 3), ("Net.1", 3), ("Net.4", 3)]


def test_nothing_of_them_is_left(capsys):
    model = nn.Sequential(conv_net(), nn.Dropout(0.5)).train()

    def state():
        of_modules = [
            (dict(vars(module)), set(module._buffers), dict(module._forward_hooks), module.training)
            for module in model.modules()
        ]
        random_state = (torch.get_rng_state().tolist(), random.getstate())
        hooks = dict(nn.modules.module._global_forward_hooks)
        return [of_modules, random_state, hooks, list(warnings.filters), IMAGES.tolist()]

    before, values = state(), [value.clone() for value in model.state_dict().values()]
    rows, notes = counted(model, IMAGES)
    assert (bool(rows), notes, state()) == (True, [], before)
    assert all(map(torch.equal, model.state_dict().values(), values))
    assert (torch.compiler.is_compiling(), capsys.readouterr()) == (False, ("", ""))


class Odd(nn.Module):
    def forward(self, x):
        return object()


def test_what_they_raise_is_a_reason():
    # No trace can take what it gives.
    rows, (text,) = counted(Odd(), torch.ones(2))
    assert (rows, text.startswith("fvcore has no figures")) == ([], True)
    assert "RuntimeError" in text
