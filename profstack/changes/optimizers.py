"""Changes to optimizers: one fused operator, operators over lists, gradients that are dropped."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from profstack.changes.contract import Change, Edit, Run, Seen

# Classes of torch.optim with an implementation of one operator for each device type (torch 2.6).
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def _classes(torch: Any, names: tuple[str, ...] | None = None) -> Iterator[Any]:
    for name, kind in vars(torch.optim).items():
        is_kind = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        if is_kind and kind is not torch.optim.Optimizer and (names is None or name in names):
            yield kind


def _with_argument(run: Run, name: str, names: tuple[str, ...] | None, others: str) -> None:
    """Make optimizers of these classes with `name=True`, and the argument `others` left out."""

    def wrapped(original: Any) -> Any:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get(name) or kwargs.get("differentiable"):
                original(self, *args, **kwargs)
                return
            kept = {key: value for key, value in kwargs.items() if key != others}
            original(self, *args, **{**kept, name: True})
            run.took_hold()

        return __init__

    for kind in _classes(run.torch, names):
        if name in kind.__init__.__code__.co_varnames:
            kind.__init__ = wrapped(kind.__init__)


def _reason(seen: Seen, flag: str) -> str | None:
    if not seen.optimizers:
        return "the script makes no optimizer of torch.optim"
    if flag == "fused" and not any(each["base"] in FUSED for each in seen.optimizers):
        return "its optimizers have no fused implementation"
    if all(each[flag] for each in seen.optimizers):
        return f"they are {flag} already"
    return None


FUSED_CHANGE = Change(
    "fused-optimizer",
    "update all parameters by one operator",
    "digits",
    lambda seen: _reason(seen, "fused"),
    lambda run: _with_argument(run, "fused", FUSED, "foreach"),
    edit=Edit("{optimizer}", ("fused", "True"), drops=("foreach",)),
    excludes=("foreach-optimizer",),
    findings=("unfused-optimizer",),
)
FOREACH_CHANGE = Change(
    "foreach-optimizer",
    "update parameters by operators over lists of tensors",
    "digits",
    lambda seen: _reason(seen, "foreach"),
    lambda run: _with_argument(run, "foreach", None, "fused"),
    edit=Edit("{optimizer}", ("foreach", "True"), drops=("fused",)),
    excludes=("fused-optimizer",),
    findings=("unfused-optimizer",),
)


def _set_to_none(run: Run) -> None:
    for kind in (run.torch.optim.Optimizer, run.torch.nn.Module):
        original = kind.zero_grad

        def zero_grad(self: Any, set_to_none: bool = True, original: Any = original) -> None:
            if not set_to_none:
                run.took_hold()
            original(self, set_to_none=True)

        kind.zero_grad = functools.wraps(original)(zero_grad)


SET_TO_NONE = Change(
    "set-to-none",
    "drop gradients instead of filling them with zeros",
    "equal",
    lambda seen: (
        None
        if seen.calls.get("zero_grad to zeros")
        else "no call of zero_grad fills gradients with zeros"
    ),
    _set_to_none,
    edit=Edit("zero_grad", ("set_to_none", "True")),
    findings=("zero-grad-to-zeros",),
)

CHANGES = (FUSED_CHANGE, FOREACH_CHANGE, SET_TO_NONE)
