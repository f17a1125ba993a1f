"""Note how the script set its work up: loaders, precision, optimizers.

Noted are the optimizers that step, with their settings; grad mode, autocast and the nodes that
autograd records at the outermost module calls; how much of their tokens is padding; which of them
were on the input of the one before, or on that of each step, or on rows gathered from fewer; whose
gradients no optimizer uses; how often ranks exchange theirs; and which layers of normalisation and
dropout are in training mode. No object of the script's is kept or changed, and none of its code
runs for this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from profstack import code_owner
from profstack.capture.constant_inputs import ConstantInputs
from profstack.capture.exchanges import Exchanges
from profstack.capture.gathered_rows import GatheredRows
from profstack.capture.observers import GuardedListener
from profstack.capture.padding import PaddingNotes
from profstack.capture.repeated_calls import RepeatedCalls
from profstack.capture.slices import SlicePlan
from profstack.capture.unused_gradients import UnusedGradients
from profstack.guard import is_scripts
from profstack.layer import Listener
from profstack.models import parameters_in, parts_of

# Modules that are named one by one; more are only counted.
MOST_NAMED = 50
# Settings of an optimizer's groups; numbers and tensors are noted as yes or no.
_FLAGS = ("fused", "foreach", "capturable", "differentiable", "maximize", "amsgrad", "nesterov")
_MOVING = ("momentum", "weight_decay", "centered")


Place = dict[str, str | int]
# The settings of a group of parameters, as torch keeps them.
Group = dict[str, Any]


@dataclass
class _Calls:
    """The outermost calls of one module under the same circumstances."""

    module: str
    training: bool
    grad: bool
    inference_mode: bool
    autocast: str | None
    has_parameters: bool
    place: Place | None
    calls: int = 0
    nodes: int = 0


class SetupNotes(Listener):
    """Notes of the steps of one plan; an error in taking them sets `failed`."""

    def __init__(self, torch: Any, places: code_owner.Places) -> None:
        self.failed: str | None = None
        self._torch = torch
        self._places = places
        self._norm = torch.nn.modules.batchnorm._BatchNorm
        self._dropout = torch.nn.modules.dropout._DropoutNd
        count = getattr(torch._C._autograd, "_get_sequence_nr", None)
        self._count: Callable[[], int] | None = count
        self._depth = 0
        # Inside a backward pass or an optimizer's step calls are parts of those, but for what its
        # closure does: `_around` has what that is inside of.
        self._inside = 0
        self._around: list[int] = []
        self._before = 0
        self._steps = 0
        # Backward passes: all, those that keep their graph, those under anomaly detection.
        self._backward = self._kept = self._anomaly = 0
        # By module and circumstances: a step may make very many calls.
        self._calls: dict[tuple[object, ...], _Calls] = {}
        self._current: _Calls | None = None
        # Facts of the optimizers of one class with the same settings, by these.
        self._optimizers: dict[str, dict[str, Any]] = {}
        self._training: dict[str, dict[str, dict[str, str]]] = {"norms": {}, "dropouts": {}}
        self._padding = PaddingNotes(torch)
        self._repeated = RepeatedCalls(torch)
        self._constant = ConstantInputs(torch, self._repeated.told)
        self._gathered = GatheredRows(torch, self._place)
        self.unused = UnusedGradients(torch)
        self._exchanges = Exchanges()
        # Whether a module has parameters that ask for gradients, by its identity.
        self._asks: dict[int, bool | None] = {}
        self._given: tuple[Any, Any] | None = None

    def fail(self, error: BaseException) -> None:
        """Note the error that ended the notes."""
        self.failed = f"{type(error).__name__}: {error}"

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """Note that a module's call, a backward pass or an optimizer's step begins."""
        if kind == "module":
            self._module_begins(name, module)
        elif kind == "backward":
            self._backward += 1
            self._kept += module is True
            self._anomaly += self._torch.is_anomaly_enabled()
            self._inside += 1
            self._repeated.weights_may_change()
            if module is not None:
                self._exchanges.backward_begins()
        elif kind == "optimizer":
            self._inside += 1
            self._repeated.weights_may_change()
            if module is not None:
                groups = list(_own(module, "param_groups") or ())
                self._exchanges.optimizer_begins(groups)
                self.unused.optimizer_begins(groups)
                self._optimizer(module)
        elif kind == "closure":
            self._around.append(self._inside)
            self._inside = max(self._inside - 1, 0)

    def given(self, around: object, args: Any, kwargs: Any) -> None:
        """Keep the inputs of a module's call until it is entered."""
        self._given = (args, kwargs)

    def leave(self, kind: str, name: str) -> None:
        """Note that it has ended."""
        if kind == "module":
            if not self._inside:
                self._constant.call_ends()
            self._depth = max(self._depth - 1, 0)
            if not self._depth and not self._inside:
                self._padding.call_ends()
                call, self._current = self._current, None
                if call is not None and self._count is not None:
                    call.nodes += self._count() - self._before
        elif kind in ("backward", "optimizer"):
            self._inside = max(self._inside - 1, 0)
        elif kind == "closure" and self._around:
            self._inside = self._around.pop()

    def step_ended(self, number: int) -> None:
        """Note that a step has ended, and with it what an error has left open."""
        self._steps += 1
        self._depth = self._inside = 0
        self._around.clear()
        self._current = None
        self._padding.forget()
        self._constant.step_ended()

    def facts(self) -> dict[str, object]:
        """Return the notes as plain values; `nodes` is None where torch does not count them."""
        # A loss is a module too, and has no parameters.
        calls = [call for call in self._calls.values() if call.has_parameters]
        cuda = self._torch.cuda
        used = cuda.is_initialized()
        return {
            "steps": self._steps,
            "failed": self.failed,
            "backward_passes": self._backward,
            "kept_graphs": self._kept,
            "anomaly_passes": self._anomaly,
            "calls": {
                "count": sum(call.calls for call in calls),
                "training": sum(call.calls for call in calls if call.training),
                "with_grad": sum(call.calls for call in calls if call.grad),
                "inference_mode": sum(call.calls for call in calls if call.inference_mode),
                "nodes": None if self._count is None else sum(call.nodes for call in calls),
                "module": calls[0].module if calls else None,
                "place": next((call.place for call in calls if call.place), None),
                "autocast": next((call.autocast for call in calls if call.autocast), None),
            },
            "optimizers": list(self._optimizers.values()),
            **{
                f"training_{name}": {"count": len(found), "modules": [*found.values()][:MOST_NAMED]}
                for name, found in self._training.items()
            },
            "padding": self._padding.facts(),
            "repeated": self._repeated.facts(),
            "constant": self._constant.facts(),
            "gathered": self._gathered.facts(),
            "unused_gradients": self.unused.facts(),
            "exchanges": self._exchanges.facts(),
            "device": {"capability": [*cuda.get_device_capability()]} if used else None,
        }

    # -- taking notes ----------------------------------------------------------------------------

    def _module_begins(self, name: str, module: Any) -> None:
        given, self._given = self._given, None
        if not self._inside:
            if not self._depth:
                args, kwargs = given or ((), {})
                self.unused.call_begins(module, (*args, *kwargs.values()))
            self.unused.module_begins(name, module)
            self._gathered.call_begins(name, module, given)
            asks = self._asks_for_gradients(module)
            may_change = asks and self._backward > 0
            self._constant.call_begins(name, module, given, may_change=may_change)
        if not self._depth and not self._inside:
            self._call_begins(name, module)
            self._exchanges.call_begins(module, with_grad=self._torch.is_grad_enabled())
            if given is not None:
                self._padding.call_begins(module, *given)
                call = self._current
                if call is not None and call.has_parameters:
                    key = call.training, call.grad, call.inference_mode, call.autocast
                    self._repeated.call_begins(name, module, given, self._place, key)
        elif given is not None:
            self._padding.embedding_begins(module, given[0])
        self._depth += 1
        self._look_at(name, module)

    def _call_begins(self, name: str, module: Any) -> None:
        torch = self._torch
        training = bool(_own(module, "training"))
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        # The type that autocast computes in here, None where it is off.
        device, autocast = "cuda" if torch.cuda.is_initialized() else "cpu", None
        if torch.is_autocast_enabled(device):
            autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        key = (name, training, grad, inference, autocast)
        call = self._calls.get(key)
        if call is None:
            has_parameters = any(map(parameters_in, parts_of(module)))
            call = self._calls[key] = _Calls(*key, has_parameters, self._place())
        call.calls += 1
        self._current = call
        if self._count is not None:
            self._before = self._count()

    def _asks_for_gradients(self, module: Any) -> bool | None:
        """Return whether a module, or one inside it, has parameters that ask for gradients.

        None where it has no parameters.
        """
        if id(module) not in self._asks:
            asks = self._torch._C.TensorBase.requires_grad.__get__
            with self._torch._C.DisableTorchFunction():
                own = [asks(each) for part in parts_of(module) for each in parameters_in(part)]
            self._asks[id(module)] = any(own) if own else None
        return self._asks[id(module)]

    def _look_at(self, name: str, module: Any) -> None:
        """Note a module that works differently in training and at inference."""
        kind = type(module)
        if issubclass(kind, self._norm):
            # Without averages of its own it works on the batch in both modes, by design.
            differs = (_own(module, "_buffers") or {}).get("running_mean") is not None
            # Without a momentum it computes new averages, which is the purpose of such a pass.
            family, differs = "norms", differs and _own(module, "momentum") is not None
        elif issubclass(kind, self._dropout):
            share = _own(module, "p")
            family, differs = "dropouts", isinstance(share, (int, float)) and share > 0
        else:
            return
        if differs and _own(module, "training"):
            self._training[family].setdefault(name, {"path": name, "type": kind.__name__})

    def _optimizer(self, optimizer: Any) -> None:
        """Note an optimizer by its class and settings, and how much it has to update."""
        kind = type(optimizer)
        groups = [dict(group) for group in _own(optimizer, "param_groups") or ()]
        with self._torch._C.DisableTorchFunction():
            found = self._tensors(groups)
        torchs = [each for each in kind.__mro__ if each.__module__.startswith("torch.optim.")]
        settings = {
            "name": kind.__name__,
            "base": next((each.__name__ for each in torchs if each.__name__ != "Optimizer"), None),
            **{flag: _agreed(groups, flag) for flag in _FLAGS},
            **{flag: _any_number(groups, flag) for flag in _MOVING},
            "has_fused": bool(groups) and all("fused" in group for group in groups),
            "has_foreach": bool(groups) and all("foreach" in group for group in groups),
        }
        key = repr((settings, found))
        if key not in self._optimizers:
            self._optimizers[key] = {**settings, **found, "calls": 0, "place": self._place()}
        self._optimizers[key]["calls"] += 1

    def _tensors(self, groups: list[Group]) -> dict[str, int | list[str]]:
        """Describe the parameters with gradients: number, bytes, devices and types."""
        base = self._torch._C.TensorBase
        parameters: Iterator[Any] = chain.from_iterable(group.get("params", ()) for group in groups)
        found = [each for each in parameters if base.grad.__get__(each) is not None]
        layouts = [str(base.layout.__get__(base.grad.__get__(each))) for each in found]
        dtypes = {str(base.dtype.__get__(each)) for each in found}
        return {
            "tensors": len(found),
            "elements": sum(map(base.numel, found)),
            "parameter_bytes": sum(base.numel(each) * base.element_size(each) for each in found),
            "sparse_tensors": len(layouts) - layouts.count("torch.strided"),
            "devices": sorted({base.device.__get__(each).type for each in found}),
            "dtypes": sorted(each.removeprefix("torch.") for each in dtypes),
        }

    def _place(self) -> Place | None:
        """Return the script's own line that is being run."""
        line = self._places.own_line(sys._getframe(1))
        return None if line is None else {"file": line[0], "line": line[1]}


