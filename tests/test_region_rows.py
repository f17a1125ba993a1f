"""What a torch slice tells of named ranges: their operators, operations and memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import record_function
from torch_slice import observe

from profstack.capture import user_regions
from profstack.capture.user_regions import region
from profstack.readers.torchtrace import regions, slice_tables
from profstack.readers.torchtrace.columns import StringColumn

OWN, FUNCTION, TORCH = "profstack.region", "record_function", "torch"
WARM = 1


class Hooked:
    """What the engine's hooks tell of ranges: this thread's are emitted, nobody listens."""

    torch = torch
    listener = None

    def __init__(self) -> None:
        self.ranging: int | None = threading.get_ident()

    def active_listener(self) -> None:
        return None


def rows(
    step: Callable[[], object], steps: int = 3, mode: str = "timed", **keywords: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows by source and path of a slice of these steps, in which regions are passed on."""
    count = [0]

    def counted() -> None:
        count[0] += 1
        if count[0] == WARM + 1:
            user_regions.forward_to(Hooked())
        step()
        if count[0] == WARM + steps:
            user_regions.forward_to(None)

    user_regions.switch_on()
    try:
        taken = observe(counted, steps, mode, warm=WARM, **keywords).captured
    finally:
        user_regions.switch_off()
    assert taken.notes == []
    found = {(row["source"], row["path"]): row for row in taken.frames["region_work"]}
    assert len(found) == len(taken.frames["region_work"])
    assert all(row["operator_s"] <= row["wall_s"] + 1e-9 for row in found.values())
    operators = sum(row["self_s"] for row in taken.frames["operators"])
    assert all(row["operator_s"] <= operators + 1e-9 for row in found.values())
    # What is a range is no operator.
    assert not {path for _, path in found} & {row["name"] for row in taken.frames["operators"]}
    return found


def product(size: int = 4) -> torch.Tensor:
    """2 * size ** 3 operations."""
    return torch.ones(size, size) @ torch.ones(size, size)


def flops(found: dict[tuple[str, str], dict[str, Any]], source: str) -> dict[str, int | None]:
    return {path: row["flop"] for (of, path), row in found.items() if of == source}


# -- a training step -------------------------------------------------------------------------------


def training() -> Callable[[], None]:
    net = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.ones(16, 8)

    def step() -> None:
        with region("step"), record_function("whole"):
            with region("forward"):
                loss = net(x).sum()
            with record_function("backward"):
                loss.backward()
        optimizer.step()

    return step


def test_a_region_has_the_operators_operations_and_bytes_inside_it() -> None:
    found = rows(training(), mode="detail")
    forward = 3 * 2 * 16 * 8 * 4
    assert flops(found, OWN) == {"step": 2 * forward, "step/forward": forward}
    assert flops(found, FUNCTION) == {"whole": 2 * forward, "backward": forward}
    # The optimizer has a row of its own in the module tree.
    assert flops(found, TORCH) == {}
    assert {row["calls"] for row in found.values()} == {3}
    assert {row["threads"] for row in found.values()} == {1}
    assert all(row["operator_s"] > 0 for row in found.values())
    step, whole = found[OWN, "step"], found[FUNCTION, "whole"]
    assert step["operator_s"] == pytest.approx(whole["operator_s"])
    parts = found[OWN, "step/forward"]["operator_s"] + found[FUNCTION, "backward"]["operator_s"]
    assert step["operator_s"] == pytest.approx(parts)
    assert step["host_net_bytes"] == whole["host_net_bytes"]
    assert {row["device_s"] for row in found.values()} == {None}


def test_operators_hold_their_own_time_and_not_that_of_ranges_around_them() -> None:
    net = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with record_function("whole"):
            time.sleep(0.005)
            net(torch.ones(2, 8)).sum().backward()
        optimizer.step()

    taken = observe(step, 2, "detail").captured.frames
    names = {str(row["name"]) for row in taken["operators"]}
    assert "aten::addmm" in names
    assert not {name for name in names if name == "whole" or name.startswith("Optimizer.")}
    # Two sleeps of 5 ms are in the range and in no operator.
    [whole] = [row for row in taken["region_work"] if row["path"] == "whole"]
    assert whole["wall_s"] - sum(row["self_s"] for row in taken["operators"]) > 0.005


def test_bytes_are_those_that_are_kept_and_null_where_memory_was_not_watched() -> None:
    kept: list[torch.Tensor] = []

    def step() -> None:
        with region("keep"):
            kept.append(torch.empty(1000))
        with region("let go"):
            torch.empty(1000)

    found = rows(step, mode="detail")
    assert found[OWN, "keep"]["host_net_bytes"] == 3 * 4000
    assert found[OWN, "let go"]["host_net_bytes"] == 0
    assert {row["host_net_bytes"] for row in rows(step).values()} == {None}


