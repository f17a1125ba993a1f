"""Changes to how numbers are stored and multiplied: autocast, TF32, channels_last, cuDNN."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from profstack.changes.contract import (
    Called,
    Change,
    Edit,
    Run,
    Seen,
    Value,
    called_within,
    device_of,
)


def _autocast(dtype: str) -> Callable[[Run], None]:
    """Return the patch that calls the model under autocast to a type."""

    def patch(run: Run) -> None:
        torch = run.torch

        def wrap(model: Any, call: Callable[..., Any]) -> Callable[..., Any]:
            device = device_of(model)

            def called(*args: Any, **kwargs: Any) -> Any:
                run.took_hold_in_call()
                with torch.autocast(device, dtype=getattr(torch, dtype)):
                    return call(*args, **kwargs)

            return called

        run.around_root(wrap)

    return patch


def _called_in(dtype: str) -> Callable[[Any, Any, Value | None, str], Called]:
    """Return how something is called under autocast to a type."""

    def called(torch: Any, target: Any, _: Value | None, device: str) -> Called:
        return called_within(target, lambda: torch.autocast(device, dtype=getattr(torch, dtype)))

    return called


def _to_lower(seen: Seen) -> str | None:
    if not seen.root:
        return "no model was called"
    if seen.calls.get("autocast"):
        return "the script uses autocast already"
    return None if seen.root["dtype"] == "float32" else f"the model is {seen.root['dtype']}"


BF16 = Change(
    "bfloat16",
    "call the model under torch.autocast to bfloat16",
    "precision",
    _to_lower,
    _autocast("bfloat16"),
    edit=Edit(within="with torch.autocast({device!r}, dtype=torch.bfloat16):"),
    excludes=("float16",),
    on_call=_called_in("bfloat16"),
    findings=("module-dominates",),
)
FP16 = Change(
    "float16",
    "call the model under torch.autocast to float16 (training wants a GradScaler, too)",
    "precision",
    lambda seen: "float16 is slow on a CPU" if seen.device == "cpu" else _to_lower(seen),
    _autocast("float16"),
    edit=Edit(within="with torch.autocast({device!r}, dtype=torch.float16):"),
    excludes=("bfloat16",),
    on_call=_called_in("float16"),
)


def _matmul_precision(run: Run) -> None:
    run.torch.set_float32_matmul_precision(str(run.value))
    run.took_hold()


def _called_with_precision(torch: Any, target: Any, value: Value | None, _: str) -> Called:
    @contextmanager
    def active() -> Iterator[None]:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(value)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    return Called(target, active)


MATMUL = Change(
    "matmul-precision",
    "multiply float32 with fewer digits inside (TF32, or bfloat16 passes)",
    "precision",
    lambda seen: None if seen.root.get("dtype") == "float32" else "no model is float32",
    _matmul_precision,
    values=lambda seen: ["high", "medium"],
    edit=Edit(line="torch.set_float32_matmul_precision({value!r})"),
    on_call=_called_with_precision,
    excludes=("tf32",),
)


def _tf32(run: Run) -> None:
    run.torch.backends.cuda.matmul.allow_tf32 = True
    run.torch.backends.cudnn.allow_tf32 = True
    run.took_hold()


TF32 = Change(
    "tf32",
    "let a GPU multiply float32 as TF32",
    "precision",
    lambda seen: "it uses no NVIDIA GPU" if not seen.device.startswith("cuda") else None,
    _tf32,
    edit=Edit(line="torch.backends.cuda.matmul.allow_tf32 = True"),
    excludes=("matmul-precision",),
    findings=("float32-matmul-without-tf32",),
)


def _cudnn_benchmark(run: Run) -> None:
    run.torch.backends.cudnn.benchmark = True
    run.took_hold()


CUDNN = Change(
    "cudnn-benchmark",
    "let cuDNN choose the fastest convolution of each size",
    "digits",
    lambda seen: (
        "it uses no NVIDIA GPU"
        if not seen.device.startswith("cuda")
        else None
        if seen.root.get("convolutions")
        else "the model has no convolution"
    ),
    _cudnn_benchmark,
    edit=Edit(line="torch.backends.cudnn.benchmark = True"),
)


def _channels_last(run: Run) -> None:
    def change(model: Any) -> None:
        model.to(memory_format=run.torch.channels_last)
        run.took_hold()

    run.once_at_root(change)


CHANNELS_LAST = Change(
    "channels-last",
    "keep images and filters with their channels last",
    "digits",
    lambda seen: None if seen.root.get("convolutions") else "the model has no 2-D convolution",
    _channels_last,
    edit=Edit(before_loop="{model}.to(memory_format=torch.channels_last)"),
    findings=("module-dominates",),
    on_call=lambda torch, model, value, device: Called(
        copy.deepcopy(model).to(memory_format=torch.channels_last)
    ),
    of_model=True,
)

CHANGES = (BF16, FP16, MATMUL, TF32, CUDNN, CHANNELS_LAST)
