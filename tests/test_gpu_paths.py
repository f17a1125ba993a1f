"""What runs with CUDA alone, tried on things that stand for it: no device is needed here."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from profstack.benchmark import peaks
from profstack.benchmark.clock import Clock
from profstack.memory.alive import Alive, Block
from profstack.memory.before import Known
from profstack.memory.kinds import GRADIENTS, KINDS, NOBODY
from profstack.torchtrace.allocations import FOR_EVER, AllocatorEvents, blocks_of
from profstack.wrapper import SliceContext
from profstack.wrappers.torch_profiler import TorchProfilerWrapper

# -- a device that the script has not opened -------------------------------------------------------


def test_the_torch_layer_does_not_ask_whether_there_is_a_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To ask initialises the driver, and what the script forks later could not use it."""

    def asked() -> bool:
        raise AssertionError("the script uses no device, and one was asked for")

    monkeypatch.setattr(torch.cuda, "is_available", asked)
    wrapper = TorchProfilerWrapper()
    wrapper.start(SliceContext(0, "timed", 1, tmp_path))
    wrapper.stop()
    wrapper.close()


# -- peaks -----------------------------------------------------------------------------------------


class SlowToOpen:
    """A GPU whose first product takes 5 s and every other one 1 ms, by a clock of its own."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.products = 0
        self.backends, self.float32 = torch.backends, torch.float32

    def rand(self, *shape: int, device: str) -> torch.Tensor:
        return torch.rand(2, 2)

    def empty(self, *shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
        return torch.empty(2, 2, dtype=dtype)

    def get_num_threads(self) -> int:
        return 1

    def mm(self, *_: torch.Tensor, **_out: torch.Tensor) -> None:
        self.time_s += 1e-3 if self.products else 5.0
        self.products += 1


@pytest.fixture
def tf32_as_before() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("tf32_as_before")
def test_what_opening_a_gpu_takes_is_not_the_time_its_peak_has() -> None:
    gpu = SlowToOpen()
    clock: Any = Clock(device=False)
    clock.now = clock.cpu = lambda: gpu.time_s
    rate, _, how = peaks._product_rate(gpu, "float32", "cuda:0", clock)
    assert "8192 x 8192" in how
    assert rate == pytest.approx(2 * 8192**3 / 1e-3)


# -- memory ----------------------------------------------------------------------------------------


def test_a_block_larger_than_its_tensor_is_given_back_whole() -> None:
    """CUDA's allocator splits no block for what is left of it: the tensor needs 512 less."""
    module = nn.Linear(1, 1)
    gradient = Block(2048, GRADIENTS, False, [weakref.ref(module)])
    before = Alive({("cuda:0", 7): gradient}, totals={"cuda:0": 2560})
    column = [np.array(values, np.int64) for values in ([10], [7], [-2560], [0], [4])]
    events = AllocatorEvents(*column, ["cuda:0"], {})
    born, given_back = blocks_of(events)
    named = SimpleNamespace(alive=lambda: module)
    older, owned = Known(events, 5, {3: named}, 0).older(before, Alive(), born, given_back)
    rows = zip(owned.kind.tolist(), older.nbytes.tolist(), older.end.tolist(), strict=True)
    assert [(KINDS[kind], nbytes, end) for kind, nbytes, end in rows] == [(GRADIENTS, 2560, 10)]
    assert FOR_EVER not in older.end
    assert NOBODY not in {KINDS[kind] for kind in owned.kind.tolist()}
