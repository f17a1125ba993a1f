"""What a run computed in its first steps, for two runs to be compared: losses, gradients, outputs.

A fingerprint is taken of the first few steps alone. Numbers are kept as sums of all elements in
float64: two runs that compute the same have equal sums, and sums that differ in their last digits
come from elements that do.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from profstack.changes.contract import Kind
from profstack.guard import Guard, complain

# Steps, calls and backward passes that a fingerprint is of.
STEPS = 5
# Columns that are compared by value, and those that have to be the same in every kind of change.
VALUES = ("losses", "gradients", "outputs")
GIVEN = ("inputs", "random")

Found = Literal["equal", "digits", "different"]
# The largest relative difference that a kind of change may make. Sums in another order differ by
# some 1e-7 of float32 a step, and training carries it on; bfloat16 has 8 bits, a part in 256.
# A script that carries last digits further than that (products in TF32, Adam's first steps) has a
# larger limit: so many times what one change of the last digit of its parameters leads to.
LIMITS: Mapping[Kind, float] = {
    "equal": 0.0,
    "digits": 1e-4,
    "precision": 5e-2,
    "different": math.inf,
}
CARRIED = 10.0


def _guarded() -> Guard:
    return Guard(failed=lambda error: complain(f"trial: {error}"))


class Fingerprint:
    """Takes the fingerprint of a process; `begin` puts its hooks on."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.found: dict[str, list[Any]] = {name: [] for name in (*VALUES, *GIVEN)}

    def begin(self) -> None:
        """Follow backward passes and optimizers until enough of them were seen."""
        torch, found = self._torch, self.found
        original = torch.Tensor.backward

        @functools.wraps(original)
        def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            with _guarded():
                if len(found["losses"]) < STEPS:
                    found["losses"].append(sums(torch, tensor))
            return original(tensor, *args, **kwargs)

        def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
            # It stays on: torch goes through its hooks while it is called.
            with _guarded():
                if len(found["gradients"]) < STEPS:
                    found["gradients"].append(self._norm(optimizer))

        torch.Tensor.backward = backward
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(stepping)

    def called(self, given: Any, returned: Any) -> bool:
        """Take a call of the model; return whether more of them are wanted."""
        if len(self.found["inputs"]) >= STEPS:
            return False
        self.found["inputs"].append(sums(self._torch, given))
        self.found["outputs"].append(sums(self._torch, returned))
        self.found["random"].append(self._random())
        return len(self.found["inputs"]) < STEPS

    def _norm(self, optimizer: Any) -> list[Any]:
        """Return the number of gradients and their norm."""
        torch, norms = self._torch, []
        with torch.no_grad():
            for group in optimizer.param_groups:
                gradients = (parameter.grad for parameter in group["params"])
                for each in (one for one in gradients if one is not None):
                    plain = each.coalesce().values() if each.is_sparse else each
                    kind = torch.complex128 if plain.is_complex() else torch.float64
                    norms.append(float(torch.linalg.vector_norm(plain, 2, dtype=kind)))
        norm = math.hypot(*norms)
        return [[[len(norms)], norm, norm]]

    def _random(self) -> str:
        """Return a hash of the states of all random streams that are in use."""
        state = hashlib.sha256(self._torch.get_rng_state().numpy().tobytes())
        state.update(repr(random.getstate()).encode())
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            kind, keys, *rest = numpy.random.get_state()
            state.update(repr((kind, keys.tobytes(), rest)).encode())
        return state.hexdigest()[:16]


def sums(torch: Any, value: Any) -> list[Any]:
    """Return shape, weighted sum and sum of magnitudes of each tensor in arguments or a result.

    Rows weigh more the later they are, so that rows in another order are another result. Nothing of
    a tensor's size is kept or made.
    """
    with torch.no_grad():
        return [_sum(torch, each) for each in _values(value)]


