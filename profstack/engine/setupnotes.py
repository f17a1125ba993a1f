"""How the script set its work up, as torch would not tell afterwards: what is noted in some steps.

Noted are the optimizers that step, with what they were told to do; grad mode, autocast and the
nodes that autograd records at the outermost module calls; and which layers of normalisation and
dropout are in training mode. Nothing of the script's is kept, changed or asked through code of
its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from profstack import ownfiles

# Modules that are named one by one; more are counted only.
MOST_NAMED = 50
# Frames looked through for the script's own line.
_MOST_FRAMES = 60
# What an optimizer's group says of how it works; numbers and tensors are told as yes or no.
_FLAGS = ("fused", "foreach", "capturable", "differentiable", "maximize", "amsgrad", "nesterov")
_MOVING = ("momentum", "weight_decay", "centered")


class Notes:
    """What was seen in the steps of one plan; `failed` is set by who met an error in here."""

    def __init__(self, torch: Any, places: ownfiles.Places) -> None:
        self.failed: str | None = None
        self._torch = torch
        self._places = places
        self._norm = torch.nn.modules.batchnorm._BatchNorm
        self._dropout = torch.nn.modules.dropout._DropoutNd
        count = getattr(torch._C._autograd, "_get_sequence_nr", None)
        self._count: Callable[[], int] | None = count
        self._depth = 0
        # Inside a backward pass or an optimizer's step (a closure) calls are parts of those.
        self._inside = 0
        self._before = 0
        self._steps = 0
        self._backward = 0
        # By module and circumstances: a step may make very many calls.
        self._calls: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._current: dict[str, Any] | None = None
        self._optimizers: dict[str, dict[str, Any]] = {}
        self._training: dict[str, dict[str, dict[str, Any]]] = {"norms": {}, "dropouts": {}}

    def entered(self, kind: str, name: str, thing: Any) -> None:
        """A module's call, a backward pass or an optimizer's step begins."""
        if kind == "module":
            if not self._depth and not self._inside:
                self._call_begins(name, thing)
            self._depth += 1
            self._look_at(name, thing)
        elif kind == "backward":
            self._backward += 1
            self._inside += 1
        elif kind == "optimizer":
            self._inside += 1
            if thing is not None:
                self._optimizer(thing)

    def left(self, kind: str) -> None:
        """It has ended."""
        if kind == "module":
            self._depth = max(self._depth - 1, 0)
            if not self._depth and not self._inside:
                self._call_ends()
        elif kind in ("backward", "optimizer"):
            self._inside = max(self._inside - 1, 0)

    def step_ended(self) -> None:
        """A step is over, and with it whatever an error has left open."""
        self._steps += 1
        self._depth = self._inside = 0
        self._current = None

    def facts(self) -> dict[str, Any]:
        """The notes as plain values; `nodes` of all calls together, None where nobody counts."""
        # A loss is a module too, and has no parameters.
        calls = [call for call in self._calls.values() if call["has_parameters"]]
        return {
            "steps": self._steps,
            "failed": self.failed,
            "backward_passes": self._backward,
            "calls": {
                "count": sum(call["calls"] for call in calls),
                "training": sum(call["calls"] for call in calls if call["training"]),
                "with_grad": sum(call["calls"] for call in calls if call["grad"]),
                "inference_mode": sum(call["calls"] for call in calls if call["inference_mode"]),
                "nodes": None if self._count is None else sum(call["nodes"] for call in calls),
                "module": calls[0]["module"] if calls else None,
                "place": next((call["place"] for call in calls if call["place"]), None),
                "autocast": next((call["autocast"] for call in calls if call["autocast"]), None),
            },
            "optimizers": list(self._optimizers.values()),
            **{
                f"training_{name}": {
                    "count": len(found),
                    "modules": list(found.values())[:MOST_NAMED],
                }
                for name, found in self._training.items()
            },
            "device": self._device(),
        }

    # -- what is looked at -----------------------------------------------------------------------

    def _call_begins(self, name: str, module: Any) -> None:
        torch = self._torch
        seen: dict[str, Any] = {
            "module": name,
            "training": bool(_own(module, "training")),
            "grad": torch.is_grad_enabled(),
            "inference_mode": torch.is_inference_mode_enabled(),
            "autocast": self._autocast(),
        }
        key = tuple(seen.values())
        call = self._calls.get(key)
        if call is None:
            more = {"has_parameters": _has_parameters(module), "place": self._place()}
            call = self._calls[key] = {**seen, **more, "calls": 0, "nodes": 0}
        call["calls"] += 1
        self._current = call
        if self._count is not None:
            self._before = self._count()

    def _call_ends(self) -> None:
        call, self._current = self._current, None
        if call is not None and self._count is not None:
            call["nodes"] += self._count() - self._before

    def _autocast(self) -> str | None:
        """The type that autocast computes in here, None where it is off."""
        torch = self._torch
        device = "cuda" if torch.cuda.is_initialized() else "cpu"
        if not torch.is_autocast_enabled(device):
            return None
        return str(torch.get_autocast_dtype(device)).removeprefix("torch.")

    def _look_at(self, name: str, module: Any) -> None:
        """Remember what works otherwise in training than at inference."""
        kind = type(module)
        if issubclass(kind, self._norm):
            # Without averages of its own it works on the batch in both modes, as it was made to.
            known = (_own(module, "_buffers") or {}).get("running_mean") is not None
            # Without a momentum it gathers averages anew, which is what such a pass is for.
            if known and _own(module, "training") and _own(module, "momentum") is not None:
                self._training["norms"].setdefault(name, {"path": name, "type": kind.__name__})
        elif issubclass(kind, self._dropout):
            share = _own(module, "p")
            if _own(module, "training") and isinstance(share, (int, float)) and share > 0:
                self._training["dropouts"].setdefault(name, {"path": name, "type": kind.__name__})

    def _optimizer(self, optimizer: Any) -> None:
        """Remember an optimizer by its class and settings, and how much it has to update."""
        kind = type(optimizer)
        groups = [dict(group) for group in _own(optimizer, "param_groups") or ()]
        with self._torch._C.DisableTorchFunction():
            found = self._tensors(groups)
        settings = {
            "name": kind.__name__,
            "base": next((each.__name__ for each in kind.__mro__ if _is_torchs(each)), None),
            **{flag: _agreed(groups, flag) for flag in _FLAGS},
            **{flag: _any_number(groups, flag) for flag in _MOVING},
            "has_fused": bool(groups) and all("fused" in group for group in groups),
            "has_foreach": bool(groups) and all("foreach" in group for group in groups),
        }
        key = repr((settings, found))
        if key in self._optimizers:
            self._optimizers[key]["calls"] += 1
            return
        self._optimizers[key] = {**settings, **found, "calls": 1, "place": self._place()}

    def _tensors(self, groups: list[dict[str, Any]]) -> dict[str, Any]:
        """The parameters that have gradients: how many, of how many bytes, where and of what."""
        base = self._torch._C.TensorBase
        count, elements, nbytes, sparse = 0, 0, 0, 0
        devices: set[str] = set()
        types: set[str] = set()
        for group in groups:
            for parameter in group.get("params", ()):
                gradient = base.grad.__get__(parameter)
                if gradient is None:
                    continue
                count += 1
                size = base.numel(parameter)
                elements += size
                nbytes += size * base.element_size(parameter)
                sparse += str(base.layout.__get__(gradient)) != "torch.strided"
                devices.add(base.device.__get__(parameter).type)
                types.add(str(base.dtype.__get__(parameter)).removeprefix("torch."))
        return {
            "tensors": count,
            "elements": elements,
            "parameter_bytes": nbytes,
            "sparse_tensors": sparse,
            "devices": sorted(devices),
            "dtypes": sorted(types),
        }

    def _place(self) -> dict[str, Any] | None:
        """The script's own line that is being run."""
        frame = sys._getframe(1)
        for _ in range(_MOST_FRAMES):
            if self._places.is_own(frame.f_code.co_filename):
                return {"file": frame.f_code.co_filename, "line": frame.f_lineno}
            if frame.f_back is None:
                return None
            frame = frame.f_back
        return None

    def _device(self) -> dict[str, Any] | None:
        """What the GPU in use can do; None without one."""
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return None
        return {"capability": list(cuda.get_device_capability())}


def _own(thing: Any, name: str) -> Any:
    """What an object has under a name, read past whatever its class makes of the question."""
    return object.__getattribute__(thing, "__dict__").get(name)


def _has_parameters(module: Any) -> bool:
    """Whether a module or one inside it has parameters."""
    waiting: list[Any] = [module]
    while waiting:
        each = waiting.pop()
        if any(value is not None for value in (_own(each, "_parameters") or {}).values()):
            return True
        waiting += [child for child in (_own(each, "_modules") or {}).values() if child is not None]
    return False


def _is_torchs(kind: type) -> bool:
    return kind.__module__.startswith("torch.optim.") and kind.__name__ != "Optimizer"


def _agreed(groups: list[dict[str, Any]], flag: str) -> bool | None:
    """What all groups say of a flag, None where it is left open or they differ."""
    said = {group.get(flag) for group in groups if isinstance(group.get(flag), (bool, type(None)))}
    return said.pop() if len(said) == 1 else None


def _any_number(groups: list[dict[str, Any]], name: str) -> bool:
    """Whether any group has a value other than zero; a tensor's is not read."""
    return any(
        not isinstance(group.get(name), (int, float, type(None))) or bool(group.get(name))
        for group in groups
    )
