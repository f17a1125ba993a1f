"""Calls of a model on the input of the call before: which are, and which only look so."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from profstack.capture import repeated_calls
from profstack.capture.repeated_calls import RepeatedCalls

X, Y = torch.arange(64.0), torch.arange(64.0)
LABELS, NONE = torch.tensor([1, 2, 3]), torch.tensor([9, 9, 9])
MODEL = nn.Linear(1, 1)


def noted(*calls, model=MODEL, notes=None, modes=(), ended=True):
    """Figures after calls, each with its inputs and its line; None is a backward pass.

    There is one at the end, too, unless they have not `ended`.
    """
    notes = notes or RepeatedCalls(torch)
    for at, given in enumerate(calls, 1):
        if given is None:
            notes.weights_may_change()
        else:
            named = bool(given) and isinstance(given[-1], dict)
            args, kwargs = given if named else (given, {})
            place = {"file": "sample.py", "line": at}
            mode = modes[at - 1] if modes else None
            notes.call_begins("Net", model, (args, kwargs), lambda place=place: place, mode)
    if ended:
        notes.weights_may_change()
    found = notes.facts()
    if found is None:
        return None
    assert found["module"] == "Net"
    lines = [found[name]["line"] for name in ("first", "again")]
    return [found["calls"], found["on_same_input"], found["on_all_the_same"], *lines]


def test_calls_in_a_row_on_one_input_are_repeated_two_or_three_times():
    once, other = (X, LABELS), (X, NONE)
    assert noted(once, other) == [2, 1, 0, 1, 2]
    assert noted((Y, 1), once, other, once, (Y, 1)) == [5, 2, 1, 2, 3]
    assert noted(*[once] * 3) == [3, 2, 2, 1, 2]
    assert noted(*[once] * 4) is None
    # Not in a row, on copies, after the weights may have changed, or of another model.
    apart = (once, (Y,), once), (once, (X.clone(), LABELS)), (once, None, once)
    for calls in (*apart, (once,), (), ((1,), (1,)), ((), ())):
        assert noted(*calls) is None
    notes = RepeatedCalls(torch)
    noted(once, notes=notes, ended=False)
    assert noted(once, model=nn.Linear(1, 1), notes=notes) is None
    # A row that goes on may be a loop on one input.
    assert noted(once, other, ended=False) is None
    assert noted(once, other, (Y, 1), ended=False) == [3, 1, 0, 1, 2]
    # With gradients and without the results differ.
    grad, plain = (True, True, False, None), (True, False, False, None)
    assert noted(once, once, modes=(grad, plain)) is None
    assert noted(once, once, modes=(grad, grad)) == [2, 1, 1, 1, 2]


def test_what_an_input_is():
    # Written to in place it is another one; a small one is a flag.
    values = X.clone()
    notes = RepeatedCalls(torch)
    noted((values, 1), notes=notes, ended=False)
    values += 1
    assert noted((values, 1), notes=notes, ended=False) is None
    values.copy_(values.flip(0).clone())
    assert noted((values, 1), notes=notes) is None
    # Another small one before it makes another call; what comes after may differ.
    assert noted((LABELS, X), (NONE, X)) is None
    assert noted((values[:63],), (values[:63],)) is None
    assert noted((values[:64],), (values[:64].view(8, 8),)) is None
    with torch.inference_mode():
        inner = torch.ones(8, 8, dtype=torch.int64)
        assert noted((LABELS, inner, "a"), (LABELS, inner, "b")) == [2, 1, 0, 1, 2]
        assert noted(((inner,), {"t": 1}), ((inner,), {"t": 1})) == [2, 1, 1, 1, 2]
    # Nothing is known of these but the first input.
    for odd in ([1], torch.ones(64).to_sparse(), torch.ones(64, device="meta"), nn.Parameter(X)):
        assert noted((X, odd), (X, odd)) == [2, 1, 0, 1, 2]
        assert noted((odd,), (odd,)) is None


def test_what_has_no_sums_or_would_be_seen_by_others_is_unknown():
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen, found = [], []
    torch.vmap(lambda x: (found.append(noted((x,), (x,))), x)[1])(torch.ones(2, 64))
    with Mode():
        found.append(noted((X,), (X,)))
    with torch.profiler.profile() as profile:
        found.append(noted((X,), (X,)))
    seen += profile.events()
    assert (found, seen) == ([None] * 3, [])


def test_only_so_many_calls_are_looked_at(monkeypatch):
    monkeypatch.setattr(repeated_calls, "_MOST_NOTED", 3)
    assert noted(*[(X, at) for at in range(2)], (Y,), (Y,)) == [3, 1, 0, 1, 2]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_inputs_are_left_as_they_are(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    values = torch.ones(64, device=device, requires_grad=True)
    version = values._version
    assert noted((values * 1,), (values,)) is None
    assert (values._version, values.grad, values.grad_fn) == (version, None, None)
