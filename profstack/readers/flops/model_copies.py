"""thop and fvcore: two more counters, each run on a copy of a model.

Both need a model with its inputs, put hooks and buffers on it, and call it once more: thop in
evaluation, fvcore in a trace. So neither runs on a script's own model. Where a model and its inputs
may be called at will (`Session.run`, `bench`), the tool has a copy of the model, but for its
parameters, which a call does not change. Its errors, prints and logs stay in here, and random
numbers are restored. (Without data, on the device `meta`, torch cannot trace.)

Both count a multiply-add as one, and an operation of element-wise work as one too. Their own sum of
both is kept as MAC. As FLOP the multiply-adds are doubled, and the rest is kept as it is.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from profstack.guard import Guard, has_compiled
from profstack.readers.flops.counting import count_row, in_one_line
from profstack.readers.flops.formulas import is_missed
from profstack.storage.schema.column import Record
from profstack.storage.vocabulary import MODEL_COUNTERS, MULTIPLYING

# A call of a model with its inputs that may be made at will.
_given: functools.partial[Any] | None = None

# (name of the module inside the model, what was counted there) -> calls and count, None without.
_Counts = dict[tuple[str, str], tuple[int, float | None]]


@contextmanager
def given(call: Any) -> Iterator[None]:
    """Within this, count copies of the model of `call` if it is a `functools.partial` of one."""
    global _given
    before = _given
    is_model = isinstance(call, functools.partial) and hasattr(call.func, "named_modules")
    _given = call if is_model else None
    try:
        yield
    finally:
        _given = before


def installed() -> list[str]:
    """Return the names of the installed tools."""
    return [name for name in MODEL_COUNTERS if importlib.util.find_spec(name) is not None]


def count(
    index: int, modules: Mapping[int, Any], steps: int
) -> tuple[list[Record], list[tuple[str, str]]]:
    """Return rows of `flop_counts` for `steps` steps of one call each, and notes on tools without.

    `modules` are the modules' entries by number.
    """
    rows: list[Record] = []
    notes = []
    for tool in installed():
        reason: str | None = None
        if _given is None:
            reason = (
                "it calls the model once more, which is for models that were given to be called "
                "at will: profstack bench and Session.run"
            )
        elif has_compiled():
            reason = "it is left out once dynamo has compiled"
        else:
            problems: list[BaseException] = []
            with Guard(failed=problems.append):
                counts = _counted(tool, _given)
                rows += _rows(tool, index, counts, _numbers(_given.func, modules), steps)
            for error in problems:
                reason = f"it raises {in_one_line(error)}"
        if reason is not None:
            notes.append(("flops-uncounted", f"{tool} has no figures: {reason}"))
    return rows, notes


def _numbers(model: Any, modules: Mapping[int, Any]) -> dict[str, int]:
    """Return numbers of a model's modules by their names inside it."""
    known = {id(named.alive()): number for number, named in modules.items()}
    return {
        name: known[id(module)] for name, module in model.named_modules() if id(module) in known
    }


def _rows(
    tool: str, index: int, counts: _Counts, numbers: Mapping[str, int], steps: int
) -> list[Record]:
    rows: list[Record] = []
    for (place, name), (calls, amount) in counts.items():
        mac = None if amount is None else round(amount) * steps
        flop = mac if mac is None or name not in MULTIPLYING[tool] else 2 * mac
        row = count_row(index, tool, numbers.get(place), name, 0, calls * steps, flop, None)
        rows.append({**row, "mac": mac})
    return rows


def _counted(tool: str, call: functools.partial[Any]) -> _Counts:
    """Count a copy with a tool, and restore the state of the process."""
    import torch

    # The random numbers of the model's accelerators are restored.
    model: Any = call.func
    devices = {parameter.device for parameter in model.parameters()}
    accelerators = [device for device in devices if device.type == "cuda"]
    with _quiet(), torch.random.fork_rng(accelerators), torch.no_grad():
        model, inputs, named = _copied(call)
        if named:
            # Neither tool takes inputs by name.
            inputs, model = (*inputs, *named.values()), _named_last(model, list(named))
        return {"thop": _thop, "fvcore": _fvcore}[tool](model, inputs)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress prints, warnings and logs."""
    disabled, out = logging.root.manager.disable, io.StringIO()
    with redirect_stdout(out), redirect_stderr(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


@contextmanager
def _unseen() -> Iterator[None]:
    """Hide the copy's calls from our hooks, which pass them on as if being compiled."""
    import torch

    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


# --- Copies ---------------------------------------------------------------------------------------


def _copied(call: functools.partial[Any]) -> tuple[Any, tuple[Any, ...], dict[str, object]]:
    """Copy the model and its inputs, all but the parameters."""
    import torch
    from torch.utils._pytree import tree_map_only

    # Parameters are entered as copied already.
    model: Any = call.func
    shared = {id(parameter): parameter for parameter in model.parameters()}
    model = copy.deepcopy(model, dict(shared))
    inputs, named = tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach().clone(), (call.args, dict(call.keywords))
    )
    return model, inputs, named


def _named_last(model: Any, names: list[str]) -> Any:
    """Wrap a model so that it takes its inputs in order, those of `names` last."""
    import torch

    class ByName(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            first = len(inputs) - len(names)
            return self.model(*inputs[:first], **dict(zip(names, inputs[first:], strict=True)))

    return ByName()


# --- Tools ----------------------------------------------------------------------------------------


def _thop(model: Any, inputs: tuple[Any, ...]) -> _Counts:
    """Count by module, from the sums of the tool's hooks on each."""
    tool: Any = importlib.import_module("thop.profile")
    counts: _Counts = {}
    kept: dict[Any, Any] = {}

    # The tool removes its sums before it returns: its own rules note them on the way.
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
    """Count by module and operator, with the operators that the tool misses."""
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
    """Return a module's name inside the given model, whose copy may be wrapped in ours."""
    if type(model).__name__ != "ByName":
        return name
    return name.removeprefix("model").removeprefix(".")
