"""Owners of a step's time: every moment counted once, backward work where its forward was."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_slice import Slice, observe, self_s

from profstack.readers.torchtrace.attribution import attribute, module_records
from profstack.readers.torchtrace.events import EVALUATE, clip_to_steps, read_host
from profstack.readers.torchtrace.operators import (
    kernel_records,
    moved_records,
    operator_records,
    read_inputs,
)

Step = Callable[[], object]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.second = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(32, 32)
        self.same = self.shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.same(torch.relu(self.shared(x)))


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
        return self.linear(x) if depth == 0 else torch.tanh(self(x, depth - 1))


class Inner(nn.Module):
    def __init__(self, outer: nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "outer", outer)

    def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
        return self.outer(x, depth)  # type: ignore[no-any-return, operator]


class InsideItselfThroughAnother(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.inner = Inner(self)

    def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
        return self.linear(x) if depth == 0 else torch.tanh(self.inner(x, depth - 1))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.before = nn.Linear(32, 32)
        self.block = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = checkpoint(self.block, self.before(x), use_reentrant=self.reentrant)
        return self.head(middle)


class Energy(nn.Module):
    """A backward pass inside the forward, whose result is differentiated again."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x.view(4, -1, 32))[0][:, -1])


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.relu(self.norm(self.conv(x.view(16, 1, 4, 8)))).mean((2, 3)))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 32), torch.randint(0, 10, (16,))


def training(model: nn.Module, *, wanted: int = 10) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, labels = data()

    def step() -> None:
        optimizer.zero_grad()
        out = model(x)
        loss = functional.cross_entropy(out, labels[: len(out)] % wanted)
        loss.backward()
        optimizer.step()

    return step


def energy_training() -> Step:
    model = Energy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(16, 32, requires_grad=True)

    def step() -> None:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    return step


def gan() -> Step:
    maker = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32))
    judge = nn.Sequential(nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    makers = torch.optim.Adam(maker.parameters(), lr=1e-3)
    judges = torch.optim.Adam(judge.parameters(), lr=1e-3)
    real, ones, zeros = torch.randn(16, 32), torch.ones(16, 1), torch.zeros(16, 1)
    criterion = nn.BCEWithLogitsLoss()

    def step() -> None:
        fake = maker(torch.randn(16, 8))
        judges.zero_grad()
        (criterion(judge(real), ones) + criterion(judge(fake.detach()), zeros)).backward()
        judges.step()
        makers.zero_grad()
        criterion(judge(fake), ones).backward()
        makers.step()

    return step


def accumulation() -> Step:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, labels = data()

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(4):
            (functional.cross_entropy(model(x), labels) / 4).backward()
        optimizer.step()

    return step


def lbfgs() -> Step:
    model = Mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, labels = data()

    def step() -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), labels)
            loss.backward()
            return loss

        optimizer.step(closure)

    return step


def inside_a_range() -> Step:
    inner = training(Mlp())

    def step() -> None:
        with torch.profiler.record_function("the script's own"):
            inner()

    return step


def plain_tensors() -> Step:
    weights = [torch.randn(32, 32, requires_grad=True) for _ in range(3)]
    x = torch.randn(16, 32)

    def step() -> None:
        h = x
        for weight in weights:
            h = torch.relu(h @ weight)
        h.sum().backward()
        with torch.no_grad():
            for weight in weights:
                weight -= 1e-3 * weight.grad  # type: ignore[operator]
                weight.grad = None

    return step


def inference() -> Step:
    model = Mlp().eval()
    x, _ = data()

    def step() -> None:
        with torch.no_grad():
            model(x)

    return step


def optimizer_in_backward() -> Step:
    model = Mlp()
    x, labels = data()
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], lr=1e-3)

        def update(tensor: torch.Tensor, own: torch.optim.SGD = own) -> None:
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    return lambda: functional.cross_entropy(model(x), labels).backward()


def error_in_forward() -> Step:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    x, _ = data()

    def step() -> None:
        try:
            model(x[:, :3])
        except RuntimeError:
            model(x).sum().backward()

    return step