def test_steps_that_are_left_out_are_in_no_row() -> None:
    found = rows(training(), steps=4, left_out=(1, 2))
    assert found[OWN, "step"]["calls"] == 2
    assert found[OWN, "step/forward"]["flop"] == 2 * 2 * 16 * 8 * 4


def test_a_region_across_steps_is_that_of_all_of_them() -> None:
    opened = region("epoch")
    count = [0]

    def step() -> None:
        count[0] += 1
        if count[0] == 1:
            opened.__enter__()
        product()

    found = rows(step)
    opened.__exit__(None, None, None)
    assert found[OWN, "epoch"]["flop"] == 3 * 2 * 4**3
    assert found[OWN, "epoch"]["calls"] == 1


def test_a_region_that_begins_in_one_step_and_ends_in_the_next() -> None:
    opened: list[region] = []

    def step() -> None:
        if opened:
            product()
            opened.pop().__exit__(None, None, None)
        product(8)
        opened.append(region("between").__enter__())

    # The one that the step before the slice has begun is passed on as the slice begins.
    found = rows(step)
    opened.pop().__exit__(None, None, None)
    assert found[OWN, "between"]["flop"] == 3 * 2 * 4**3


def test_waiting_for_a_loader_is_a_range_of_torchs_and_of_a_region_around_it() -> None:
    data = torch.utils.data.TensorDataset(torch.ones(64, 4))
    loader = iter(torch.utils.data.DataLoader(data, batch_size=2))

    def step() -> None:
        with region("wait"):
            next(loader)
        product()

    found = rows(step)
    [name] = [path for source, path in found if source == TORCH]
    assert name.startswith("enumerate(DataLoader)#")
    assert 0 < found[TORCH, name]["operator_s"] <= found[OWN, "wait"]["operator_s"]
    assert found[OWN, "wait"]["flop"] is None


# -- nesting ---------------------------------------------------------------------------------------


def test_a_region_inside_itself_has_its_work_once() -> None:
    @region("walk")
    def walk(depth: int) -> None:
        product()
        if depth:
            with region("deeper"):
                walk(depth - 1)

    found = rows(lambda: walk(3), steps=1)
    once = 2 * 4**3
    assert flops(found, OWN) == {"walk": 4 * once, "walk/deeper": 3 * once}
    assert found[OWN, "walk"]["calls"] == 4


def test_a_record_function_inside_itself_has_its_work_once() -> None:
    @record_function("walk")
    def walk(depth: int) -> None:
        product()
        if depth:
            walk(depth - 1)

    found = rows(lambda: walk(2), steps=1)
    assert flops(found, FUNCTION) == {"walk": 3 * 2 * 4**3}
    assert found[FUNCTION, "walk"]["calls"] == 3


def test_tasks_that_take_turns_have_their_own_work() -> None:
    async def job(name: str, size: int) -> None:
        with region(name):
            for _ in range(3):
                await asyncio.sleep(0)
                with region("compute"):
                    product(size)

    async def main() -> None:
        with region("main"):
            await asyncio.gather(job("x", 4), job("y", 8))

    found = rows(lambda: asyncio.run(main()), steps=1)
    small, large = 3 * 2 * 4**3, 3 * 2 * 8**3
    assert flops(found, OWN) == {
        "main": small + large,
        "main/x": small,
        "main/x/compute": small,
        "main/y": large,
        "main/y/compute": large,
    }


def test_ranges_that_end_in_another_order_than_they_began() -> None:
    def step() -> None:
        first, second = record_function("first"), record_function("second")
        first.__enter__()
        product(2)
        second.__enter__()
        product(4)
        first.__exit__(None, None, None)
        product(8)
        second.__exit__(None, None, None)
        product(16)

    found = rows(step, steps=1)
    assert flops(found, FUNCTION) == {"first": 2 * (2**3 + 4**3), "second": 2 * (4**3 + 8**3)}


def test_a_generators_region_is_around_nothing_of_its_consumers_regions() -> None:
    def batches() -> Iterator[torch.Tensor]:
        with region("load"):
            for _ in range(2):
                yield product(4)

    def step() -> None:
        for _ in batches():
            with region("train"):
                product(8)

    found = rows(step, steps=1)
    assert flops(found, OWN) == {"load": 2 * 2 * 4**3, "train": 2 * 2 * 8**3}


def test_an_error_ends_ranges() -> None:
    def fail() -> None:
        with region("fails"), record_function("too"):
            product(4)
            raise ValueError("the script's own")

    def step() -> None:
        with pytest.raises(ValueError, match="own"):
            fail()
        product(8)

    found = rows(step)
    assert {row["flop"] for row in found.values()} == {3 * 2 * 4**3}


