"""Named ranges of a slice: which are open when, and the work inside each."""

from dataclasses import replace

import numpy as np
import pytest

from profstack.readers.torchtrace import regions
from profstack.readers.torchtrace.attribution import attribute
from profstack.readers.torchtrace.events import read_host
from profstack.readers.torchtrace.regions import FUNCTION, TORCH, range_sources
from profstack.storage.vocabulary import AGAIN, MODULE_PREFIX, OWN_REGION, REGION_PREFIX
from tests.support.events import Event, events, instant
from tests.support.tables import in_ns


def work(made, edges=(0, 1000), left_out=(), memory=True, on_device=1):
    """Rows by source and path; every event has launched as many nanoseconds as its begin."""
    host = read_host(made)
    owned = attribute(host, edges, bool, left_out, 1)
    sources = range_sources(host, shapes=True)
    known = np.array([source is not None for source in sources], np.bool_)
    owned = replace(owned, is_range=owned.is_range | known[host.names.ids])
    found = regions.region_records(owned, 6, host.start * on_device, None, sources, memory=memory)
    rows = {(row["source"], row["path"]): row for row in found}
    assert (len(rows), {row["slice"] for row in found} <= {6}) == (len(found), True)
    return rows


# Ranges and operators; the nanoseconds of operators in each range.
CASES = f"""
region:a 10-50; region:a/b 20-30; aten::mm 12-15; aten::mm 22-27; aten::mm 50-59 = a 8, a/b 5
# A region of another task in between; a name is not the path of a longer one.
region:a 10-50; region:d 20-60; aten::mm 12-15; aten::mm 22-27; aten::mm 52-59 = a 3, d 12
region:a 10-50; region:ab 20-30; aten::mm 22-27; aten::mm 30-31 = a 1, ab 5
# Ranges of others have all that runs in them.
region:a 10-50; region:d 20-40; f 15-30 user=1; aten::mm 22-27; aten::mm 32-35 = a 0, d 8, f 5
# What goes on in the next step is entered once more.
region:a 10-30; region:a{AGAIN} 40-50; region:d 60-60; aten::mm 12-15; aten::mm 42-47 = a 3, d 0
# Another thread's own ranges come first, and those of the main thread around them.
region:a 10-50; region:d 20-30 thread=2; aten::mm 22-25 thread=2; aten::mm 32-39 thread=2; \
aten::mm 12-13 thread=3 = a 11, d 3
"""


@pytest.mark.parametrize("case", [line for line in CASES[1:].splitlines() if line[0] != "#"])
def test_work_is_that_of_the_ranges_open_when_it_begins(case):
    text, wanted = case.split(" = ")
    rows = work(events(f"{text}; module:1 900-950"))
    found = [f"{path} {in_ns([row], 'operator_s')[0][0]}" for (_, path), row in rows.items()]
    assert sorted(found) == wanted.split(", ")


def test_figures_of_a_range_and_names_without_end(monkeypatch):
    made = events("""
        region:step 10-400; region:step/forward 20-100; aten::linear 30-90; aten::mm 40-77
        region:step 420-500 thread=2; aten::mm 430-441 thread=2
        Optimizer.step#Adam.step 200-300 user=1; aten::add 210-223
        region:step 1010-1100; aten::mm 1020-1031
    """)
    made += [instant(215, 640), instant(216, 99, device=0)]
    rows = work(made, (0, 1000, 2000), left_out=(1,))
    names = "calls threads wall_s operator_s device_s host_net_bytes flop"
    inside = (60 + 13 + 11, 30 + 40 + 210 + 430)
    assert {key: in_ns([row], names)[0] for key, row in rows.items()} == {
        (OWN_REGION, "step"): (2, 2, 390 + 80, *inside, 640, None),
        (OWN_REGION, "step/forward"): (1, 1, 80, 60, 30 + 40, 0, None),
    }
    without = work(made, memory=False, on_device=0).values()
    assert {(row["device_s"], row["host_net_bytes"]) for row in without} == {(None, None)}
    assert work(made[2:4]) == {}
    monkeypatch.setattr(regions, "MOST_REGIONS", 3)
    made = "".join(f"step {at} {10 * at}-{10 * at + 7} user=1;" for at in range(6))
    rows = work(events(made + "step 1 90-95 user=1"))
    wanted = {"step 0": 1, "step 1": 2, "step 2": 1, "(more regions)": 3}
    assert {path: row["calls"] for (_, path), row in rows.items()} == wanted


NAMES = {
    TORCH: """compile_inner (dynamo_timed)|pass.post_grad_passes.stable_sort_data: compile_id=1/1
        |DistributedDataParallel.forward|FSDP::all_gather|nccl:all_reduce
        |enumerate(DataLoader)#x.__next__""",
    FUNCTION: "my (dynamo_timed) thing|my_data: batch=3|Optimizer.steps|train::forward|aten|",
    "optimizer": "Optimizer.step#Adam.step|Optimizer.zero_grad#X.y",
    OWN_REGION: REGION_PREFIX + "x",
    None: MODULE_PREFIX + "3|[memory]|## Call CompiledFxGraph|triton_poi",
}


def test_sources_follow_from_names_and_of_ranges_begun_in_c_from_what_they_lack():
    for source, names in NAMES.items():
        for name in map(str.strip, names.split("|")):
            made = [Event(each, 0, 5, "user_annotation", user=True) for each in ("another", name)]
            assert range_sources(read_host(made), shapes=False) == [FUNCTION, source], name
    # Torch has an operator of the name `relu`.
    facts = [{}, {"scope": 1}, {"sequence": 0}, {"shapes": [[2]]}]
    made = [Event("fast", 0, 5, **more) for more in facts]
    made += [Event("mine::fast", 0, 5), Event("relu", 0, 5)]
    found = [range_sources(read_host([event]), shapes=True)[0] for event in made]
    assert found == [FUNCTION, None, None, None, None, None]
