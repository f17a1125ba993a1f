"""Blur and edge-filter an image by one 2-D convolution, measured by every counter and clock.

Each tool is used the way its own documentation says, on the same convolution, and one line is
printed for it: time from the clock, cProfile and torch.profiler, floating-point operations by
hand, from FlopCounterMode, torch.profiler, flops-profiler and thop. A tool that is not installed
says so. A multiply-add counts as two operations; thop counts multiply-adds, and is doubled here.

    python examples/convolution_counters.py
    python -m profstack run examples/convolution_counters.py --repeats 60
"""

import argparse
import contextlib
import cProfile
import importlib
import io
import pstats
import statistics
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode


def picture(height: int, width: int) -> torch.Tensor:
    """A coloured picture of rings, (1, 3, height, width), values from 0 to 1."""
    y = torch.linspace(-1, 1, height)[:, None]
    x = torch.linspace(-1, 1, width)[None, :]
    rings = torch.sin(40 * (x * x + y * y).sqrt())
    return (torch.stack([rings, rings * x, rings * y])[None] + 1) / 2


class Filters(nn.Module):
    """A 5x5 blur and a Laplacian for each colour: six filters over three channels."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 5, padding=2, bias=False)
        blur = torch.full((5, 5), 1 / 25)
        edges = torch.zeros(5, 5)
        edges[2, 1:4] = edges[1:4, 2] = 1.0
        edges[2, 2] = -4.0
        weights = torch.zeros(6, 3, 5, 5)
        for colour in range(3):
            weights[colour, colour] = blur
            weights[colour + 3, colour] = edges
        self.convolution.weight = nn.Parameter(weights)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.convolution(image)


def by_hand(image: torch.Tensor) -> int:
    """Operations: each of the output's values is a sum over 3 channels and 5 x 5 neighbours."""
    _, channels, height, width = image.shape
    return 2 * 6 * height * width * channels * 5 * 5


def by_clock(model: nn.Module, image: torch.Tensor, repeats: int) -> float:
    """Median time of a call in seconds, after some to warm up."""
    times = []
    for number in range(repeats + 5):
        begun = time.perf_counter()
        model(image)
        if number >= 5:
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def by_cprofile(model: nn.Module, image: torch.Tensor, repeats: int) -> tuple[float, int]:
    """Time of a call inside `torch.conv2d` in seconds, and calls of Python functions."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(repeats):
        model(image)
    profile.disable()
    stats = pstats.Stats(profile, stream=io.StringIO())
    inside = sum(row[2] for key, row in stats.stats.items() if "conv2d" in key[2])  # type: ignore[attr-defined]
    return inside / repeats, stats.total_calls // repeats  # type: ignore[attr-defined]


def by_torch_profiler(model: nn.Module, image: torch.Tensor, repeats: int) -> tuple[float, int]:
    """Time of a call inside `aten::conv2d` in seconds, and its operations."""
    with torch.profiler.profile(record_shapes=True, with_flops=True) as profiler:
        for _ in range(repeats):
            model(image)
    (row,) = (row for row in profiler.key_averages() if row.key == "aten::conv2d")
    return row.cpu_time_total / 1e6 / repeats, int(row.flops) // repeats


def by_flop_counter(model: nn.Module, image: torch.Tensor) -> int:
    """Operations by the counter that torch ships."""
    with FlopCounterMode(display=False) as counter:
        model(image)
    return counter.get_total_flops()


def by_flops_profiler(model: nn.Module, image: torch.Tensor) -> int:
    """Operations by flops-profiler, which was made for DeepSpeed."""
    profiler: Any = importlib.import_module("flops_profiler.profiler").FlopsProfiler(model)
    profiler.start_profile()
    model(image)
    operations = int(profiler.get_total_flops())
    profiler.end_profile()
    return operations


def by_thop(model: nn.Module, image: torch.Tensor) -> int:
    """Operations by thop."""
    thop: Any = importlib.import_module("thop")
    with contextlib.redirect_stdout(io.StringIO()):
        multiply_adds, _ = thop.profile(model, inputs=(image,), verbose=False)
    return 2 * int(multiply_adds)


def counted(name: str, count: Any, expected: int, seconds: float) -> None:
    """One line of operations and their rate; or that the tool is missing."""
    try:
        operations = count()
    except ModuleNotFoundError as error:
        print(f"{name:<16} not installed ({error.name})")
        return
    agrees = "as by hand" if operations == expected else f"by hand: {expected:,}"
    rate = operations / seconds / 1e9
    print(f"{name:<16} {operations:,} FLOP, {rate:.2f} GFLOP/s ({agrees})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, nargs=2, default=(240, 320), metavar=("H", "W"))
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()

    image, model = picture(*options.size), Filters().eval()
    with torch.no_grad():
        filtered = model(image)
        difference = (filtered[:, :3] - functional.avg_pool2d(image, 5, 1, 2)).abs().max().item()
        print(f"image {tuple(image.shape)}, filtered {tuple(filtered.shape)}")
        print(f"the blur is avg_pool2d's to {difference:.1e}")

        seconds = by_clock(model, image, options.repeats)
        print(f"{'clock':<16} {seconds * 1e3:.3f} ms a call (median of {options.repeats})")
        inside, calls = by_cprofile(model, image, options.repeats)
        print(f"{'cProfile':<16} {inside * 1e3:.3f} ms in conv2d, {calls} Python calls")
        inside, operations = by_torch_profiler(model, image, options.repeats)
        print(f"{'torch.profiler':<16} {inside * 1e3:.3f} ms in aten::conv2d")

        expected = by_hand(image)
        counted("by hand", lambda: expected, expected, seconds)
        counted("torch.profiler", lambda: operations, expected, seconds)
        counted("FlopCounterMode", lambda: by_flop_counter(model, image), expected, seconds)
        counted("flops-profiler", lambda: by_flops_profiler(model, image), expected, seconds)
        counted("thop", lambda: by_thop(model, image), expected, seconds)


if __name__ == "__main__":
    main()
