"""Try the layers, torch and packages out, in a process of its own.

`profstack doctor` starts it, so that a broken torch or driver can crash only this process. The one
argument is `layers`, `torch` or `packages:a,b`; the answer is the last line printed, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable

    from profstack.layer import Wrapper


class LayerAnswer(TypedDict, total=False):
    """A layer's tool and version, and the reason why it cannot work."""

    tool: str
    version: str | None
    reason: str | None
    third_party: bool


class LayersAnswer(TypedDict):
    """The layers by name, and problems with layers of third parties."""

    layers: dict[str, LayerAnswer]
    problems: list[str]


class TorchAnswer(TypedDict, total=False):
    """Torch, its device, and the numbers of events in a small profile."""

    reason: str
    version: str
    cuda_build: str | None
    kineto: bool
    cuda: bool
    gpu: str
    capability: str
    cpu_events: int
    device_events: int
    profiler_reason: str


class PackageAnswer(TypedDict):
    """A package's version, and the reason why it cannot be imported: empty if not installed."""

    version: str | None
    reason: str | None


def try_layers() -> LayersAnswer:
    """Load every layer and ask whether it can work."""
    from profstack import layer

    answers: dict[str, LayerAnswer] = {}
    # In the measured process torch is imported before a wrapper is.
    with contextlib.suppress(Exception):
        import torch  # noqa: F401
    for name in (*layer.layer_names(), *layer.ON_REQUEST):
        answers[name] = _try_layer(layer.load, name)
    added, problems = layer.third_party()
    for name in added:
        answers[name] = {**_try_layer(added.__getitem__, name), "third_party": True}
    return {"layers": answers, "problems": problems}


def _try_layer(load: Callable[[str], type[Wrapper]], name: str) -> LayerAnswer:
    try:
        wrapper = load(name)
        # A wrapper may import its tool here, and know its version only then.
        reason = wrapper.unavailable_reason()
        return {"tool": wrapper.description.tool, "version": wrapper.version(), "reason": reason}
    except Exception as error:
        return {"reason": _in_a_line(error)}


def try_torch() -> TorchAnswer:
    """Import torch, look at its device, and count the events that its profiler delivers."""
    try:
        import torch
    except Exception as error:
        return {"reason": _in_a_line(error)}
    answer: TorchAnswer = {
        "version": str(torch.__version__),
        "cuda_build": torch.version.cuda,
        "kineto": bool(torch.profiler.kineto_available()),
        "cuda": bool(torch.cuda.is_available()),
    }
    if answer["cuda"]:
        answer["gpu"] = torch.cuda.get_device_name(0)
        answer["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
    try:
        from torch.profiler import ProfilerActivity, profile

        # One multiplication.
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if answer["cuda"] else [])]
        matrix = torch.ones(16, 16, device="cuda" if answer["cuda"] else "cpu")
        with profile(activities=activities) as profiler:
            (matrix @ matrix).sum().item()
        kinds = [event.device_type().name for event in profiler.profiler.kineto_results.events()]
        answer["cpu_events"] = kinds.count("CPU")
        answer["device_events"] = len(kinds) - answer["cpu_events"]
    except Exception as error:
        answer["profiler_reason"] = _in_a_line(error)
    return answer


def try_packages(names: list[str]) -> dict[str, PackageAnswer]:
    """Import every package."""
    from importlib import import_module

    from profstack.privacy import package_version

    answers: dict[str, PackageAnswer] = {}
    for name in names:
        version, module, reason = package_version(name), name.replace("-", "_"), None
        try:
            import_module(module)
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == module
            reason = "" if missing and version is None else _in_a_line(error)
        answers[name] = {"version": version, "reason": reason}
    return answers


def _in_a_line(error: Exception) -> str:
    """Return an error as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def main(argv: list[str]) -> None:
    """Print the answer to the one argument."""
    what, _, names = argv[0].partition(":")
    ways = {"layers": try_layers, "torch": try_torch}
    answer = ways[what]() if what in ways else try_packages(names.split(","))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
