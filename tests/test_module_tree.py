"""The module tree of whole steps: every moment has one row, and what has no owner is nobody's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data_recording import CLEAN_S, TORCH_S, Run, module, module_times
from random_events import MAIN, structure
from test_attribution import Checkpointed, Mlp, backward_owners, data, training
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch_slice import Slice, observe, self_s

import profstack
from profstack.readers.torchtrace.attribution import attribute, module_records
from profstack.readers.torchtrace.events import clip_to_steps, read_host
from profstack.storage.vocabulary import LOSS, OUTSIDE, STEP_PARTS, UNATTRIBUTED, UNOWNED

PAUSE_S = 0.003


def pause() -> None:
    time.sleep(PAUSE_S)


def adds_up(seen: Slice) -> None:
    """The rows are the steps, and none is below 0."""
    assert sum(map(self_s, seen.rows.values())) == pytest.approx(seen.wall_s, abs=5e-9)
    assert all(self_s(row) >= 0 for row in seen.rows.values())


@pytest.mark.parametrize("first", range(0, 150, 30))
def test_any_nesting_of_events_adds_up_and_nothing_is_negative(first: int) -> None:
    """Random structures, also with functions of two devices; the odd ones have those."""
    for seed in range(first, first + 30):
        made = structure(seed)
        host = read_host(made.events)
        clip_to_steps(host, made.boundaries, made.left_out)
        owned = attribute(host, made.boundaries, lambda number: number == 5, made.left_out, MAIN)
        rows = module_records(owned, 0, memory=False)
        edges = zip(made.boundaries, made.boundaries[1:], strict=False)
        kept = sum(
            end - begin for step, (begin, end) in enumerate(edges) if step not in made.left_out
        )
        assert sum(map(self_s, rows)) * 1e9 == pytest.approx(kept, abs=1e-3), seed
        for row in rows:
            for way in ("forward", "backward"):
                assert row[f"{way}_self_s"] >= -1e-12, seed
                assert row[f"{way}_s"] >= row[f"{way}_self_s"] - 1e-12, seed


def test_zero_grad_clipping_and_the_step_are_rows_apart() -> None:
    model, (x, labels) = Mlp(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    seen = observe(step)
    rows = seen.rows
    assert rows["(before the optimizer)"]["forward_self_s"] > 0
    assert rows["(optimizer)"]["calls"] == rows["(zero_grad)"]["calls"] == 3
    host = seen.host()
    for part, name in (("(optimizer)", "Optimizer.step"), ("(zero_grad)", "Optimizer.zero_grad")):
        ranges = host.names.where(lambda text, name=name: text.startswith(name))
        assert self_s(rows[part]) == pytest.approx(host.duration[ranges].sum() * 1e-9, abs=1e-12)
    assert self_s(rows["(outside modules)"]) == 0
    adds_up(seen)


def test_what_a_script_does_beside_is_no_loss_and_no_clipping() -> None:
    """Logging, say, between forward, backward and the optimizer: nothing tells whose it is."""
    model, (x, labels) = Mlp(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        out = model(x)
        pause()
        (out.detach() * out.detach()).sum()
        loss = functional.cross_entropy(out, labels)
        pause()
        loss = loss * 2
        (out.argmax(1) == labels).sum()
        pause()
        loss.backward()
        pause()
        loss.item()
        pause()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm.item()
        pause()
        optimizer.step()
        optimizer.zero_grad()

    seen = observe(step)
    rows = seen.rows
    # Of the six pauses one lies within the loss.
    assert rows["(loss)"]["forward_self_s"] >= 3 * PAUSE_S
    assert rows["(before the optimizer)"]["forward_self_s"] > 0
    assert self_s(rows["(not attributed)"]) >= 15 * PAUSE_S
    assert self_s(rows["(outside modules)"]) > 0
    adds_up(seen)


def test_a_loss_module_between_two_pauses() -> None:
    model, (x, labels), criterion = Mlp(), data(), nn.CrossEntropyLoss()

    def step() -> None:
        out = model(x)
        pause()
        loss = criterion(out, labels)
        pause()
        loss.backward()

    seen = observe(step)
    assert self_s(seen.rows["(not attributed)"]) >= 6 * PAUSE_S
    assert seen.rows["CrossEntropyLoss"]["backward_self_s"] > 0
    adds_up(seen)


def test_scaled_gradients_and_a_scheduler() -> None:
    model, (x, labels) = Mlp(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        loss.item()

    seen = observe(step)
    rows = seen.rows
    assert rows["(optimizer)"]["calls"] == 3
    assert rows["(before the optimizer)"]["forward_self_s"] > 0
    adds_up(seen)


def test_a_second_batch_in_a_step_is_waited_for() -> None:
    """With two backward passes to a step; the loader's own range says what the wait is."""
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    class Slow(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            pause()
            return super().__getitem__(index)

    loader = DataLoader(Slow(*data()), batch_size=1)
    batches = iter(loader)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(2):
            x, labels = next(batches)
            functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    seen = observe(step)
    assert seen.rows["(wait)"]["forward_self_s"] >= 6 * PAUSE_S
    assert self_s(seen.rows["(not attributed)"]) < seen.rows["(wait)"]["forward_self_s"]
    adds_up(seen)


@pytest.mark.timed
def test_a_model_of_functions_is_no_waiting() -> None:
    weight = torch.randn(32, 32, requires_grad=True)
    x, _ = data()

    def step() -> None:
        pause()
        hidden = torch.relu(x @ weight)
        pause()
        hidden.sum().backward()
        with torch.no_grad():
            weight.grad = None

    seen = observe(step)
    rows = seen.rows
    assert 3 * PAUSE_S <= rows["(wait)"]["forward_self_s"] < 6 * PAUSE_S
    assert rows["(outside modules)"]["forward_self_s"] >= 3 * PAUSE_S
    assert rows["(outside modules)"]["backward_self_s"] > 0
    assert backward_owners(seen, "MmBackward0") == {"(outside modules)"}
    adds_up(seen)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_shown_apart(reentrant: bool) -> None:
    seen = observe(training(Checkpointed(reentrant)))
    rows = seen.rows
    for path in ("Checkpointed", "Checkpointed.block", "Checkpointed.block.0"):
        assert 0 < rows[path]["recomputed_s"] <= rows[path]["backward_s"], path
    block = rows["Checkpointed.block"]["recomputed_s"]
    inside = sum(rows[f"Checkpointed.block.{number}"]["recomputed_s"] for number in range(3))
    assert block >= inside
    host = seen.host()
    number = rows["Checkpointed.block"]["module_id"]
    ranges = host.names.where(lambda name: name == f"profstack::module {number}")
    forward = rows["Checkpointed.block"]["forward_s"]
    assert forward + block == pytest.approx(host.duration[ranges].sum() * 1e-9, abs=1e-11)
    # Nothing was done again there.
    for path in ("Checkpointed.before", "Checkpointed.head", "(loss)", "(optimizer)"):
        assert rows[path]["recomputed_s"] is None
    adds_up(seen)


def test_without_checkpointing_recomputation_is_null() -> None:
    assert all(row["recomputed_s"] is None for row in observe(training(Mlp())).rows.values())


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        pause()
        return grad * 2


class Written(nn.Module):
    """A function of the script's own, and writes to parts of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = Doubles.apply(self.linear(x))
        out = torch.zeros_like(doubled)
        out[:, ::2] = doubled[:, ::2]
        out[:, 1::2] += doubled[:, 1::2]
        return out


def test_custom_functions_and_writes_to_parts_of_tensors() -> None:
    seen = observe(training(Written()))
    assert seen.rows["Written"]["backward_self_s"] >= 3 * PAUSE_S
    assert backward_owners(seen, "DoublesBackward") == {"Written"}
    assert backward_owners(seen, "torch::autograd::CopySlices") == {"Written"}
    assert seen.rows["(not attributed)"]["backward_self_s"] == 0
    adds_up(seen)


def test_time_of_the_users_hooks_is_the_modules() -> None:
    model = Mlp()
    told: list[str] = []

    def forward_hook(*_: Any) -> None:
        told.append("forward")
        pause()

    def backward_hook(*_: Any) -> None:
        told.append("backward")
        pause()

    model.second.register_forward_hook(forward_hook)
    model.second.register_full_backward_hook(backward_hook)
    seen = observe(training(model))
    row = seen.rows["Mlp.second"]
    assert row["forward_self_s"] >= 3 * PAUSE_S
    assert row["backward_self_s"] >= 3 * PAUSE_S
    # Five steps, two of them not observed.
    assert told == ["forward", "backward"] * 5
    assert len(model.second._forward_hooks) == len(model.second._backward_hooks) == 1
    adds_up(seen)


def test_two_losses_of_one_forward() -> None:
    model, (x, labels) = Mlp(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        out = model(x)
        functional.cross_entropy(out, labels).backward(retain_graph=True)
        out.pow(2).mean().backward()
        optimizer.step()

    seen = observe(step)
    assert backward_owners(seen, "PowBackward0") == {"(loss)"}
    assert backward_owners(seen, "AddmmBackward0") == {"Mlp.first", "Mlp.second"}
    assert self_s(seen.rows["(outside modules)"]) == 0
    adds_up(seen)


def test_the_scripts_own_ranges_lose_no_time() -> None:
    model, (x, labels) = Mlp(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    range_ = torch.profiler.record_function

    def step() -> None:
        with range_("forward"):
            out = model(x)
        with range_("loss"):
            loss = functional.cross_entropy(out, labels)
        with range_("backward"):
            loss.backward()
        with range_("clip"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with range_("update"):
            optimizer.step()
            optimizer.zero_grad()

    seen = observe(step)
    host = seen.host()
    clip = host.duration[host.names.where(lambda name: name == "clip")].sum() * 1e-9
    assert self_s(seen.rows["(before the optimizer)"]) >= clip
    assert self_s(seen.rows["(outside modules)"]) == 0
    assert backward_owners(seen, "NllLossBackward0") == {"(loss)"}
    adds_up(seen)


def test_modules_without_parameters_and_made_anew_each_time() -> None:
    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 10)
            self.relu = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = nn.ModuleList([nn.Identity(), nn.Tanh()])
            for part in parts:
                x = part(x)
            return self.linear(self.relu(self.relu(x)))

    seen = observe(training(Makes()))
    rows = {path: row["calls"] for path, row in seen.rows.items() if row["module_id"] > 0}
    assert rows == {
        "Makes": 3,
        "Makes.linear": 3,
        "Makes.relu": 6,
        "Makes.Identity": 3,
        "Makes.Tanh": 3,
    }
    adds_up(seen)


def test_actor_and_critic_on_one_body() -> None:
    body = nn.Linear(32, 32)
    actor, critic = (nn.Sequential(body, nn.Tanh(), nn.Linear(32, out)) for out in (4, 1))
    parameters = {*actor.parameters(), *critic.parameters()}
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    x, _ = data()

    def step() -> None:
        optimizer.zero_grad()
        policy, value = actor(x), critic(x)
        (policy.log_softmax(-1).mean() + value.pow(2).mean()).backward()
        optimizer.step()

    seen = observe(step)
    named = {each.path: each for each in seen.modules.values()}
    assert named["Sequential.0"].aliases == ["Sequential#2.0"]
    assert seen.rows["Sequential.0"]["calls"] == 6
    assert seen.rows["Sequential#2"]["calls"] == 3
    assert backward_owners(seen, "AddmmBackward0") == {
        *("Sequential.0", "Sequential.2", "Sequential#2.2")
    }
    adds_up(seen)


def test_a_backward_pass_on_another_thread_is_not_seen_and_nobodys() -> None:
    import threading

    model, (x, labels) = Mlp(), data()

    def step() -> None:
        loss = functional.cross_entropy(model(x), labels)
        thread = threading.Thread(target=lambda: (pause(), loss.backward()))
        thread.start()
        thread.join()

    seen = observe(step)
    assert self_s(seen.rows["(not attributed)"]) >= 3 * PAUSE_S
    adds_up(seen)


def test_checkpointed_functions_keep_their_backward() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = checkpoint(lambda y: torch.tanh(y).sin(), self.linear(x), use_reentrant=False)
            assert isinstance(hidden, torch.Tensor)
            return hidden

    seen = observe(training(Functional()))
    assert backward_owners(seen, "SinBackward0") == {"Functional"}
    adds_up(seen)


def one_step(model: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(64, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    return step


def test_a_report_says_how_much_of_a_step_has_an_owner() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    step = one_step(model)
    with profstack.Session(layers=["torch"]) as session:
        for _ in range(40):
            step()
    report = session.recording.to_dict()
    facts = report["attribution"]
    rows = report["tables"]["modules"]
    own = {row["path"]: row["self_s"] for row in rows if row["self_s"] is not None}
    assert facts["rows_s"] == pytest.approx(sum(own.values()), rel=1e-9)
    assert facts["rows_s"] == pytest.approx(facts["step_s"], abs=1e-8)
    nobodys = {STEP_PARTS[number] for number in UNOWNED}
    owned = sum(time for path, time in own.items() if path not in nobodys)
    assert facts["owned_s"] == pytest.approx(owned, rel=1e-9)
    assert facts["owned_share"] == pytest.approx(owned / facts["step_s"], rel=1e-6)
    assert 0.5 < facts["owned_share"] <= 1 + 1e-6
    assert 0.9 < facts["backward_attributed_share"] <= 1 + 1e-9
    assert facts["negative_rows"] == 0
    assert {row["path"] for row in facts["unowned"]} <= nobodys
    backward = sum(row["backward_s"] for row in rows if row["depth"] == 0 and row["backward_s"])
    assert facts["backward_s"] == pytest.approx(backward, rel=1e-6)


def test_the_sums_of_a_step_from_known_numbers(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec")
    run.clean()
    times = [
        module_times(1, 3, 0.015, backward_self_s=0.009, backward_s=0.009),
        *(module_times(number, 3, 0.003) for number in (LOSS, OUTSIDE)),
        module_times(UNATTRIBUTED, 3, 0.005, backward_self_s=0.001, backward_s=0.001),
    ]
    run.torch([TORCH_S] * 3, frames={"module_times": times})
    run.clean()
    run.writer.replace("modules", [module(1, "Net")])
    run.layers(torch="recorded")
    facts = run.finish()["attribution"]
    assert facts["step_s"] == pytest.approx(0.012)
    assert facts["rows_s"] == pytest.approx(0.012)
    assert facts["owned_s"] == pytest.approx(0.009)
    assert facts["owned_share"] == pytest.approx(0.75)
    assert facts["calibrated_owned_s"] == pytest.approx(0.75 * CLEAN_S)
    assert facts["backward_s"] == pytest.approx(0.010 / 3)
    assert facts["backward_attributed_share"] == pytest.approx(0.9)
    assert facts["negative_rows"] == 0
    assert [row["path"] for row in facts["unowned"]] == ["(not attributed)", "(outside modules)"]
    assert [row["share"] for row in facts["unowned"]] == pytest.approx([6 / 36, 3 / 36])
    assert "Python" in facts["reason"]


def test_without_a_slice_of_torch_the_sums_are_null(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec")
    run.clean()
    run.layers(torch="empty")
    facts = run.finish()["attribution"]
    assert facts["owned_share"] is facts["rows_s"] is facts["negative_rows"] is None
    assert facts["clean_median_s"] == pytest.approx(CLEAN_S)
    assert facts["unowned"] == []
    assert "no slice" in facts["reason"]
