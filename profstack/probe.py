"""Tries the layers and packages out, in a process of its own.

`profstack doctor` starts it, so that a broken torch or driver can take down nothing but this.
The one argument is `layers`, `torch` or `packages:a,b`; the answer is one line of JSON, the last
one printed.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any


def try_layers() -> dict[str, Any]:
    """Per built-in layer its tool, version and why it cannot work; `problems` of third parties."""
    from profstack import registry

    answers: dict[str, Any] = {}
    # In the measured process a wrapper finds torch imported, and looks no further.
    with contextlib.suppress(Exception):
        import torch  # noqa: F401
    for name in registry.layer_names():
        try:
            answers[name] = _described(registry.load(name))
        except Exception as error:
            answers[name] = {"reason": _said(error)}
    added, problems = registry.third_party()
    for name, wrapper in added.items():
        try:
            answers[name] = {**_described(wrapper), "third_party": True}
        except Exception as error:
            answers[name] = {"reason": _said(error), "third_party": True}
    return {"layers": answers, "problems": problems}


def _described(wrapper: Any) -> dict[str, Any]:
    # Asked first: a wrapper may import its tool for it, and only then know the version.
    reason = wrapper.unavailable_reason()
    return {
        "tool": wrapper.description.tool,
        "version": wrapper.version(),
        "reason": reason,
    }


def try_torch() -> dict[str, Any]:
    """What torch finds here: its device, and which events its profiler really delivers."""
    try:
        import torch
    except Exception as error:
        return {"reason": _said(error)}
    answer: dict[str, Any] = {
        "version": str(torch.__version__),
        "cuda_build": torch.version.cuda,
        "kineto": bool(torch.profiler.kineto_available()),
        "cuda": bool(torch.cuda.is_available()),
    }
    if answer["cuda"]:
        answer["gpu"] = torch.cuda.get_device_name(0)
        answer["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
    try:
        answer["cpu_events"], answer["device_events"] = _recorded_events(answer["cuda"])
    except Exception as error:
        answer["profiler_reason"] = _said(error)
    return answer


def _recorded_events(cuda: bool) -> tuple[int, int]:
    """How many operator and kernel events a profile of one multiplication holds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    matrix = torch.ones(16, 16, device="cuda" if cuda else "cpu")
    with profile(activities=activities) as profiler:
        (matrix @ matrix).sum().item()
    kinds = [event.device_type().name for event in profiler.profiler.kineto_results.events()]
    return kinds.count("CPU"), len(kinds) - kinds.count("CPU")


def try_packages(names: list[str]) -> dict[str, Any]:
    """Per package its version, and why it cannot be imported."""
    from importlib import import_module

    from profstack.software import package_version

    answers: dict[str, Any] = {}
    for name in names:
        version = package_version(name)
        try:
            import_module(name.replace("-", "_"))
        except ModuleNotFoundError as error:
            missing = version is None and error.name == name.replace("-", "_")
            answers[name] = {"version": version, "reason": "" if missing else _said(error)}
        except Exception as error:
            answers[name] = {"version": version, "reason": _said(error)}
        else:
            answers[name] = {"version": version, "reason": None}
    return answers


def _said(error: Exception) -> str:
    """An error as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def main(argv: list[str]) -> None:
    """Answer for the one thing asked."""
    what, _, names = argv[0].partition(":")
    if what == "layers":
        answer = try_layers()
    elif what == "torch":
        answer = try_torch()
    else:
        answer = try_packages(names.split(","))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
