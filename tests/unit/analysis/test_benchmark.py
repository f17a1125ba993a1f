"""The part `benchmark` of the report: figures of clean steps, and what makes them uncertain."""

from statistics import fmean, median

import pytest

from profstack.analysis import benchmark as module
from profstack.analysis.clean_steps import clean_steps
from profstack.storage.vocabulary import BENCH_FACT, READ
from tests.support.recordings import Model, realistic
from tests.support.tables import cases

QUIET = {"load_average": [0.1, 6.0, 9.0], "usable_cores": 8, "cpu_governor": "performance"}


def figures_of(run, **environment):
    recorded = run.recorded()
    return dict(module.benchmark(recorded, clean_steps(recorded), {**QUIET, **environment}))


@cases("mode device", "pipelined None; synchronised None; pipelined .98")
def test_figures_are_those_of_the_clean_steps(tmp_path, mode, device):
    run = realistic(tmp_path / "rec", Model(seed=4, evaluation=17, device=device))
    run.writer.facts({"synchronised": mode == "synchronised"})
    clean = [step for step in run.drawn if step.kind == "clean" and not step.flags]
    walls, sizes = [step.wall_s for step in clean], [step.batch_size for step in clean]
    times, found = [step.device_s or step.wall_s for step in clean], figures_of(run, usable_cores=2)
    mean, cpu_s = fmean(times), fmean(step.cpu_s for step in clean)
    expected = dict.fromkeys(("synchronised_median_s", "pipelined_median_s"))
    expected |= dict.fromkeys(("median_s", f"{mode}_median_s"), median(times))
    expected |= {"host_median_s": median(walls), "device_median_s": device and median(times)}
    samples = (times, [step.step for step in clean], len(clean))
    expected |= {f"{mode}_{end}": found[end] for end in ("ci95_low_s", "ci95_high_s")}
    expected |= {"mean_s": mean, "steps_per_s": 1 / mean, "items_per_s": sum(sizes) / sum(times)}
    expected |= {"cpu_mean_s": cpu_s, "cpu_wall_s": fmean(walls), "mode": mode, "warmup_steps": 3}
    expected |= {"cores_busy": cpu_s / fmean(walls), "clock": "device" if device else "host"}
    expected |= {"batch_size": median(sizes), "batch_size_is": READ}
    expected |= {"first_step_s": run.drawn[0].wall_s}
    assert tuple(found[name] for name in ("samples_s", "counted_steps", "n")) == samples
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["ci95_low_s"] < found["median_s"] < found["ci95_high_s"]
    by_shape = {row["shape"]: (row["n"], row["median_s"]) for row in found["by_shape"]}
    of = {n: [t for t, size in zip(times, sizes, strict=True) if size == n] for n in (32, 12)}
    assert by_shape == {f"{n}x8": (len(x), median(x)) for n, x in of.items()}


@cases("share cores_busy", (1.7, 1.7), (2.05, 2.0), (module._BEYOND_ALL * 2 * 1.001, None))
def test_no_more_cores_are_busy_than_there_are(run, share, cores_busy):
    walls = [0.010, 0.012, 0.010, 0.017, 0.011]
    run.slice("clean", walls, cpus=[share * wall for wall in walls])
    found, mean = figures_of(run, usable_cores=2), fmean(walls)
    known = (cores_busy, cores_busy * mean, mean) if cores_busy else (None,) * 3
    figures = tuple(found[name] for name in ("cores_busy", "cpu_mean_s", "cpu_wall_s"))
    assert figures == tuple(x if x is None else pytest.approx(x) for x in known)
    assert found["cpu_reason"] is None if cores_busy else "2 cores" in found["cpu_reason"]


def test_cpu_time_read_per_slice_is_that_of_all_their_steps(run):
    for count, cpu_s in ((3, 0.030), (5, 0.090), (4, 0.050)):
        run.clean(count, cpus=[cpu_s / count] * count)
    run.torch([0.02] * 3, cpus=[0.5] * 3)
    with run.writer._transaction():
        run.writer._database.execute("UPDATE steps SET cpu_s = NULL")
        run.writer._database.execute("UPDATE slices SET cpu_s = NULL WHERE slice = 2")
    found = figures_of(run)
    assert [found["cpu_mean_s"], found["cores_busy"]] == pytest.approx([0.120 / 8, 0.120 / 0.080])


CALM = {"n": 500, "samples_s": [0.0098, 0.0113, *[0.010] * 498], "stopped_by": "interval"}
CALM |= {"target_interval": 0.01, "calls_per_sample": 1, "median_s": 0.010, "mean_s": 0.010}
CALM |= {"ci95_low_s": 0.00995, "ci95_high_s": 0.01005, "drift": 0.0, "autocorrelation": 0.1}
CALM |= {"outliers": 2, "host_median_s": 0.010, "cpu_mean_s": 0.0099, "cpu_wall_s": 0.010}
CALM |= {"device_median_s": None, "gradients": False}
CALM |= {"between_process": {"processes": 5, "spread": 0.005}}


def found(environment=None, **changed):
    return module.of_bench({**CALM, **changed}, environment or QUIET)


