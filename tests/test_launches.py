"""What a step launches, and why a device was idle: on event lists whose answer is counted by hand.

This machine has no device: the events of one are written out here, with the accessors that are
read; the operators of the last tests are torch's own.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_recording import Run, module
from torch_slice import observe

from profstack.analysis.operators import MOST_STEPS
from profstack.readers.device_gaps import Intervals
from profstack.readers.torchtrace.attribution import attribute
from profstack.readers.torchtrace.events import read_host
from profstack.readers.torchtrace.launches import launch_records

EDGES = [0, 1000, 2000, 3000]
_S = 1e-9


@dataclass
class Event:
    """One event of a profile, as the profiler's own: every fact is asked by a call."""

    kind: str
    title: str
    begin: int
    until: int
    correlation: int = 0
    linked: int = 0
    device: int = 0
    user: bool = False

    def name(self) -> str:
        return self.title

    def start_ns(self) -> int:
        return self.begin

    def duration_ns(self) -> int:
        return self.until - self.begin

    def start_thread_id(self) -> int:
        return 1

    def fwd_thread_id(self) -> int:
        return 0

    def sequence_nr(self) -> int:
        return -1

    def activity_type(self) -> str:
        return self.kind

    def correlation_id(self) -> int:
        return self.correlation

    def linked_correlation_id(self) -> int:
        return self.linked

    def device_index(self) -> int:
        return self.device

    def device_type(self) -> Any:
        return types.SimpleNamespace(name="CUDA")

    def is_user_annotation(self) -> bool:
        return self.user


def operator(name: str, begin: int, until: int, number: int = 0) -> Event:
    return Event("cpu_op", name, begin, until, correlation=number)


def called(number: int, begin: int, until: int) -> Event:
    """A module's call, by the range that profstack puts round it."""
    return Event("user_annotation", f"profstack::module {number}", begin, until, user=True)


def kernel(call: int, begin: int, until: int, operator: int = 0, device: int = 0) -> Event:
    return Event("kernel", f"kernel_{call}", begin, until, call, operator, device)


def launch(call: int, begin: int, until: int) -> Event:
    return Event("cuda_runtime", "cudaLaunchKernel", begin, until, call)


def copy(begin: int, until: int, device: int = 0) -> Event:
    return Event("gpu_memcpy", "Memcpy HtoD", begin, until, device=device)


# Three steps of 1000 ns: a wait for data, a queue, a synchronisation, a late host and a copy on
# another stream; a step that begins late; a copy to the device, and a value read back.
HOST = [
    called(1, 300, 900),
    operator("aten::linear", 305, 345, 1),
    operator("aten::addmm", 308, 344, 2),
    operator("aten::relu", 346, 360, 3),
    operator("mylib::fused", 525, 545, 4),
    Event("user_annotation", "my::range", 690, 760, user=True),
    operator("aten::mul", 695, 711, 5),
    operator("aten::sum", 748, 756, 6),
    called(1, 1010, 1990),
    operator("aten::addmm", 1090, 1130, 7),
    called(1, 2005, 2500),
    operator("aten::addmm", 2405, 2425, 8),
    operator("aten::item", 2440, 2515),
    operator("aten::_local_scalar_dense", 2450, 2510),
]
RUNTIME = [
    launch(11, 310, 320),
    launch(12, 340, 350),
    Event("cuda_runtime", "cudaStreamSynchronize", 360, 520, 90),
    launch(13, 530, 540),
    launch(14, 700, 710),
    launch(15, 750, 755),
    launch(16, 1100, 1110),
    launch(17, 1112, 1116),
    launch(18, 2410, 2420),
]
DEVICE = [
    kernel(11, 330, 400, 2),
    kernel(12, 420, 500, 3),
    kernel(13, 550, 600, 4),
    kernel(14, 720, 760, 5),
    copy(770, 840),
    kernel(15, 850, 900, 6),
    kernel(16, 1120, 1990, 7),
    # On a stream beside it.
    kernel(17, 1500, 1800, 7),
    copy(2010, 2400),
    kernel(18, 2430, 2500, 8),
]
# By hand: cause, number, and the gaps' lengths.
CAUSES = {
    "data wait": [330],
    "queued": [20],
    "synchronisation": [50, 500],
    "host late": [120],
    "copy": [90, 440],
    "start of step": [220],
}


