"""Threads and processes: their CPU time per clean step, and who looks into it."""

import math

import pytest

from profstack.analysis import threads as module
from profstack.analysis.clean_steps import clean_steps
from profstack.analysis.threads import MOST_ROWS, READINGS, REST, processes, threads
from tests.support.cells import among, cell
from tests.support.recordings import by

WALLS = [0.009, 0.010, 0.013, 0.011, 0.012]
STEP_S = sum(WALLS) / 5
MOST = module._MOST_OF_A_STEP * STEP_S
near = pytest.approx


LAYERS = {"torch": "recorded", "cprofile": "recorded", "nvtx": "empty", "flops": "emitted"}


def thread(kind, name, cpu_s, process=0, **more):
    row = {"kind": kind, "name": name, "process": process, "cpu_s": cpu_s, "threads": 1}
    return {**row, "delay_s": 0.004 if kind == "main" else None, **more}


def main(cpu_s, **more):
    return thread("main", "MainThread", cpu_s, **more)


def clean(run, *rows, **keywords):
    return run.slice("clean", WALLS, frames={"thread_times": list(rows)}, **keywords)


def found_in(run):
    recorded = run.recorded()
    clean = clean_steps(recorded)
    rows = threads(recorded, clean)
    facts = processes(recorded, clean, rows, has_device=False)
    assert len({row["name"] for row in rows}) == len(rows)
    return by(rows, "name"), facts


def told(facts, words):
    return [text for text in facts["sentences"] if words in text]


def test_rows_are_per_step_and_shares_of_all(run):
    worker, gone = "pt_data_worker", "processes that ended"
    used = [thread("DataLoader worker", worker, 0.020, 1), thread("native", "x", 0.040)]
    clean(run, main(0.030), *used)
    pool = [thread("other", f"Pool-0_{number}", 0.001 * (1 + number)) for number in range(4)]
    more = [thread("other", "sh", 0.003, 2), thread("profstack", "watch", 0.001)]
    more.append(thread("backward", "pt_autograd_0", 0.007, threads=2))
    more.append(thread("DataLoader worker", gone, 0.012, None, threads=None))
    run.torch([0.5] * 3, frames={"thread_times": [main(99.0)]})
    clean(run, main(0.030), *pool, *more)
    rows, facts = found_in(run)
    times = {"MainThread": 0.060, "x": 0.040, worker: 0.020, gone: 0.012, "Pool-#_#": 0.010}
    times |= {"pt_autograd_0": 0.007, "sh": 0.003, "watch": 0.001}
    total = sum(times.values())
    assert list(rows) == list(times)
    found = {name: cell(row, "cpu_s share") for name, row in rows.items()}
    assert found == {name: near((t / 10, t / total)) for name, t in times.items()}
    for row in (rows["MainThread"], facts):
        assert cell(row, "off_cpu_s no_core_s") == near((STEP_S - 0.006, 0.0008))
    layers = {"MainThread": ["torch", "cprofile", "flops"], "x": ["torch"]}
    layers["pt_autograd_0"] = ["torch", "flops"]
    assert {name: row["layers"] for name, row in rows.items() if row["layers"]} == layers
    assert [rows[name]["threads"] for name in ("Pool-#_#", "pt_autograd_0")] == [4, 2]
    assert rows[gone]["note"].startswith(module._ENDED)
    # All but profstack's own that no layer looks into.
    expected = {"steps": 10, "step_s": STEP_S, "cpu_s": total / 10, "cores": total / 10 / STEP_S}
    expected |= {"unseen_share": 0.045 / total, "workers": 1, "worker_cpu_s": 0.0032}
    expected["reason"] = None
    assert among(expected, facts) == near(expected)


@pytest.mark.parametrize("count", [MOST_ROWS, MOST_ROWS + 1, MOST_ROWS + 9])
def test_the_smallest_of_many_rows_are_one(run, count):
    names = ["abcdefghij"[n // 10] + "abcdefghij"[n % 10] for n in range(count)]
    kinds = ["native", "other"]
    some = [thread(kinds[n % 2], name, 0.001 * (1 + n)) for n, name in enumerate(names)]
    clean(run, *some)
    rows, _ = found_in(run)
    rest = count - MOST_ROWS + 1
    assert (len(rows), REST in rows) == (MOST_ROWS, rest > 1)
    if rest > 1:
        cpu_s = near(sum(0.001 * (1 + n) for n in range(rest)) / 5)
        assert cell(rows[REST], "cpu_s threads kind") == (cpu_s, rest, "other")
        assert str(rest) in rows[REST]["note"]
    assert math.fsum(row["share"] for row in rows.values()) == near(1)
    assert 30 <= MOST_ROWS <= 110


@pytest.mark.parametrize(("cpu_s", "off_s", "no_core_s", "words"), [
    (0.7 * STEP_S, 0.3 * STEP_S, 0.0008, ["7.70 ms", "11.0 ms", "3.30 ms", "800 µs"]),
    (0.99 * STEP_S, 0.01 * STEP_S, 0.01 * STEP_S, ["110 µs it waited, 110 µs"]),
    (MOST * 0.999, 0.0, 0.0, ["all the time", "11.0 ms"]),
    # More than there was: that it never waited does not follow.
    (MOST * 1.001, None, None, [])])  # fmt: skip
def test_how_long_the_steps_thread_ran(run, cpu_s, off_s, no_core_s, words):
    clean(run, main(5 * cpu_s))
    rows, facts = found_in(run)
    known = tuple(x if x is None else near(x) for x in (off_s, no_core_s))
    assert cell(rows["MainThread"], "off_cpu_s no_core_s") == known
    sentences = told(facts, "the steps' thread ran")
    assert len(sentences) == bool(words)
    assert all(word in sentences[0] for word in words)
    assert not told(facts, "no layer looks into")


SKIPPED = ("skipped", "x")


@pytest.mark.parametrize(("reason", "layers", "words"), [
    ("no /proc", {}, "no /proc"), (None, {}, "no clean slice"),
    ("", {"torch": ("recorded", None)}, "no readings"),
    ("", {"torch": SKIPPED, "cprofile": SKIPPED}, "x"),
    ("", {"torch": SKIPPED, "cprofile": ("skipped", "y")}, "no readings")])  # fmt: skip
def test_without_readings_there_is_a_reason(run, reason, layers, words):
    run.clean(3)
    readings = {} if layers else {"readings": 4, "took_s": 0.006, "reason": reason}
    run.writer.facts({READINGS: readings})
    if layers:
        rows = [{"name": name, "status": s, "reason": why} for name, (s, why) in layers.items()]
        run.writer.replace("layers", rows)
    found, facts = found_in(run)
    assert (found, words in facts["reason"]) == ({}, True)
    known = (near(0.0015) if readings else None, None, [])
    assert cell(facts, "reading_s steps sentences") == known