def test_a_benchmark_keeps_its_own_figures(run):
    run.clean(20, wall=0.013)
    problems = {"problems": ["process 2: KeyError"], "figures": {**CALM, "part_problems": ["cut"]}}
    run.writer.facts({BENCH_FACT: problems})
    result = figures_of(run)
    assert (result["n"], result["median_s"], result["counted_steps"]) == (500, 0.010, [])
    assert ("target_interval" in result, result["cores_busy"]) == (False, pytest.approx(0.99))
    assert result["warnings"][:2] == ["process 2: KeyError", "cut"]
    assert "1.3 times" in result["warnings"][2]
    for problems in ([], ["it raised"]):
        run.writer.facts({BENCH_FACT: {"problems": problems, "figures": None}})
        assert figures_of(run)["warnings"] == (problems or ["nothing was measured"])


POWER = {"index": 3, "throttle_reasons": ["idle", "power cap"]}
LIMITED = {"before": None, "after": {"devices": [POWER]}}
# What was changed, and words of the warning; "..." stands before its end.
WARNINGS = [
    ({"ci95_high_s": 0.0103}, "0.03 of|0.01 was|--max-seconds 60"),
    ({"ci95_high_s": 0.016}, "6 h 0 min|--target 0.7"),
    ({"n": 20, "ci95_low_s": None}, "20 samples|--max-seconds 20"),
    ({"n": 99}, "only 99 samples|p99|100|--max-seconds 20"),
    ({"drift": -0.2}, "-20.0 %|--max-seconds 60"),
    ({"autocorrelation": 0.6}, "0.60|500 samples|125 independent|--processes 5"),
    ({"outliers": 80}, "80 of 500|11.3 ms|median 10.0 ms|idle machine"),
    ({"cpu_mean_s": 0.002}, "10.0 ms of wall|2.00 ms of CPU|ratio 0.20|watch"),
    ({"training_layers": ["Dropout", "BatchNorm1d"]}, "(Dropout, BatchNorm1d)|eval()"),
    ({"between_process": None}, "0.50 %|--processes 5"),
    ({"between_process": {"processes": 3, "spread": 0.08}}, "3 proc|8.0 %|0.5 %|--processes 6"),
    ({"device_state": LIMITED}, "GPU 3|power cap"),
    ({"target_interval": None, "n": 40, "stopped_by": "repeat"}, "...--repeat 100"),
    # 4 times the samples halve an interval: 500 * 4 * 0.07 s * 1.2 = 168 s.
    ({"ci95_high_s": 0.0102, "calls_per_sample": 7}, "...--max-seconds 170"),
    ({"warmup_settled": False, "mean_s": 1.2}, "still f...repeat with --warmup 200 --repeat 300"),
]


@pytest.mark.parametrize(("changed", "words"), WARNINGS)
def test_each_names_the_number_and_the_next_step(changed, words):
    assert found() == found(warmup_settled=None) == []
    (text,) = found(**{"warmup_reason": "still falling", **changed})
    inside, _, end = words.partition("...")
    assert [word for word in inside.split("|") if word not in text] == []
    assert text.endswith(end)


DRIFT, DEPENDENT, MANY = module._DRIFT, module._AUTOCORRELATION, 500 * module._OUTLIERS
LITTLE, ENOUGH = 0.01 * module._LITTLE_CPU, module._ENOUGH
APART = [{"processes": 4, "spread": spread} for spread in (0.0099, None, 0.0101)]


# Both sides of each limit; and values far from it, so that half or twice the limit would show.
@pytest.mark.parametrize(("name", "calm", "loud"), [
    ("drift", (DRIFT, 0.03), (DRIFT * 1.01, -0.08)),
    ("autocorrelation", (DEPENDENT, 0.3), (DEPENDENT * 1.01, 0.9)),
    ("outliers", (MANY, 14), (MANY + 1, 45)), ("cpu_mean_s", (LITTLE,), (LITTLE * 0.999, 0.006)),
    ("n", (ENOUGH,), (ENOUGH - 1,)), ("between_process", APART[:2], APART[2:])])  # fmt: skip
def test_a_warning_begins_beyond_its_limit(name, calm, loud):
    assert [bool(found(**{name: value})) for value in calm] == [False] * len(calm)
    assert [bool(found(**{name: value})) for value in loud] == [True] * len(loud)


@pytest.mark.parametrize(("benchmark_s", "clean_s", "tells"), [
    (0.010, None, 0), (0.010, 0.010 * (1 + module._LAYERS_APART * 0.99), 0),
    (0.010, 0.010 * (1 + module._LAYERS_APART * 1.01), 1),
    (0.010, 0.010 * (1 - module._LAYERS_APART * 1.01), 1), (16e-6, 19e-6, 0)])  # fmt: skip
def test_clean_steps_between_layers_are_compared_with_the_benchmark(benchmark_s, clean_s, tells):
    texts = module.of_layers(benchmark_s, clean_s)
    assert len(texts) == tells
    assert not texts or f"{clean_s / benchmark_s:.3g} times" in texts[0]