def _own(thing: Any, name: str) -> Any:
    """Return an attribute of an object's own, past whatever its class does at a look-up."""
    return object.__getattribute__(thing, "__dict__").get(name)


def _agreed(groups: list[Group], flag: str) -> bool | None:
    """Return a flag on which all groups agree, None where it is open or they differ."""
    values = [group.get(flag) for group in groups]
    said = {value for value in values if isinstance(value, bool) or value is None}
    return said.pop() if len(said) == 1 else None


def _any_number(groups: list[Group], name: str) -> bool:
    """Return whether any group has a value other than zero; a tensor's is not read."""
    return any(
        not isinstance(group.get(name), (int, float, type(None))) or bool(group.get(name))
        for group in groups
    )


# -- notes are taken beside the listener of a slice ----------------------------------------------
#
# Only in the first slices that have a listener, each of a step or a few: never in clean steps, nor
# in slices that measure time.

# The fact under which a recording holds the notes of each plan, with the plan's number.
FACT = "setup_{plan}"


class SetupRecorder:
    """Takes the notes of one run; `write` gets them as facts."""

    def __init__(self, torch: Any, write: Callable[[dict[str, object]], None]) -> None:
        self._torch = torch
        self._write = write
        self._places = code_owner.Places.of(code_owner.script_folder())
        self._notes: dict[int, SetupNotes] = {}
        self._noting: SetupNotes | None = None

    def beside(self, listener: Listener | None, planned: SlicePlan, plan: int) -> Listener | None:
        """Return a listener that takes notes beside the slice's own, where notes are needed."""
        # Later rounds measure time.
        if listener is None or planned.round > 1 or planned.kind == "whole":
            return listener
        notes = self._notes.setdefault(plan, SetupNotes(self._torch, self._places))
        if notes.failed:
            return listener
        self._noting = notes
        return GuardedListener(notes, notes.fail, then=listener)

    def end(self, plan: int, step: int) -> None:
        """Write the notes of the plan so far, where they are new: a slice is over, at this step."""
        noted, self._noting = self._noting, None
        notes = self._notes.get(plan) if noted is None else noted
        if notes is None or notes.failed:
            return
        try:
            is_new = notes.unused.check(step)
        except Exception as error:
            # What a tensor of the script's does when it is asked ends the notes.
            if is_scripts(error):
                raise
            notes.fail(error)
            is_new = True
        if is_new or noted is not None:
            self._write({FACT.format(plan=plan): notes.facts()})