WORKLOADS: dict[str, Callable[[], Step]] = {
    "mlp": lambda: training(Mlp()),
    "lstm": lambda: training(Lstm()),
    "conv": lambda: training(Conv()),
    "gan": gan,
    "shared": lambda: training(Twice()),
    "recursive": lambda: training(Recursive()),
    "inside itself": lambda: training(InsideItselfThroughAnother()),
    "accumulation": accumulation,
    "checkpoint re-entrant": lambda: training(Checkpointed(True)),
    "checkpoint": lambda: training(Checkpointed(False)),
    "grad in forward": energy_training,
    "lbfgs": lbfgs,
    "range around the step": inside_a_range,
    "plain tensors": plain_tensors,
    "inference": inference,
    "optimizer in backward": optimizer_in_backward,
    "error in forward": error_in_forward,
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_rows_add_up_exactly_to_the_steps(name: str) -> None:
    seen = observe(WORKLOADS[name]())
    rows = seen.captured.frames["module_times"]
    # Stamps are rounded to whole nanoseconds.
    assert sum(map(self_s, rows)) == pytest.approx(seen.wall_s, abs=5e-9)


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_time_is_negative_or_counted_twice(name: str) -> None:
    seen = observe(WORKLOADS[name](), mode="detail")
    for path, row in seen.rows.items():
        for column in ("forward_s", "forward_self_s", "backward_s", "backward_self_s"):
            assert row[column] >= 0, (path, column)
        both = row["forward_s"] + row["backward_s"]
        assert both <= seen.wall_s + 5e-9, path
        assert row["forward_s"] >= row["forward_self_s"] - 1e-12, path
        assert row["backward_s"] >= row["backward_self_s"] - 1e-12, path
    for row in seen.operators:
        assert row["self_s"] >= 0
        assert row["total_s"] >= row["self_s"] - 1e-12
        assert row["calls"] > 0
    assert sum(row["self_s"] for row in seen.operators) <= seen.wall_s + 5e-9


@pytest.mark.parametrize("name", WORKLOADS)
def test_modules_hold_what_is_inside_them(name: str) -> None:
    """With one root the sums with children are its own and all its children's own."""
    seen = observe(WORKLOADS[name]())
    modules = {path: row for path, row in seen.rows.items() if row["module_id"] > 0}
    roots = [path for path in modules if "." not in path]
    for column in ("forward", "backward"):
        whole = sum(modules[root][f"{column}_s"] for root in roots)
        own = sum(row[f"{column}_self_s"] for row in modules.values())
        assert whole == pytest.approx(own, abs=1e-11)


@pytest.mark.parametrize("name", sorted(WORKLOADS.keys() - {"inference", "plain tensors"}))
def test_nearly_all_backward_functions_find_the_forward_that_made_them(name: str) -> None:
    seen = observe(WORKLOADS[name]())
    host = seen.host()
    evaluated = host.names.where(lambda text: text.startswith(EVALUATE))
    owned = _attributed(seen)
    time = host.duration[evaluated]
    found = owned.owner[evaluated] != -6
    assert time[found].sum() >= 0.99 * time.sum()


def _attributed(seen: Slice, left_out: tuple[int, ...] = ()) -> Any:
    host = seen.host()
    edges = [int(host.start.min()), int(host.end.max())]
    return attribute(host, edges, lambda number: seen.modules[number].is_loss, left_out)


def backward_owners(seen: Slice, function: str) -> set[str | None]:
    """Modules that the backward operators of this name were given to."""
    return {
        seen.path(row["module_id"])
        for row in seen.operators
        if row["name"] == function and row["backward"]
    }


def test_backward_goes_to_the_module_whose_forward_made_it() -> None:
    seen = observe(training(Mlp()))
    owners = backward_owners(seen, "AddmmBackward0")
    assert owners == {"Mlp.first", "Mlp.second"}
    # The functional relu stands in the root's own forward.
    assert backward_owners(seen, "ReluBackward0") == {"Mlp"}
    assert backward_owners(seen, "NllLossBackward0") == {"(loss)"}
    assert backward_owners(seen, "torch::autograd::AccumulateGrad") == {"(gradient accumulation)"}
    rows = seen.rows
    assert rows["Mlp"]["calls"] == 3
    assert rows["Mlp.first"]["backward_self_s"] > 0
    assert rows["(loss)"]["backward_self_s"] > 0
    assert rows["(optimizer)"]["calls"] == 3


def test_backward_of_convolution_and_lstm() -> None:
    conv = observe(training(Conv()))
    assert backward_owners(conv, "ConvolutionBackward0") == {"Conv.conv"}
    assert backward_owners(conv, "NativeBatchNormBackward0") == {"Conv.norm"}
    lstm = observe(training(Lstm()))
    assert lstm.rows["Lstm.lstm"]["backward_self_s"] > 0
    assert backward_owners(lstm, "SelectBackward0") == {"Lstm"}
    assert backward_owners(lstm, "AddmmBackward0") == {"Lstm.head"}


def test_backward_operators_inside_go_where_the_function_goes() -> None:
    seen = observe(training(Mlp()))
    matrix = {
        (seen.path(row["module_id"]), row["backward"])
        for row in seen.operators
        if row["name"] == "aten::mm"
    }
    assert matrix == {("Mlp.first", 1), ("Mlp.second", 1)}


def test_roots_of_one_class_are_two() -> None:
    seen = observe(gan())
    maker, judge = seen.rows["Sequential"], seen.rows["Sequential#2"]
    assert (maker["calls"], judge["calls"]) == (3, 9)
    assert maker["backward_s"] > 0
    assert judge["backward_s"] > 0
    assert backward_owners(seen, "LeakyReluBackward0") == {"Sequential#2.1"}
    assert backward_owners(seen, "ReluBackward0") == {"Sequential.1"}
    # A loss that is a module has a row of its own.
    assert seen.rows["BCEWithLogitsLoss"]["calls"] == 9
    assert seen.rows["BCEWithLogitsLoss"]["backward_self_s"] > 0


def test_shared_module_is_one_row_with_all_its_calls() -> None:
    seen = observe(training(Twice()))
    assert seen.rows["Twice.shared"]["calls"] == 6
    named = {named.path: named for named in seen.modules.values()}
    assert named["Twice.shared"].aliases == ["Twice.same"]
    assert backward_owners(seen, "AddmmBackward0") == {"Twice.shared"}


@pytest.mark.parametrize("model", [Recursive, InsideItselfThroughAnother])
def test_module_inside_itself_is_counted_once(model: Callable[[], nn.Module]) -> None:
    seen = observe(training(model()))
    row = seen.rows[model.__name__]
    assert row["calls"] == 12
    host = seen.host()
    number = row["module_id"]
    ranges = host.names.where(lambda name: name == f"profstack::module {number}")
    outermost = ranges & (host.parent < 0)
    assert row["forward_s"] == pytest.approx(host.duration[outermost].sum() * 1e-9, abs=1e-12)


@pytest.mark.parametrize("reentrant", [True, False])
def test_forward_done_again_is_backward_work_of_the_module_that_does_it(reentrant: bool) -> None:
    seen = observe(training(Checkpointed(reentrant)))
    rows = seen.rows
    # Calls are those of the forward: what checkpointing does again is no call of the script's.
    for path in ("Checkpointed.block", "Checkpointed.block.0", "Checkpointed.block.2"):
        assert rows[path]["calls"] == 3
        assert rows[path]["backward_self_s"] > 0
    assert backward_owners(seen, "GeluBackward0") == {"Checkpointed.block.1"}
    assert "Checkpointed.block.0" in backward_owners(seen, "aten::addmm")
    block = sum(
        row["backward_self_s"]
        for path, row in rows.items()
        if path.startswith("Checkpointed.block")
    )
    assert rows["Checkpointed.block"]["backward_s"] == pytest.approx(block, abs=1e-11)
    # Told of as one call and one backward pass per step, warm steps included.
    assert seen.sink.told["call_started"] == 5
    assert seen.sink.told["backward_ended"] == 5


def test_backward_of_a_backward_goes_to_the_same_module() -> None:
    seen = observe(energy_training())
    assert backward_owners(seen, "TanhBackward0") == {"Energy.net.1"}
    assert backward_owners(seen, "TanhBackwardBackward0") == {"Energy.net.1"}
    row = seen.rows["Energy"]
    assert row["forward_s"] + row["backward_s"] < seen.wall_s


@pytest.mark.timed
def test_loss_in_a_closure_is_no_work_of_the_optimizer() -> None:
    seen = observe(lbfgs())
    assert seen.rows["(loss)"]["forward_s"] > 0
    assert seen.rows["(loss)"]["backward_s"] > 0
    assert seen.rows["(optimizer)"]["calls"] == 3
    host = seen.host()
    steps = host.names.where(lambda name: name == "Optimizer.step#LBFGS.step")
    whole = host.duration[steps].sum() * 1e-9
    inside = seen.rows["Mlp"]["forward_s"] + seen.rows["Mlp"]["backward_s"]
    assert seen.rows["(optimizer)"]["forward_s"] <= whole - inside


def test_optimizer_inside_the_backward_pass() -> None:
    seen = observe(optimizer_in_backward())
    assert seen.rows["(optimizer)"]["calls"] == 12
    assert seen.rows["(optimizer)"]["forward_s"] > 0


def test_range_of_the_script_around_the_step_changes_no_owner() -> None:
    torch.manual_seed(0)
    plain = {path for path, row in observe(training(Mlp())).rows.items() if self_s(row) > 0}
    torch.manual_seed(0)
    ranged = {path for path, row in observe(inside_a_range()).rows.items() if self_s(row) > 0}
    assert plain <= ranged | {"(outside modules)"}
    assert ranged <= plain | {"(outside modules)"}


def test_waiting_is_what_comes_before_the_first_call() -> None:
    inner = training(Mlp())

    def step() -> None:
        time.sleep(0.004)
        inner()

    assert observe(step).rows["(wait)"]["forward_s"] >= 0.012


@pytest.mark.timed
def test_loss_is_what_lies_between_forward_and_backward() -> None:
    model = Mlp()
    x, labels = data()

    def step() -> None:
        loss = functional.cross_entropy(model(x), labels)
        time.sleep(0.004)
        (loss * 2).backward()
        time.sleep(0.004)

    rows = observe(step).rows
    assert 0.012 <= rows["(loss)"]["forward_s"] < 0.024
    assert rows["(not attributed)"]["forward_s"] >= 0.012


def test_steps_left_out_do_not_count() -> None:
    step = training(Mlp())
    seen = observe(step, steps=4, left_out=(1, 2))
    kept = (seen.stamps[1] - seen.stamps[0]) + (seen.stamps[4] - seen.stamps[3])
    rows = seen.captured.frames["module_times"]
    assert sum(map(self_s, rows)) == pytest.approx(kept, abs=5e-9)
    assert seen.rows["Mlp"]["calls"] == 2
    assert seen.rows["(optimizer)"]["calls"] == 2
    calls = {(row["name"], row["module_id"]): row["calls"] for row in seen.operators}
    assert calls["aten::addmm", seen.rows["Mlp.first"]["module_id"]] == 2


def test_module_called_while_the_slice_begins_and_ends() -> None:
    """A range that is cut off counts up to the edge, and not beyond."""
    seen = observe(training(Mlp()), steps=2)
    host = seen.host()
    middle = int(np.median(host.start))
    edges = [int(host.start.min()), middle]
    clip_to_steps(host, edges)
    owned = attribute(host, edges, lambda number: False)
    rows = module_records(owned, 0, memory=False)
    assert sum(map(self_s, rows)) == pytest.approx((middle - edges[0]) * 1e-9, abs=5e-9)
    assert all(min(row["forward_self_s"], row["backward_self_s"]) >= 0 for row in rows)


def test_memory_taken_less_given_back() -> None:
    held: list[torch.Tensor] = []

    class Keeps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held.append(torch.zeros(1000))
            torch.zeros(5000)
            return x

    class Frees(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held.clear()
            return x

    model = nn.Sequential(Keeps(), Frees())
    x = torch.zeros(4)
    seen = observe(lambda: model(x), steps=3, mode="detail")
    rows = seen.rows
    assert rows["Sequential.0"]["host_net_bytes"] == 3 * 4000
    assert rows["Sequential.1"]["host_net_bytes"] == -3 * 4000
    assert rows["Sequential"]["host_net_bytes"] == 0
    # Without a device its bytes are unknown, and without memory events the host's are too.
    assert rows["Sequential"]["device_net_bytes"] is None
    timed = observe(lambda: model(x), steps=3).rows["Sequential"]
    assert timed["host_net_bytes"] is None


def test_operator_rows_keep_shapes_apart() -> None:
    model = Mlp()

    def step() -> None:
        with torch.no_grad():
            model(torch.zeros(4, 32))
            model(torch.zeros(8, 32))

    rows = [row for row in observe(step).operators if row["name"] == "aten::addmm"]
    assert len(rows) == 4
    assert all(row["calls"] == 3 for row in rows)
    assert any("[8, 32]" in row["shapes"] for row in rows)


def test_operators_of_the_optimizer_are_the_optimizers() -> None:
    seen = observe(training(Mlp()))
    update = [row for row in seen.operators if row["name"] == "aten::add_"]
    assert {seen.path(row["module_id"]) for row in update} == {"(optimizer)"}


class Kernel:
    """A device event with the accessors that are read; this machine has no device."""

    def __init__(self, linked: int, nanoseconds: int) -> None:
        self._linked, self._nanoseconds = linked, nanoseconds

    def linked_correlation_id(self) -> int:
        return self._linked

    def duration_ns(self) -> int:
        return self._nanoseconds

    def name(self) -> str:
        return "gemm"

    def device_type(self) -> Any:
        return torch._C._autograd.DeviceType.CUDA

    def device_index(self) -> int:
        return 0

    def device_resource_id(self) -> int:
        return 7


def test_kernels_go_to_the_module_that_launched_them() -> None:
    seen = observe(training(Mlp()))
    owned = _attributed(seen)
    host = owned.events
    forward = _launches(seen, owned, "aten::addmm", "Mlp.first")
    backward = _launches(seen, owned, "aten::mm", "Mlp.second")
    kernels = [*(Kernel(number, 1000) for number in forward + backward), Kernel(10**9, 5)]
    rows, device_ns = kernel_records(owned, kernels, 0)
    assert device_ns.sum() == 1000 * (len(forward) + len(backward))
    assert len(device_ns) == len(host)
    modules = {seen.path(row["module_id"]): row for row in module_records(owned, 0, memory=False)}
    first, second, root = (modules[path] for path in ("Mlp.first", "Mlp.second", "Mlp"))
    assert first["forward_device_s"] == pytest.approx(len(forward) * 1e-6)
    assert first["backward_device_s"] == 0
    assert second["backward_device_s"] == pytest.approx(len(backward) * 1e-6)
    assert root["forward_device_s"] == pytest.approx(len(forward) * 1e-6)
    assert root["backward_device_s"] == pytest.approx(len(backward) * 1e-6)
    assert modules["(loss)"]["forward_device_s"] == 0
    by_operator = {(row["operator"], row["stream"], row["device"]): row["calls"] for row in rows}
    assert by_operator == {
        ("aten::addmm", 7, "cuda:0"): len(forward),
        ("aten::mm", 7, "cuda:0"): len(backward),
        (None, 7, "cuda:0"): 1,
    }
    operators = operator_records(owned, 0, device_ns)
    assert sum(row["device_s"] for row in operators) == pytest.approx(device_ns.sum() * 1e-9)


def _launches(seen: Slice, owned: Any, operator: str, path: str) -> list[int]:
    """Correlation numbers of an operator's events in one module."""
    number = seen.rows[path]["module_id"]
    named = owned.events.names.where(lambda name: name == operator)
    positions = np.flatnonzero(named & (owned.owner == number))
    return [event.correlation_id() for event in owned.events.raw(positions)]


def test_without_a_device_its_times_are_unknown() -> None:
    for row in observe(training(Mlp())).rows.values():
        assert row["forward_device_s"] is None
        assert row["backward_device_s"] is None


def test_other_threads_are_no_part_of_the_slice() -> None:
    """On a thread of its own a slice is profiled with all threads; only its own is read."""
    found: list[Slice] = []
    stop = threading.Event()

    def elsewhere() -> None:
        step = training(Conv())
        while not stop.is_set():
            step()

    def here() -> None:
        inner = training(Mlp())

        def step() -> None:
            inner()
            # The other thread's turn.
            time.sleep(0.02)

        found.append(observe(step))

    other, own = threading.Thread(target=elsewhere), threading.Thread(target=here)
    other.start()
    own.start()
    own.join()
    stop.set()
    other.join()
    (seen,) = found
    assert sum(map(self_s, seen.captured.frames["module_times"])) == pytest.approx(
        seen.wall_s, abs=5e-9
    )
    # The other model ran in the slice, and has no part in it.
    assert {path.split(".")[0] for path in seen.rows} & {"Mlp", "Conv"} == {"Mlp"}
    assert seen.rows["Mlp"]["calls"] == 3
    assert not any("conv" in row["name"] for row in seen.operators)
    assert any("conv" in event.name() for event in seen.events.events())


def test_an_empty_slice_has_no_rows_but_its_time() -> None:
    host = read_host([])
    rows = module_records(attribute(host, [0, 1000], lambda number: False), 0, memory=True)
    assert sum(map(self_s, rows)) == pytest.approx(1e-6)
    owned = attribute(host, [0, 1000], lambda number: False)
    inputs = read_inputs(owned)
    assert operator_records(owned, 0, host.start, inputs) == []
    assert moved_records(owned, 0, inputs, host.start) == []
