"""Facts about models: names, wrappers, losses, parameters, and live objects by class."""

import sys
import threading
from types import SimpleNamespace

import torch
from torch import nn

from profstack import models
from profstack.models import in_training, instances_of, parameter_count


def test_parameters_are_counted_once_and_the_constants_of_frozen_torchscript():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    frozen = torch.jit.freeze(torch.jit.trace(net, torch.randn(1, 4)))
    assert (list(frozen.parameters()), in_training(frozen)) == ([], False)
    # A mode that it got from outside changes nothing.
    inside = nn.Sequential(frozen, nn.Linear(2, 2)).eval()
    scripts = map(torch.jit.script, (nn.Linear(2, 3), nn.ReLU()))
    kinds = (net, tied, nn.LazyLinear(3), nn.ReLU(), frozen, inside, *scripts)
    counts = [15 + 8, 16 + 4 + 4, None, 0, 15 + 8, 15 + 8 + 6, 9, 0]
    assert [parameter_count(each) for each in kinds] == counts


def test_losses_and_modules_in_training_are_known_also_inside_wrappers():
    for name, loss in {"MyLoss": True, "LabelSmoothingCriterion": True, "Glossary": False}.items():
        assert models.is_loss(type(name, (nn.Module,), {})()) is loss
        assert models.is_loss(type(name, (nn.Linear,), {})(2, 2)) is False
    assert models.is_loss(nn.CrossEntropyLoss())
    kinds = (nn.ReLU(), nn.ReLU().eval(), SimpleNamespace())
    assert [in_training(each) for each in kinds] == [True, False, False]
    core = nn.Linear(2, 2)
    fast = type("OptimizedModule", (nn.Module,), {"__module__": "torch._dynamo.eval_frame"})()
    fast._orig_mod = core
    around = nn.DataParallel(fast)
    assert models.wrapped_module(core) is None
    assert models.wrapped_module(fast) == ("OptimizedModule", core)
    assert models.wrapped_module(around) == ("DataParallel", fast)
    assert [models.innermost(each) for each in (core, fast, around)] == [core] * 3


def test_subclasses_are_found_each_object_once_and_nothing_is_asked():
    class Base:
        pass

    class Answering(Base):
        @property
        def __class__(self):
            raise AssertionError("asked what it is")

    held = [Base(), Answering()]
    assert {id(each) for each in instances_of(Base)} == {id(each) for each in held}
    assert [id(each) for each in models.direct_instances(Answering)] == [id(held[1])]
    assert models.direct_instances() == []
    model = nn.Linear(2, 2)
    found = [id(each) for each in instances_of(nn.Module, nn.Linear, torch.Tensor)]
    assert len(found) == len(set(found))
    assert {id(model), id(model.weight), id(model.bias)} <= set(found)


def test_another_threads_tuples_are_left_alone():
    """Tuples that another thread fills from a generator while objects are looked for."""
    failed, filled, stop = [], threading.Event(), threading.Event()

    def fill():
        while not stop.is_set():
            try:
                tuple(number for number in range(200))
            except SystemError as error:
                failed.append(error)
            filled.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=fill)
    thread.start()
    try:
        filled.wait()
        for _ in range(4):
            instances_of(torch.optim.Optimizer)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)
    assert failed == []


def test_tokens_are_told_by_the_shapes_of_prompt_and_sequences():
    def asked(made, *args, apart=False, own=None, end=None, can_end=0, **kwargs):
        config = SimpleNamespace(use_cache=own, eos_token_id=end)
        model = SimpleNamespace(generation_config=config, config=SimpleNamespace(
            is_encoder_decoder=apart))  # fmt: skip
        found = models.generated_tokens(model, args, kwargs, made)
        assert found["can_end"] == can_end
        return [found[name] for name in ("sequences", "prompt_tokens", "new_tokens", "cached")]

    prompt, made = torch.zeros(2, 5), torch.zeros(2, 12)
    assert asked(made, prompt) == asked(made, input_ids=prompt) == [2, 5, 7, None]
    assert asked(SimpleNamespace(sequences=made), inputs=prompt, own=True) == [2, 5, 7, 1]
    chosen = SimpleNamespace(use_cache=False)
    assert asked(made, prompt, own=True, generation_config=chosen, end=0, can_end=1)[3] == 0
    assert asked(made, prompt, own=True, use_cache=None, end=7, eos_token_id=None)[3] is None
    for ends in ({"stopping_criteria": [len]}, {"stop_strings": "."}, {"max_time": 2.0}):
        assert asked(made, prompt, stopping_criteria=[]) == asked(made, prompt, can_end=1, **ends)
    # An encoder's prompt is no part of the sequence; embeddings are none either, nor is sound.
    assert asked(made, prompt, apart=True) == [2, 5, 11, None]
    assert asked(made, inputs_embeds=torch.zeros(2, 5, 9)) == [2, 5, 12, None]
    assert asked(made, torch.zeros(2, 80, 300)) == [2, None, None, None]
    assert asked("text", prompt) == [None, 5, None, None]
