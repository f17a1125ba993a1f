"""Named ranges of a slice: which are open when, and the work inside each."""

import random
from collections import defaultdict
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

SOURCE = {"f": FUNCTION, "nccl:g": TORCH}


def work(made, edges=(0, 1000), left_out=(), memory=True, on_device=1):
    """Rows by source and path; every event has launched as many nanoseconds as its begin."""
    host = read_host(made)
    owned = attribute(host, edges, bool, left_out, 1)
    sources = range_sources(host, shapes=True)
    # Ranges are no operators.
    known = np.array([source is not None for source in sources], np.bool_)
    owned = replace(owned, is_range=owned.is_range | known[host.names.ids])
    found = regions.region_records(owned, 6, host.start * on_device, None, sources, memory=memory)
    rows = {(row["source"], row["path"]): row for row in found}
    assert (len(rows), {row["slice"] for row in found} <= {6}) == (len(found), True)
    return rows


def ranges_of(chance, thread):
    """Ranges that begin and end as they like, as those of tasks do."""
    made = []
    for _ in range(chance.randint(0, 7)):
        begin = 4 * chance.randint(0, 20)
        end = begin + chance.choice((0, 4, 20, 60))
        name = chance.choice(("a", "a/b", "a/b/c", "d", "ab", "f", "nccl:g", "a" + AGAIN))
        form = "{} {}-{} user=1" if name in SOURCE else "region:{} {}-{}"
        made += events(form.format(name, begin, end), thread=thread)
    return made


def slow_sets(ranges):
    """A function that finds the ranges open on a thread at a moment, main thread 1 included."""
    made = []
    for event in ranges:
        name, begin = event.name().removeprefix(REGION_PREFIX), event.start_ns()
        span = (begin, begin + event.duration_ns(), (SOURCE.get(name, OWN_REGION), name))
        made.append((event.start_thread_id(), *span))

    def on_thread(thread, moment):
        opened = [key for at, b, e, key in made if at == thread and b <= moment < e]
        paths = [path for of, path in opened if of == OWN_REGION and not path.endswith(AGAIN)]
        current = paths[-1] if paths else ""
        on_path = {path for path in paths if f"{current}/".startswith(f"{path}/")}
        return {(of, path) for of, path in opened if of != OWN_REGION or path in on_path}

    def open_at(thread, moment):
        spans = [(b, e) for of, b, e, _ in made if of == thread and b < e]
        last = max((at for span in spans for at in span if at <= moment), default=-1)
        if thread != 1 and any(b <= last < e for b, e in spans):
            return on_thread(thread, last) | on_thread(1, last) or on_thread(1, moment)
        return on_thread(1, moment)

    return open_at


@pytest.mark.parametrize("seed", range(40))
def test_work_is_that_of_the_ranges_open_when_it_begins(seed):
    chance = random.Random(seed)
    # In the order in which they are read: by thread and begin, the longer one first.
    ranges = ranges_of(chance, 1) + ranges_of(chance, 2)
    ranges.sort(key=lambda e: (e.start_thread_id(), e.start_ns(), -e.duration_ns()))
    spans = [(at, at + chance.randint(1, 3), chance.choice((1, 2, 3))) for at in range(0, 150, 4)]
    operators = [Event("aten::mm", begin, end, thread=thread) for begin, end, thread in spans]
    sizes = [(chance.randint(-50, 90), chance.choice((-1, 0))) for _ in range(9)]
    blocks = [instant(at, size, device=device) for at, (size, device) in enumerate(sizes)]
    open_at, wanted, calls = slow_sets(ranges), defaultdict(lambda: [0, 0, 0]), defaultdict(int)
    for event in operators + blocks:
        added = (event.duration_ns(), event.start_ns(), 0)
        if event in blocks:
            added = (0, 0, event.nbytes() * (event.device_index() < 0))
        for each in open_at(event.start_thread_id(), event.start_ns()):
            wanted[each] = [one + more for one, more in zip(wanted[each], added, strict=True)]
    for event in ranges:
        name = event.name().removeprefix(REGION_PREFIX).removesuffix(AGAIN)
        calls[SOURCE.get(name, OWN_REGION), name] += 1
    rows = work([*ranges, *operators, *blocks, Event(MODULE_PREFIX + "1", 900, 950)])
    assert {path: row["calls"] for path, row in rows.items()} == calls
    for path, row in rows.items():
        assert in_ns([row], "operator_s device_s host_net_bytes")[0] == tuple(wanted[path]), path
        of = {e.start_thread_id() for e in ranges if e.name().split("::")[-1].endswith(path[1])}
        assert 1 <= row["threads"] <= len(of) or path[1] == "a"


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
        |backend_compile_data: fn_name=OutputGraph.call_user_compiler, compile_id=0/0
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
    # Without shapes it looks like an operator, and is taken for one.
    assert {range_sources(read_host([event]), shapes=False)[0] for event in made} == {None}
