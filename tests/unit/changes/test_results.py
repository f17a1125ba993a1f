"""Fingerprints of two runs: equal, different in the last digits, or other results."""

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from profstack.changes import results as module
from profstack.changes.results import LIMITS, STEPS, Fingerprint, difference, same_given, sums
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
    # Shapes, sums of rows that weigh a quarter, a half and so on, and sums of magnitudes.
    assert found["inputs"][1] == [[[4, 6], 30.0, 48.0]]
    [[shape, norm, _]] = found["gradients"][0]
    assert (shape, norm > 0) == ([2], True)


def test_other_results_are_as_far_apart_as_they_are():
    plain = run()
    far = difference(plain, run(scale=1 + 1e-6))
    assert 1e-8 < far < 1e-4
    assert difference(plain, run(scale=1.5)) > 0.1
    assert difference(plain, run(dtype=torch.float64)) < 1e-4
    assert difference({"losses": [], "outputs": [[]]}, {"losses": [], "outputs": [[]]}) is None
    lost, wide = {"losses": [[[[], math.nan, math.nan]]]}, {"outputs": [[[[9], 1.0, 1.0]]]}
    assert difference(plain | lost, plain | lost) == 0.0
    for other in ({"losses": []}, {"losses": plain["losses"][:3]}, wide, lost):
        assert difference(plain, plain | other) == math.inf


def test_other_data_or_random_numbers_are_seen():
    plain = run()
    assert not same_given(plain, run(draws=3))
    assert not same_given(plain, run(seed=4))
    assert not same_given(plain, {**plain, "inputs": plain["inputs"][::-1]})


@cases(
    "found kind word allowed",
    (0.0, "equal", "equal", True), (1e-9, "equal", "digits", False),
    (LIMITS["digits"], "digits", "digits", True), (1.01e-4, "digits", "different", False),
    (LIMITS["precision"], "precision", "different", True),
    (0.0501, "precision", "different", False),
    (3.0, "different", "different", True), (math.inf, "different", "different", True),
)  # fmt: skip
def test_each_kind_of_change_has_its_limit(found, kind, word, allowed):
    assert module.judged(found, kind) == (word, allowed)


@cases("carried limit", (None, 1e-4), (9e-6, 1e-4), (3e-5, 3e-4), (0.5, LIMITS["precision"]))
def test_the_limit_of_digits_is_ten_times_what_one_digit_leads_to(carried, limit):
    assert module.digits_limit(carried) == pytest.approx(limit)


def test_a_nudge_is_one_digit_of_each_parameter_and_draws_nothing():
    net = nn.Sequential(nn.Linear(40, 20), nn.Linear(20, 8).half())
    net.register_parameter("count", nn.Parameter(torch.arange(3), requires_grad=False))
    before, state = [each.clone() for each in net.parameters()], torch.get_rng_state()
    module.nudge(torch, net)
    assert torch.equal(torch.get_rng_state(), state)
    for old, new in zip(before, net.parameters(), strict=True):
        apart = (new - old).double() / (old.abs().double() + 1e-30)
        if old.is_floating_point():
            eps = torch.finfo(old.dtype).eps
            assert apart.abs().max() < 2.1 * eps
            assert (apart < -eps / 3).any()
            assert (apart > eps / 3).any()
        else:
            assert torch.equal(new, old)


def test_a_nudge_leaves_files_and_shared_memory_as_they_are(tmp_path):
    path = tmp_path / "weights"
    np.full((4, 8), 0.3, "float32").tofile(path)
    kept = path.read_bytes()
    mapped = np.memmap(path, "float32", "r+", shape=(4, 8))
    closed = torch.from_file(str(path), shared=True, size=32)
    shared = torch.full((8,), 0.3).share_memory_()
    net = nn.Module()
    for name, tensor in (("mapped", torch.from_numpy(mapped)), ("closed", closed), ("all", shared)):
        net.register_parameter(name, nn.Parameter(tensor))
    module.nudge(torch, net)
    mapped.flush()
    assert path.read_bytes() == kept
    assert (shared == torch.full((8,), 0.3)).all()
    # What has memory of its own now is changed there.
    assert (net.mapped != 0.3).any()


def test_rows_in_another_order_are_another_result():
    rows = torch.rand(5, 3)
    assert sums(torch, rows) == sums(torch, rows.clone())
    [[_, total, size]], [[_, other, other_size]] = sums(torch, rows), sums(torch, rows.flip(0))
    assert size == pytest.approx(other_size)
    assert total != pytest.approx(other, rel=1e-6)
    # By hand: each row weighs as many fifths as its number.
    by_hand = sum((at + 1) / 5 * row.sum().item() for at, row in enumerate(rows.double()))
    assert total == pytest.approx(by_hand)


def test_numbers_and_objects_are_compared_too():
    @dataclass
    class Out:
        loss: torch.Tensor
        rate: float

    made = sums(torch, [Out(torch.tensor([-2.0]), 0.5), {"n": 3}, "text", None, torch.ones(0, 4)])
    assert made == [[[1], -2.0, 2.0], [[], 0.5, 0.5], [[], 3.0, 3.0], [[0, 4], 0.0, 0.0]]


@pytest.mark.parametrize("tensor", [torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta")])
def test_what_has_no_sum_is_left_out(tensor):
    prints = Fingerprint(torch)
    assert prints.called((tensor, torch.tensor([1 + 2j])), None)
    assert prints.found["inputs"] == [[[[1], 3.0, 3.0]]]
