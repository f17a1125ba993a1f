"""thop and fvcore: two more counters, each run on a copy of a model.

Both need a model with its inputs, put hooks and buffers on it, and call it once more: thop in
evaluation, fvcore in a trace. So neither is let near a script's own model. Where a model and its
inputs were given to be called at will (`Session.run`, `bench`), the model is copied, but for its
parameters, which a call does not change; the tool has the copy. What it raises, prints and logs
stays in here, and random numbers go on as if it had not been there. (Without data, on the device
`meta`, torch cannot trace.)

Both count a multiply-add as one; what they count as such is doubled, to be FLOP as everywhere
else, and their figures for element-wise work stand as they are.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from profstack.flops.missed import is_missed
from profstack.interrupts import is_scripts
from profstack.passthrough import has_compiled

COUNTERS = ("thop", "fvcore")

_CONVOLUTIONS = tuple(f"Conv{kind}{size}d" for kind in ("", "Transpose") for size in (1, 2, 3))
_RECURRENT = tuple(f"{kind}{cell}" for kind in ("RNN", "GRU", "LSTM") for cell in ("", "Cell"))
# What each counts in multiply-adds, by its own names: types of modules, and operators of a trace.
MULTIPLYING: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "thop": frozenset((*_CONVOLUTIONS, *_RECURRENT, "Linear")),
        "fvcore": frozenset(("conv", "addmm", "bmm", "einsum", "matmul", "mm", "linear")),
    }
)


@dataclass(frozen=True)
class Given:
    """A model and its inputs that may be called at will."""

    model: Any
    inputs: tuple[Any, ...]
    named: Mapping[str, Any]


_given: Given | None = None

# (name of the module inside the model, what was counted there) -> calls and count, None without.
_Counts = dict[tuple[str, str], tuple[int, float | None]]


@contextlib.contextmanager
def given(call: Any) -> Iterator[None]:
    """While this lasts, `call` is what is measured: a `functools.partial` of a model, or not."""
    global _given
    before = _given
    if isinstance(call, functools.partial) and hasattr(call.func, "named_modules"):
        _given = Given(call.func, call.args, dict(call.keywords))
    else:
        _given = None
    try:
        yield
    finally:
        _given = before


def installed() -> list[str]:
    """Those of the tools that are there."""
    return [name for name in COUNTERS if importlib.util.find_spec(name) is not None]


def count(
    index: int, modules: Mapping[int, Any], steps: int
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Rows of `flop_counts` for `steps` steps of one call each, and notes on what has none.

    `modules` are the names (`regions.Named`) of all modules by number.
    """
    rows: list[dict[str, Any]] = []
    notes = []
    for tool in installed():
        if _given is None:
            reason: str | None = (
                "it calls the model once more, which is for models that were given to be called "
                "at will: profstack bench and Session.run"
            )
        elif has_compiled():
            reason = "it is left out once dynamo has compiled"
        else:
            reason = None
            try:
                counts = _counted(tool, _given)
                rows += _rows(tool, index, counts, _numbers(_given.model, modules), steps)
            except Exception as error:
                if is_scripts(error):
                    raise
                text = str(error).strip().partition("\n")[0]
                reason = f"it raises {type(error).__name__}: {text}".rstrip(": ")
        if reason is not None:
            notes.append(("flops-uncounted", f"{tool} has no figures: {reason}"))
    return rows, notes


def _numbers(model: Any, modules: Mapping[int, Any]) -> dict[str, int]:
    """Numbers of a model's modules by their names inside it."""
    known = {id(named.alive()): number for number, named in modules.items()}
    return {
        name: known[id(module)] for name, module in model.named_modules() if id(module) in known
    }


def _rows(
    tool: str, index: int, counts: _Counts, numbers: Mapping[str, int], steps: int
) -> list[dict[str, Any]]:
    def flop(name: str, amount: float | None) -> int | None:
        if amount is None:
            return None
        return round(amount * (2 if name in MULTIPLYING[tool] else 1)) * steps

    return [
        {
            "slice": index,
            "counter": tool,
            "module_id": numbers.get(place),
            "operator": name,
            "backward": 0,
            "calls": calls * steps,
            "flop": flop(name, amount),
            "masked_flop": None,
        }
        for (place, name), (calls, amount) in counts.items()
    ]


