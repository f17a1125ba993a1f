"""What a step launches, and why a device was idle: on events counted by hand."""

import pytest

from profstack.readers.torchtrace.attribution import attribute
from profstack.readers.torchtrace.events import read_host
from profstack.readers.torchtrace.launches import launch_records
from tests.support.events import events
from tests.support.tables import in_ns


def kernels(text, kind="kernel", device=0, **more):
    return events(text, kind=kind, device=device, **more)


def launch(text, name="cudaLaunchKernel"):
    """Calls of the runtime, written as `number:begin-end`."""
    calls = (each.split(":") for each in text.split())
    return events(";".join(f"{name} {span} number={n}" for n, span in calls), kind="cuda_runtime")


# Three steps of 1000 ns: a wait for data, a queue, a synchronisation, a late host and a copy on
# another stream; a step that begins late; a copy to the device, and a value read back.
HOST = events("""
    module:1 300-900; aten::linear 305-345 number=1; aten::addmm 308-344 number=2
    aten::relu 346-360 number=3; mylib::fused 525-545 number=4; my::range 690-760 user=1
    aten::mul 695-711 number=5; aten::sum 748-756 number=6
    module:1 1010-1990; aten::addmm 1090-1130 number=7
    module:1 2005-2500; aten::addmm 2405-2425 number=8; aten::item 2440-2515
    aten::_local_scalar_dense 2450-2510
""")
RUNTIME = launch("90:360-520", "cudaStreamSynchronize") + launch("""
    11:310-320 12:340-350 13:530-540 14:700-710 15:750-755 16:1100-1110 17:1112-1116 18:2410-2420
""")
# The kernel 17 is on a stream beside 16.
DEVICE = kernels("Memcpy HtoD 770-840; Memcpy HtoD 2010-2400", "gpu_memcpy") + kernels("""
    k11 330-400 number=11 linked=2; k12 420-500 number=12 linked=3; k13 550-600 number=13 linked=4
    k14 720-760 number=14 linked=5; k15 850-900 number=15 linked=6
    k16 1120-1990 number=16 linked=7; k17 1500-1800 number=17 linked=7
    k18 2430-2500 number=18 linked=8
""")


def records(host, device, runtime, left_out=()):
    host = read_host(host, [event.activity_type() for event in host])
    owned = attribute(host, [0, 1000, 2000, 3000], bool, left_out)
    return launch_records(owned, 4, device, runtime)


def causes(gaps):
    return {row["cause"]: row["count"] for row in gaps}


def idle_of(rows, gaps, **of):
    """Idle time in nanoseconds, all of which has a cause."""
    rows, gaps = ([row for row in t if row.items() >= of.items()] for t in (rows, gaps))
    idle = sum(row["idle_s"] for row in rows)
    assert sum(row["total_s"] for row in gaps) == pytest.approx(idle)
    return round(idle * 1e9)


def test_launches_device_time_and_gaps_of_every_step_are_as_counted_by_hand():
    rows, gaps = records(HOST, DEVICE, RUNTIME)
    # The script's range is no operator, whatever it is called.
    names = "slice step device kernels launches launches_s launched_by busy_s idle_s operators "
    assert in_ns(rows, names + "outermost operators_s") == [
        (4, 0, "cuda:0", 5, 5, 45, "runtime calls", 290, 710, 6, 5, 40 + 14 + 20 + 16 + 8),
        (4, 1, "cuda:0", 2, 2, 14, "runtime calls", 870, 130, 1, 1, 40),
        (4, 2, "cuda:0", 1, 1, 10, "runtime calls", 70, 930, 3, 2, 20 + 75),
    ]
    assert sorted(in_ns(gaps, "cause count total_s longest_s")) == [
        ("copy", 2, 90 + 440, 440), ("data wait", 1, 330, 330), ("host late", 1, 120, 120),
        ("queued", 1, 20, 20), ("start of step", 1, 220, 220),
        ("synchronisation", 2, 50 + 500, 500),
    ]  # fmt: skip
    assert idle_of(rows, gaps) == 710 + 130 + 930
    around = "after_operator after_module_id before_operator before_module_id"
    neighbours = {row["cause"]: in_ns([row], around)[0] for row in gaps}
    assert neighbours["host late"] == ("mylib::fused", 1, "aten::mul", 1)
    # The longest one is the last: the value was read back, and no kernel came after it.
    assert neighbours["synchronisation"] == ("aten::addmm", 1, None, None)
    second = kernels("k 100-300 number=19", device=1)
    second += kernels("Memcpy HtoD 300-900", "gpu_memcpy", device=1)
    rows, gaps = records(HOST, DEVICE + second, RUNTIME)
    busy = [*(("cuda:0", each) for each in (290, 870, 70)), ("cuda:1", 200), *[("cuda:1", 0)] * 2]
    assert in_ns(rows, "device busy_s") == busy
    assert [idle_of(rows, gaps, device=f"cuda:{n}") for n in (0, 1)] == [1770, 2800]


def test_steps_that_do_not_count_and_what_was_not_seen():
    rows, gaps = records(HOST, DEVICE, RUNTIME, left_out=(1,))
    assert in_ns(rows, "step kernels") == [(0, 5), (2, 1)]
    # The gap across the edge is cut there: its part in the first step has no next launch in it.
    assert (idle_of(rows, gaps), causes(gaps)["host late"]) == (710 + 930, 2)
    # Without calls of the runtime the launch is the operator's own time: of addmm, relu, fused,
    # mul and sum; then of one addmm each. What was read back is seen.
    rows, gaps = records(HOST, DEVICE, [])
    wanted = [("operators", 5, 94), ("operators", 1, 40), ("operators", 1, 20)]
    assert in_ns(rows, "launched_by launches launches_s") == wanted
    assert causes(gaps)["synchronisation"] == 1
    # Without kernels operators are counted, and the rest is unknown.
    rows, gaps = records(HOST, [], [], left_out=(1,))
    names = ["operators", "operators_s", "outermost", "slice", "step"]
    assert (gaps, [sorted(row) for row in rows]) == ([], [names] * 2)
    assert in_ns(rows, "slice step operators outermost") == [(4, 0, 6, 5), (4, 2, 3, 2)]


def test_kernels_and_their_launches():
    # One launch of a graph begins many kernels, which did not wait for the host in between. Nothing
    # was launched in the other steps; that took no time, and is known.
    graph = kernels("k 100-150; k 200-250; k 300-350", number=7)
    rows, gaps = records(HOST[:1], graph, launch("7:10-40", "cudaGraphLaunch"))
    assert in_ns(rows, "kernels launches launches_s") == [(3, 1, 30), (0, 0, 0), (0, 0, 0)]
    assert causes(gaps)["queued"] == 2
    # Kernels count for the step that launched them and run where they run.
    made = kernels("k 900-1600 number=1; k 1700-1750 number=0")
    rows, _ = records(HOST[:1], made, launch("1:800-810 0:1020-1030"))
    assert in_ns(rows, "kernels busy_s") == [(1, 100), (1, 650), (0, 0)]
    # Those that nothing launched have no launch.
    rows, gaps = records(HOST[:1], kernels("alone 400-500 number=1"), [])
    assert in_ns(rows[:1], "kernels launches launches_s launched_by") == [(1, None, None, None)]
    assert {row.get("after_operator") for row in gaps} == {"alone", None}