def told(
    host: list[Event],
    device: list[Event],
    runtime: list[Event],
    left_out: tuple[int, ...] = (),
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    events = read_host(host, [event.kind for event in host])
    owned = attribute(events, EDGES, lambda number: False, left_out)
    return launch_records(owned, 4, device, runtime)


def test_launches_and_device_time_of_every_step_are_as_counted_by_hand() -> None:
    rows, _ = told(HOST, DEVICE, RUNTIME)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert {row["device"] for row in rows} == {"cuda:0"}
    assert [row["kernels"] for row in rows] == [5, 2, 1]
    assert [row["launches"] for row in rows] == [5, 2, 1]
    assert [row["launches_s"] for row in rows] == pytest.approx([45e-9, 14e-9, 10e-9])
    assert {row["launched_by"] for row in rows} == {"runtime calls"}
    assert [row["busy_s"] for row in rows] == pytest.approx([290e-9, 870e-9, 70e-9])
    assert [row["idle_s"] for row in rows] == pytest.approx([710e-9, 130e-9, 930e-9])
    # The script's range is no operator, whatever it is called.
    assert [row["operators"] for row in rows] == [6, 1, 3]
    assert [row["outermost"] for row in rows] == [5, 1, 2]
    inside = [40 + 14 + 20 + 16 + 8, 40, 20 + 75]
    assert [row["operators_s"] for row in rows] == pytest.approx([n * _S for n in inside])


def test_every_gap_has_its_cause() -> None:
    rows, gaps = told(HOST, DEVICE, RUNTIME)
    by_cause = {row["cause"]: row for row in gaps}
    assert set(by_cause) == set(CAUSES)
    for cause, lengths in CAUSES.items():
        row = by_cause[cause]
        assert row["count"] == len(lengths), cause
        assert row["total_s"] == pytest.approx(sum(lengths) * _S), cause
        assert row["longest_s"] == pytest.approx(max(lengths) * _S), cause
    # All of the idle time has a cause, and nothing else has.
    idle = sum(row["idle_s"] for row in rows)
    assert sum(row["total_s"] for row in gaps) == pytest.approx(idle)
    late = by_cause["host late"]
    assert (late["after_operator"], late["before_operator"]) == ("mylib::fused", "aten::mul")
    assert (late["after_module_id"], late["before_module_id"]) == (1, 1)
    # The longest one is the last: the value was read back, and no kernel came after it.
    read = by_cause["synchronisation"]
    assert (read["after_operator"], read.get("before_operator")) == ("aten::addmm", None)


def test_of_steps_that_do_not_count_neither_kernels_nor_gaps_are_told() -> None:
    rows, gaps = told(HOST, DEVICE, RUNTIME, left_out=(1,))
    assert [row["step"] for row in rows] == [0, 2]
    assert [row["kernels"] for row in rows] == [5, 1]
    idle = sum(row["idle_s"] for row in rows)
    assert idle == pytest.approx((710 + 930) * _S)
    assert sum(row["total_s"] for row in gaps) == pytest.approx(idle)
    # The gap across the edge is cut there: its part in the first step has no next launch in it.
    assert {row["cause"]: row["count"] for row in gaps}["host late"] == 2


def test_without_calls_of_the_runtime_the_launch_is_the_operators_own_time() -> None:
    rows, gaps = told(HOST, DEVICE, [])
    assert {row["launched_by"] for row in rows} == {"operators"}
    assert [row["launches"] for row in rows] == [5, 1, 1]
    # Own times of addmm, relu, fused, mul and sum; then of one addmm each.
    assert [row["launches_s"] for row in rows] == pytest.approx([94e-9, 40e-9, 20e-9])
    # The synchronising call is not seen; what was read back is.
    assert {row["cause"]: row["count"] for row in gaps}["synchronisation"] == 1


def test_one_launch_of_a_graph_begins_many_kernels() -> None:
    graph = [kernel(7, start, start + 50) for start in (100, 200, 300)]
    rows, gaps = told(HOST[:1], graph, [Event("cuda_runtime", "cudaGraphLaunch", 10, 40, 7)])
    assert (rows[0]["kernels"], rows[0]["launches"]) == (3, 1)
    assert rows[0]["launches_s"] == pytest.approx(30e-9)
    # Those between its kernels did not wait for the host.
    assert {row["cause"]: row["count"] for row in gaps}["queued"] == 2
    # Nothing was launched in the other steps; that took no time, and is known.
    assert (rows[1]["kernels"], rows[1]["launches"], rows[1]["launches_s"]) == (0, 0, 0.0)


def test_kernels_count_for_the_step_that_launched_them_and_run_where_they_run() -> None:
    rows, _ = told(HOST[:1], [kernel(1, 900, 1600)], [launch(1, 800, 810)])
    assert [row["kernels"] for row in rows] == [1, 0, 0]
    assert [row["busy_s"] for row in rows] == pytest.approx([100e-9, 600e-9, 0.0])


def test_kernels_that_nothing_launched_have_no_launch() -> None:
    rows, gaps = told(HOST[:1], [kernel(1, 400, 500)], [])
    assert rows[0]["kernels"] == 1
    assert (rows[0]["launches"], rows[0]["launches_s"]) == (None, None)
    assert rows[0].get("launched_by") is None
    named = {row["after_operator"] for row in gaps if row.get("after_operator")}
    assert named == {"kernel_1"}


def test_devices_are_told_apart() -> None:
    rows, gaps = told(
        HOST, [*DEVICE, kernel(19, 100, 300, device=1), copy(300, 900, 1)], [*RUNTIME]
    )
    second = [row for row in rows if row["device"] == "cuda:1"]
    assert [row["busy_s"] for row in second] == pytest.approx([200e-9, 0.0, 0.0])
    first = [row for row in rows if row["device"] == "cuda:0"]
    assert [row["busy_s"] for row in first] == pytest.approx([290e-9, 870e-9, 70e-9])
    for device in ("cuda:0", "cuda:1"):
        idle = sum(row["idle_s"] for row in rows if row["device"] == device)
        some = sum(row["total_s"] for row in gaps if row["device"] == device)
        assert some == pytest.approx(idle)


def told_of(intervals: Intervals) -> list[tuple[int, int]]:
    return list(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True))


