"""How far figures can be trusted: too few steps, no end of the warm-up, operations not counted."""

from types import SimpleNamespace

from profstack.findings.measurement import threads_without_cores, trust, uncounted
from profstack.storage.vocabulary import BENCH_FACT
from tests.support.findings import links, report_of
from tests.support.tables import cases, missing, near, of, rows_of


def recording(walls, *, kind="clean", flags="", **facts):
    """Steps of these times after a slow one of the start."""
    rows = [(1.0, "startup", ""), *((wall, kind, flags) for wall in walls)]
    return SimpleNamespace(steps=rows_of("wall_s kind flags", *rows), facts=facts)


def trusted(n, low=None, high=None):
    mark = {"n": n, "ci95_low_s": low, "ci95_high_s": high}
    return trust(recording([0.010] * 40), report_of(parts={"benchmark": mark}))


def test_ten_clean_steps_with_an_interval_of_a_fifth_are_enough():
    for n, words in ((10, 0), (9, "9 clean steps"), (1, "1 clean step:"), (0, 0)):
        found = trusted(n, 0.0099, 0.0101)
        assert len(found) == bool(words)
        for told in found:
            names = "clean_steps clean_steps_wanted interval_share"
            assert of(told["evidence"][0], names) == near(n, 10, 0.01)
            assert words in told["title"]
    # A fifth to a side is more than is wanted for comparing two runs.
    intervals = [(9.5, 12.01, "20 %"), (7.99, 10.1, "20 %"), (9.5, 14.5, "45 %")]
    for low, high, share in [*intervals, (8.1, 11.99, None)]:
        found = trusted(10, 1e-3 * low, 1e-3 * high)
        assert len(found) == (share is not None)
        for told in found:
            assert f"interval reaches {share}" in told["title"]
            assert told["evidence"][0]["interval_wanted_share"] == 0.05


SETTLING = {"warnings": [{"slug": "warmup-unsettled", "text": "the last half changes"}]}


def unsettled(walls, parts=SETTLING, step_s=0.010, **more):
    report = report_of(step_s=step_s, parts=parts | {"benchmark": {"n": 50}})
    return trust(recording(walls, **more), report)


def thirds(last_s, count=30):
    """Steps of which the middle third takes 10 ms, the last one `last_s`, in the median."""
    part = count // 3
    middle, last = [0.002, *[0.010] * (part - 2), 0.5], [0.9, *[last_s] * (part - 1)]
    return [0.050] * (count - 2 * part) + middle + last


LAST = ".01201 slower; .01199 None; .0135 slower; .0112 None; .00799 faster; .00801 None"


@cases("last_s word", LAST)
def test_the_last_third_differs_by_a_fifth_from_the_one_before(last_s, word):
    found = unsettled(thirds(last_s, 32))
    assert len(found) == (word is not None)
    for told in found:
        names = "middle_third_s last_third_s change_share steps seen"
        expected = near(0.010, last_s, last_s / 0.010 - 1, 32, "the last half changes")
        assert (of(told["evidence"][0], names), links(told)) == (expected, ["benchmark/warmup"])
        assert not missing(told["title"] + told["advice"], word, f"{1e3 * last_s:.3g}")


def test_what_is_no_trend_of_unobserved_steps_is_no_finding():
    for kind in ("settle", "clean", "watch"):
        assert len(unsettled(thirds(0.02), kind=kind)) == 1
    none = [{"walls": thirds(0.02, 29)}, {"step_s": None}, {"parts": {}}, {"kind": "torch"}]
    for changes in [*none, {"flags": "eval"}, {BENCH_FACT: {"target": "f"}}]:
        assert unsettled(**{"walls": thirds(0.02), **changes}) == []


def counted(*shares):
    """The counter of record has no formula for operators of these shares."""
    rows = [(f"op{at}", each) for at, each in enumerate(shares)]
    rows = rows_of("operator time_share", *rows, calls=2.0)
    counters = [("thop", None, [rows[0] | {"time_share": 0.9}]), ("FlopCounterMode", 9, rows)]
    counters = rows_of("counter forward_flop uncounted", *counters, ("other", 1, []))
    operators = rows_of("name module", ("aten::op1", "Net.a"), ("op0", None))
    return report_of(flops=counters, operators=operators)


def test_uncounted_operators_are_named_by_their_time():
    (told,) = uncounted(None, counted(0.02, 0.4, None, 0.05))
    assert (told["title"][:4], told["title"][-15:]) == ("47 %", "(op1, op3, op0)")
    assert of(told, "module gain_s layers") == ["Net.a", None, ["flops", "torch"]]
    first, second = told["evidence"][:2]
    assert of(first, "counter uncounted_share") == near("FlopCounterMode", 0.47)
    assert of(second, "operator calls time_share") == ["op1", 2.0, 0.4]
    names = [f"operators/{name}" for name in ("aten::op1", "aten::op3", "op0")]
    assert links(told) == ["method/flops", *names]
    # A tenth of the step without a formula is told.
    for shares, is_found in (((0.0601, 0.04), 1), ((0.0599, 0.04), 0), ((0.16,), 1), ((None,), 0)):
        assert len(uncounted(None, counted(*shares))) == is_found


# Two threads of which each used 40 ms of CPU in a mean step of 100 ms, 30 ms of it without a core.
CROWDED = {"threads": 2, "no_core_ms": 30, "pool_ms": 40, "peak": 0.01, "python_ms": 3}


@cases("is_found changes", "True -; False threads=1; True no_core_ms=20.1; False no_core_ms=19.9",
       "False pool_ms=13; True pool_ms=14; False peak=.02; True peak=.019; False peak=None",
       "False python_ms=10; True python_ms=7")  # fmt: skip
def test_threads_that_spin_for_cores_are_found_far_from_the_peak(is_found, changes):
    known = CROWDED | changes
    bar = rows_of("name seconds is", ("Python", known["python_ms"] / 1e3, "clean"))
    bar += rows_of("name seconds is", ("backward", 8e-3, "clean"))
    cpu_s, pool_s = (40 + known["pool_ms"]) / 1e3, known["pool_ms"] / 1e3
    processes = {"step_s": 0.1, "cpu_s": cpu_s, "no_core_s": known["no_core_ms"] / 1e3}
    parts = {"environment": {"torch_threads": known["threads"]}, "processes": processes}
    parts |= {"roofline": {"mfu": [{"value": known["peak"]}]}}
    parts |= {"step_bar": {"time_line": "host", "parts": bar}}
    threads = rows_of("kind cpu_s", ("native", pool_s), ("main", 0.04))
    found = threads_without_cores(None, report_of(parts=parts, threads=threads))
    assert len(found) == is_found
    for each in found:
        share, said = known["no_core_ms"] / 100, each["title"] + each["advice"]
        assert of(each["evidence"][0], "step_share threads pool_cpu_s") == near(share, 2, pool_s)
        assert not missing(said, f"for {100 * share:.0f} % of", "set_num_threads(1)")
