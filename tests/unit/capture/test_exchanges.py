"""Exchanges of gradients between ranks: which passes make one, and which steps use them."""

from torch import nn

from profstack.capture.exchanges import Exchanges

DDP = type("DistributedDataParallel", (nn.Module,), {"__module__": "torch.nn.parallel"})


def model():
    made = DDP()
    made.module = nn.Linear(2, 2)
    return made


def happen(counts, events, models):
    """`a` and `A` are calls of model a without and with an exchange, `.` a pass, `1` its update."""
    for event in events:
        if event == ".":
            counts.backward_begins()
        elif event.isdigit():
            chosen = [*models.values()][int(event) - 1]
            counts.optimizer_begins([{"params": list(chosen.parameters())}])
        else:
            called = models[event.lower()]
            called.require_backward_grad_sync = event.isupper()
            counts.call_begins(called)
    facts = counts.facts()
    return facts and tuple(facts.values())


def test_passes_exchanges_and_updates_of_a_model():
    for events, expected in {
        "": None,
        "A.A.A.": None,
        "A.1": (1, 1, 1),
        # Accumulation, without and with `no_sync`.
        "A.A.A.A.1": (4, 4, 1),
        "a.a.a.A.1": (4, 1, 1),
        # A second pass after one call, as of a model beside it, exchanges no more; nor does a loss.
        "A..1": (1, 1, 1),
        ".A.1.": (1, 1, 1),
        # Two optimizers share a pass.
        "A.11": (1, 1, 1),
    }.items():
        assert happen(Exchanges(), events, {"a": model()}) == expected, events


def test_a_call_without_gradients_exchanges_nothing():
    counts, one = Exchanges(), model()
    one.require_backward_grad_sync = True
    counts.call_begins(one, with_grad=False)
    counts.backward_begins()
    counts.optimizer_begins([{"params": list(one.parameters())}])
    assert counts.facts() is None


def test_models_are_counted_apart():
    models = {"a": model(), "b": model()}
    # Two losses, then two updates.
    assert happen(Exchanges(), "A.B.12", models) == (1, 1, 1)
    assert happen(Exchanges(), "A.B.B.B.12", models) == (3, 3, 1)
    # The optimizer of the other one uses nothing of it.
    assert happen(Exchanges(), "A.A.2", models) is None
    # Calls of other modules are none.
    counts = Exchanges()
    counts.call_begins(nn.Linear(2, 2))
    counts.backward_begins()
    assert counts.facts() is None