def _counted(tool: str, what: Given) -> _Counts:
    """Have a tool count a copy, with the state of the process as it was afterwards."""
    import torch

    run: Mapping[str, Callable[[Any, tuple[Any, ...]], _Counts]] = {
        "thop": _thop,
        "fvcore": _fvcore,
    }
    with _quiet(), torch.random.fork_rng(_devices(what.model)), torch.no_grad():
        model, inputs, named = _copied(what)
        if named:
            # Neither tool takes inputs by name.
            inputs, model = (*inputs, *named.values()), _named_last(model, list(named))
        return run[tool](model, inputs)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing is printed, warned of or logged."""
    disabled = logging.root.manager.disable
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """The copy's calls are no calls of the script: our hooks pass them on as if being compiled."""
    import torch

    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


# -- copies ----------------------------------------------------------------------------------------


def _copied(what: Given) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model and its inputs, all of it copied but the parameters."""
    import torch
    from torch.utils._pytree import tree_map_only

    # What is known already is not copied.
    shared = {id(parameter): parameter for parameter in what.model.parameters()}
    model = copy.deepcopy(what.model, dict(shared))
    inputs, named = tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach().clone(), (what.inputs, dict(what.named))
    )
    return model, inputs, named


def _devices(model: Any) -> list[Any]:
    """The accelerators that a model is on, whose random numbers are kept."""
    found = {parameter.device for parameter in model.parameters()}
    return [device for device in found if device.type == "cuda"]


def _named_last(model: Any, names: list[str]) -> Any:
    """The model, to be called with its inputs in order, those of `names` last."""
    import torch

    class ByName(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            first = len(inputs) - len(names)
            return self.model(*inputs[:first], **dict(zip(names, inputs[first:], strict=True)))

    return ByName()


# -- the tools -------------------------------------------------------------------------------------


def _thop(model: Any, inputs: tuple[Any, ...]) -> _Counts:
    """Counts by module, from what the tool's hooks have added up on each."""
    tool: Any = importlib.import_module("thop.profile")
    counts: _Counts = {}
    kept: dict[Any, Any] = {}

    # The tool takes off what it added up before it returns: its own rules note it on the way.
    def noted(rule: Callable[..., None]) -> Callable[..., None]:
        def hook(module: Any, given: Any, result: Any) -> None:
            rule(module, given, result)
            calls, _ = kept.get(module, (0, 0.0))
            kept[module] = (calls + 1, float(module.total_ops.item()))

        return hook

    rules = {kind: noted(rule) for kind, rule in tool.register_hooks.items()}
    with _unseen():
        tool.profile(model, inputs, custom_ops=rules, verbose=False)
    for name, module in model.named_modules():
        if module in kept and kept[module][1]:
            counts[_inside(name, model), type(module).__name__] = kept[module]
    return counts


def _fvcore(model: Any, inputs: tuple[Any, ...]) -> _Counts:
    """Counts by module and operator, and operators that the tool has no handle for and misses."""
    tool: Any = importlib.import_module("fvcore.nn")
    analysis = tool.FlopCountAnalysis(model, inputs)
    analysis.unsupported_ops_warnings(False)
    analysis.uncalled_modules_warnings(False)
    analysis.tracer_warnings("none")
    own = {place: dict(by_name) for place, by_name in analysis.by_module_and_operator().items()}
    counts: _Counts = {}
    for place, by_name in own.items():
        for name, amount in by_name.items():
            inner = sum(
                amounts.get(name, 0)
                for other, amounts in own.items()
                if other and other != place and other.rpartition(".")[0] == place
            )
            if amount - inner:
                counts[_inside(place, model), str(name)] = (1, float(amount - inner))
    for name, calls in analysis.unsupported_ops().items():
        if is_missed(str(name)):
            counts["", str(name)] = (int(calls), None)
    return counts


def _inside(name: str, model: Any) -> str:
    """A module's name inside the model that was given, where ours stands around its copy."""
    if type(model).__name__ != "ByName":
        return name
    return name.removeprefix("model").removeprefix(".")