def test_a_region_on_another_thread_is_not_this_threads() -> None:
    def elsewhere() -> None:
        with region("elsewhere"):
            product(8)

    def step() -> None:
        thread = threading.Thread(target=elsewhere)
        with region("here"):
            thread.start()
            thread.join()
            product(4)

    # The profiler sees one thread: what another does has no row, rather than one with zeros.
    assert flops(rows(step, steps=1), OWN) == {"here": 2 * 4**3}


# -- what is a range -------------------------------------------------------------------------------


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def test_ranges_begun_in_c_are_told_from_operators() -> None:
    x = torch.ones(3, requires_grad=True)

    def step() -> None:
        with torch._C._profiler._RecordFunctionFast("fast"):
            y = Twice.apply(x)
            with torch.no_grad():
                Twice.apply(x)
        y.sum().backward()

    found = rows(step)
    assert list(found) == [(FUNCTION, "fast")]
    # Without shapes they look like operators, and are taken for what they look like.
    assert rows(step, mode="whole") == {}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("compile_inner (dynamo_timed)", TORCH),
        ("backend_compile_data: fn_name=OutputGraph.call_user_compiler, compile_id=0/0", TORCH),
        ("pass.post_grad_passes.stable_sort_data: compile_id=1/1", TORCH),
        ("my_data: batch=3", FUNCTION),
        ("Optimizer.steps of mine", FUNCTION),
        ("DistributedDataParallel.forward", TORCH),
        ("FSDP::all_gather", TORCH),
        ("nccl:all_reduce", TORCH),
        ("train::forward", FUNCTION),
        ("aten", FUNCTION),
        ("", FUNCTION),
    ],
)
def test_torchs_own_ranges_are_told_by_their_names(name: str, source: str) -> None:
    def step() -> None:
        with record_function(name):
            product()

    assert list(rows(step, steps=1)) == [(source, name)]


def test_names_without_end_share_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "MOST_REGIONS", 3)
    number = iter(range(100))

    def step() -> None:
        with record_function(f"step {next(number)}"):
            product()

    found = rows(step, steps=6)
    assert [row["calls"] for row in found.values()] == [1, 1, 1, 3]
    assert list(found)[-1] == (FUNCTION, "(more regions)")
    assert {row["flop"] for row in found.values()} == {128, 384}


def test_a_slice_without_ranges_has_no_rows() -> None:
    assert rows(product) == {}


# -- device threads --------------------------------------------------------------------------------


def test_device_time_is_that_of_the_kernels_launched_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # There is no device on this machine: every event is given one kernel of a microsecond.
    def kernels(owned: Any, *_: Any) -> tuple[list[dict[str, Any]], Any]:
        return [], np.full(len(owned.events), 1000)

    monkeypatch.setattr(slice_tables, "kernel_records", kernels)

    def step() -> None:
        with region("all"):
            with region("one"):
                torch.empty(3)
            with region("two"):
                torch.empty(3)
                torch.empty(3)
            with region("none"):
                pass

    found = rows(step)
    assert {path: row["device_s"] for (_, path), row in found.items()} == {
        "all": pytest.approx(9e-6),
        "all/one": pytest.approx(3e-6),
        "all/two": pytest.approx(6e-6),
        "all/none": 0.0,
    }


class Events:
    """Host events as they come from a device: its backward functions have a thread of their own.

    There is no device on this machine: the threads and times are made up.
    """

    def __init__(self, *spans: tuple[str, int, int, int]) -> None:
        self.names = StringColumn.of([name for name, *_ in spans], len(spans))
        self.thread, self.start, self.end = np.array([span[1:] for span in spans]).T


def test_a_devices_backward_thread_works_for_what_is_open_on_the_main_one() -> None:
    events = Events(
        ("profstack::region step", 1, 0, 100),
        ("backward", 1, 20, 80),
        ("aten::mm", 2, 30, 40),
        ("hook", 2, 50, 60),
        ("aten::add", 2, 52, 54),
        ("aten::mul", 2, 70, 90),
        ("aten::div", 2, 110, 120),
    )
    step, backward, hook = (OWN, "step"), (FUNCTION, "backward"), (FUNCTION, "hook")
    keys = {0: step, 1: backward, 3: hook}
    opened = regions.OpenRanges(events, keys, main=1)  # type: ignore[arg-type]  # a stand-in
    sets = [opened.sets[number] for number in opened.sets_of(np.array([2, 4, 5, 6])).tolist()]
    assert sets == [{step, backward}, {step, backward, hook}, {step, backward}, frozenset()]