def test_intervals_unite_and_are_cut() -> None:
    spans = np.array([(5, 9), (0, 3), (2, 4), (4, 5), (20, 20), (12, 15)])
    union = Intervals.united(spans[:, 0], spans[:, 1])
    assert told_of(union) == [(0, 9), (12, 15)]
    assert told_of(union.cut(3, 13)) == [(3, 9), (12, 13)]
    assert told_of(union.cut(9, 12)) == []
    assert union.before(np.array([-1, 0, 4, 9, 11, 13, 99])).tolist() == [0, 0, 4, 9, 9, 10, 12]
    nothing = Intervals.united(spans[:0, 0], spans[:0, 1])
    assert told_of(nothing.cut(0, 5)) == []
    assert nothing.inside(spans[:, 0], spans[:, 1]).tolist() == [0] * 6


class Three(torch.nn.Module):
    """Calls three operators that call no other, and one that calls them from inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("mine::not_an_operator"):
            return x.neg().neg().neg()


def test_on_the_cpu_operators_are_counted_and_kernels_are_unknown() -> None:
    model = Three()
    rows = observe(lambda: model(torch.ones(4)), steps=3).captured.frames["launches"]
    # Three of the module, and what torch calls to make the input.
    extra = rows[0]["operators"] - 3
    plain = observe(lambda: torch.ones(4), steps=1).captured.frames["launches"]
    assert extra == plain[0]["operators"]
    assert [row["operators"] for row in rows] == [rows[0]["operators"]] * 3
    assert [row["outermost"] - plain[0]["outermost"] for row in rows] == [3, 3, 3]
    assert all(row["operators_s"] > 0 for row in rows)
    for row in rows:
        assert {row.get(name) for name in ("device", "kernels", "launches", "busy_s")} == {None}


def test_the_report_has_steps_means_and_gaps_by_place(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writer.write({"modules": [module(1, "Net")]})
    run.slice("clean", [0.01] * 5)
    rows, gaps = told(HOST, DEVICE, RUNTIME)
    unnumbered = [
        [{key: value for key, value in row.items() if key != "slice"} for row in table]
        for table in (rows, gaps)
    ]
    frames = dict(zip(("launches", "gaps"), unnumbered, strict=True))
    run.slice("torch", [0.012] * 3, layer="torch", mode="timed", frames=frames)
    report = run.finish()
    steps = report["tables"]["launches"]
    assert [row["step"] for row in steps] == [5, 6, 7]
    assert steps[0]["launch_s"] == pytest.approx(9e-9)
    assert steps[0]["operator_s"] == pytest.approx(98e-9 / 6)
    assert steps[1]["device_idle_s"] == pytest.approx(130e-9)
    means = report["launching"]
    assert (means["steps"], means["kernels"], means["operators"]) == (3, 8 / 3, 10 / 3)
    assert means["launch_s"] == pytest.approx(69e-9 / 8)
    assert means["reason"] is None
    causes = report["tables"]["gaps"]
    assert [row["cause"] for row in causes][:2] == ["synchronisation", "copy"]
    assert sum(row["total_s"] for row in causes) == pytest.approx(1770e-9 / 3)
    late = next(row for row in causes if row["cause"] == "host late")
    assert (late["after"], late["before"]) == ("mylib::fused in Net", "aten::mul in Net")
    assert late["longest_s"] == pytest.approx(120e-9)


def test_no_more_steps_than_a_reader_needs(tmp_path: Path) -> None:
    run = Run(tmp_path)
    row = {"operators": 4, "outermost": 2, "operators_s": 1e-3}
    frames = {"launches": [{"step": step, **row} for step in range(150)]}
    run.slice("torch", [0.012] * 150, layer="torch", mode="timed", frames=frames)
    run.layers(torch="recorded")
    report = run.finish()
    assert len(report["tables"]["launches"]) == MOST_STEPS
    assert report["launching"]["steps"] == 150
    assert report["launching"]["kernels"] is None
    assert "no kernel" in report["launching"]["reason"]
    assert "no kernel" in report["columns_reason"]["launches.launch_s"]
