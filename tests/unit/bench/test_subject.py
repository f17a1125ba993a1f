"""What is measured: a model with its inputs, or a function, and its other batch sizes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from profstack.bench.subject import Subject, make_input, of_model, resized
from profstack.errors import UsageError


def test_inputs_are_the_same_each_time_and_leave_the_random_stream_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert torch.equal(make_input("2x3"), make_input("2x3:float64").float())
    assert torch.equal(torch.get_rng_state(), state)
    assert set(make_input("64:int64").tolist()) == {0, 1}
    for text in ("", "ax3", "3x", "2x3:", "2x3:floaty", "-1x2"):
        with pytest.raises(UsageError, match="--input"):
            make_input(text)


def test_inputs_become_more_and_fewer_where_they_share_a_dimension():
    rows = torch.arange(3.0).reshape(3, 1).requires_grad_()
    inputs = {"x": (rows, 7), "scale": torch.tensor(2.0)}
    larger = resized(inputs, 5)
    x, number = larger["x"]
    assert (x.flatten().tolist(), x.requires_grad) == ([0, 1, 2, 0, 1], True)
    assert (number, larger["scale"].shape) == (7, ())
    assert resized(inputs, 2)["x"][0].flatten().tolist() == [0, 1]
    model, five = nn.Bilinear(4, 4, 2), torch.ones(5, 4)
    subject = of_model(model, (five, torch.ones(1, 4)))
    assert subject.batch_size is subject.of_batch is None


def test_training_layers_are_named_and_gradients_as_the_program_has_them():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.1), nn.Dropout(0.0))
    assert of_model(model, (torch.ones(2, 2),)).training_layers == ["BatchNorm1d", "Dropout"]
    assert of_model(model.eval(), (torch.ones(2, 2),)).training_layers == []
    assert of_model(nn.LSTM(2, 2, 2, dropout=0.5), ()).training_layers == ["LSTM"]
    seen = []
    subject = Subject("look", lambda: seen.append(torch.is_grad_enabled()))
    for outside in (torch.no_grad(), torch.enable_grad()):
        with outside, subject.conditions():
            subject.step()
    with torch.no_grad(), replace(subject, gradients=True).conditions():
        subject.step()
    assert seen == [False, True, True]


def test_tensors_are_copied_wherever_they_stand():
    seen, tensors = [], (torch.ones(2), torch.zeros(3), torch.ones(4))
    inputs = (tensors[0], [tensors[1], "text"], {"key": tensors[2]})
    subject = Subject("model", lambda *a, **k: seen.append((a, k)), nn.Identity(), inputs)
    subject.copying_step()()
    ((first, (second, text), mapping), named) = seen[0]
    assert (text, named, subject.input_bytes()) == ("text", {}, 4 * (2 + 3 + 4))
    for copied, original in zip((first, second, mapping["key"]), tensors, strict=True):
        assert torch.equal(copied, original)
        assert copied.data_ptr() != original.data_ptr()