def _sum(torch: Any, value: Any) -> list[Any]:
    if isinstance(value, (bool, int, float)):
        return [[], float(value), abs(float(value))]
    tensor = value.detach()
    if not tensor.numel():
        return [list(value.shape), 0.0, 0.0]
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    rows = tensor.shape[0] if tensor.dim() else 1
    totals = tensor.reshape(rows, -1).sum(1, dtype=torch.float64)
    weights = torch.arange(1, rows + 1, dtype=torch.float64, device=tensor.device) / rows
    if tensor.is_floating_point():
        size = torch.linalg.vector_norm(tensor, 1, dtype=torch.float64)
    else:
        size = tensor.to(torch.float64).abs().sum()
    return [list(value.shape), float((totals * weights).sum()), float(size)]


def _values(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors and numbers of arguments or results, some levels deep, in a fixed order."""
    if hasattr(value, "detach") and hasattr(value, "shape"):
        if not (value.is_sparse or value.is_quantized or value.is_meta):
            yield value
    elif isinstance(value, (bool, int, float)):
        yield value
    elif depth < 4:
        inner: Iterable[Any] = ()
        if isinstance(value, Mapping):
            inner = value.values()
        elif isinstance(value, (list, tuple)):
            inner = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = vars(value).values()
        for each in inner:
            yield from _values(each, depth + 1)


# --- Two fingerprints ---


def difference(
    plain: Mapping[str, Sequence[Any]], changed: Mapping[str, Sequence[Any]]
) -> float | None:
    """Return the largest relative difference of two fingerprints' values; infinite for others.

    Numbers that are not finite on both sides are the same. None where there is nothing to compare.
    """
    found: list[float] = []
    for name in VALUES:
        one, other = list(plain.get(name, ())), list(changed.get(name, ()))
        if len(one) != len(other):
            return math.inf
        found += [
            _apart(first, second)
            for first, second in zip(one, other, strict=True)
            if first or second
        ]
    return max(found, default=None)


def _apart(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Return how far the sums of some tensors are from others', over the sum of magnitudes."""
    if [shape for shape, _, _ in one] != [shape for shape, _, _ in other]:
        return math.inf
    largest = 0.0
    for (_, total, size), (_, total2, size2) in zip(one, other, strict=True):
        if not all(map(math.isfinite, (total, size, total2, size2))):
            same = repr((total, size)) == repr((total2, size2))
            largest = largest if same else math.inf
        elif (total, size) != (total2, size2):
            scale = max(size, size2)
            largest = max(largest, abs(total - total2) / scale, abs(size - size2) / scale)
    return largest


def same_given(
    plain: Mapping[str, Sequence[Any]],
    changed: Mapping[str, Sequence[Any]],
    names: Sequence[str] = GIVEN,
) -> bool:
    """Return whether both were given the same data and have the same random streams.

    `names` are what is compared of the two.
    """
    return all(
        one == other
        for name in names
        for one, other in zip(plain.get(name, ()), changed.get(name, ()), strict=False)
    )


def digits_limit(carried: float | None) -> float:
    """Return the largest difference that is told as one of the last digits.

    `carried` is how far apart results were after the last digits of all parameters were changed;
    None where that is not known.
    """
    usual = LIMITS["digits"]
    return min(max(usual, CARRIED * (carried or 0.0)), LIMITS["precision"])


def judged(found: float, kind: Kind, digits: float = LIMITS["digits"]) -> tuple[Found, bool]:
    """Return what became of results by their largest difference, and whether the kind allows it.

    `digits` is the largest difference that is one of the last digits.
    """
    word: Found = "equal" if found == 0.0 else "digits" if found <= digits else "different"
    return word, found <= (digits if kind == "digits" else LIMITS[kind])


def nudge(torch: Any, model: Any) -> None:
    """Change the last digit of every parameter, up or down at random; no stream is drawn from.

    On the CPU a parameter gets memory of its own for it: what it lay in may be a file, which would
    be changed, or which cannot be written to. One that processes share stays as it is.
    """
    generators: dict[Any, Any] = {}
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    with torch.no_grad():
        for each in model.parameters():
            if each.dtype not in kinds:
                continue
            if each.device not in generators:
                generators[each.device] = torch.Generator(each.device).manual_seed(0)
            signs = torch.empty_like(each).uniform_(-1.0, 1.0, generator=generators[each.device])
            factors = 1.0 + torch.finfo(each.dtype).eps * signs.sign_()
            if each.device.type != "cpu":
                each.data.mul_(factors)
            elif not each.is_shared():
                each.data = each.data * factors
