"""Fingerprints of two runs: equal, different in the last digits, or other results."""

import math
import random

import pytest
import torch
from torch import nn

from profstack.changes.results import LIMITS, STEPS, Fingerprint, difference, judged, same_given
from tests.support.tables import cases


def run(scale=1.0, seed=3, steps=STEPS + 2, dtype=torch.float32, draws=0):
    """The fingerprint of a small training."""
    torch.manual_seed(seed)
    random.seed(seed)
    net = nn.Linear(6, 2).to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    prints, backward = Fingerprint(torch), torch.Tensor.backward
    prints.begin()
    try:
        for number in range(steps):
            x = torch.full((4, 6), float(number + 1)).to(dtype)
            out = net(x)
            prints.called((x,), {"logits": [out]})
            torch.rand(draws)
            optimizer.zero_grad()
            (scale * out.square().mean()).backward()
            optimizer.step()
    finally:
        torch.Tensor.backward = backward
    return prints.found


def test_a_fingerprint_is_of_the_first_steps_and_its_hooks_go_away():
    found = run()
    assert {name: len(rows) for name, rows in found.items()} == dict.fromkeys(found, STEPS)
    assert difference(found, run()) == 0.0
    assert same_given(found, run())
    # Shapes, sums and sums of magnitudes.
    assert found["inputs"][1] == [[[4, 6], 48.0, 48.0]]
    [[shape, norm, _]] = found["gradients"][0]
    assert (shape, norm > 0) == ([2], True)


def test_other_results_are_as_far_apart_as_they_are():
    plain = run()
    far = difference(plain, run(scale=1 + 1e-6))
    assert 1e-8 < far < 1e-4
    assert difference(plain, run(scale=1.5)) > 0.1
    assert difference(plain, run(dtype=torch.float64)) < 1e-4
    assert difference(plain, {**plain, "losses": []}) == math.inf
    wide = {**plain, "outputs": [[[[9], 1.0, 1.0]]]}
    assert difference(plain, wide) == math.inf
    lost = {**plain, "losses": [[[[], math.nan, math.nan]]]}
    assert difference(lost, lost) == 0.0
    assert difference(plain, lost) == math.inf


def test_other_data_or_random_numbers_are_seen():
    plain = run()
    assert not same_given(plain, run(draws=3))
    assert not same_given(plain, run(seed=4))
    assert not same_given(plain, {**plain, "inputs": plain["inputs"][::-1]})


@cases(
    "found kind word allowed",
    (0.0, "equal", "equal", True), (1e-9, "equal", "digits", False),
    (LIMITS["digits"], "digits", "digits", True), (1.01e-4, "digits", "digits", False),
    (LIMITS["precision"], "precision", "digits", True), (0.0501, "precision", "different", False),
    (3.0, "different", "different", True), (math.inf, "different", "different", True),
)  # fmt: skip
def test_each_kind_of_change_has_its_limit(found, kind, word, allowed):
    assert judged(found, kind) == (word, allowed)


@pytest.mark.parametrize("tensor", [torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta")])
def test_what_has_no_sum_is_left_out(tensor):
    prints = Fingerprint(torch)
    assert prints.called((tensor, torch.tensor([1 + 2j])), None)
    assert prints.found["inputs"] == [[[[1], 1.0, pytest.approx(math.sqrt(5))]]]
