"""Layers of a report: probe effect, what their figures rest on, or why there are none."""

import shlex
from statistics import fmean, median

import pytest

from profstack.analysis.clean_steps import clean_steps
from profstack.analysis.layers import layer_rows, probe_effects, select
from profstack.storage.folder import write_run
from tests.support.cells import cell
from tests.support.recordings import Model, by, realistic

ARGV = ["train.py", "--size", "a b"]
EFFECT = "factor n_layer n_clean clean_median_s step_median_s"


@pytest.fixture
def run(run):
    write_run(run.folder, {"argv": ARGV})
    return run


def effects_of(run):
    recorded = run.recorded()
    selections = select(recorded)
    found = probe_effects(recorded, clean_steps(recorded), selections)
    for effect in found:
        selection = selections[effect["layer"]]
        assert selection is None or selection.factor == effect["factor"]
    return by(found, "layer")


def layers_of(run, **statuses):
    if statuses:
        run.layers(**statuses)
    recorded = run.recorded()
    return by(layer_rows(recorded, clean_steps(recorded), select(recorded)), "name")


@pytest.mark.parametrize("model", [Model(seed=5), Model(seed=9, device=0.97)])
def test_a_factor_is_the_median_in_later_slices_over_the_clean_steps_beside(tmp_path, model):
    run = realistic(tmp_path / "rec", model)
    column = "wall_s" if model.device is None else "device_s"
    found = effects_of(run)
    assert set(found) == {"torch", "cprofile", "nvtx", "flops"}
    kinds = [(row["slice"], row["kind"]) for row in run.rows["slices"]]
    clean = [number for number, kind in kinds if kind == "clean"]
    for layer in ("torch", "cprofile", "nvtx"):
        # The first round had no steps to settle; nvtx came in the second.
        slices = [number for number, kind in kinds if kind == layer][layer != "nvtx" :]
        beside = [max(n for n in clean if n < number) for number in slices]
        beside += [min(n for n in clean if n > number) for number in slices]
        own = [getattr(step, column) for step in run.of(*slices)]
        flat = [getattr(s, column) for n in beside for s in run.of(n) if not s.flags]
        effect, factor = found[layer], median(own) / median(flat)
        near = pytest.approx
        expected = (near(factor, rel=1e-3), len(own), len(flat), near(median(flat)))
        assert cell(effect, EFFECT) == (*expected, near(median(own)))
        assert effect["factor"] != near(fmean(own) / fmean(flat))
        assert effect["ci95_low"] < effect["factor"] < effect["ci95_high"]
        assert effect["note"] is None


@pytest.mark.parametrize(("layer", "mode", "walls", "number", "words"), [
    ("torch", "shared", [0.02] * 4, 2, "shared its steps"),
    ("memory", "discovery", [0.9, 0.7], 0, "first steps"), ("torch", "timed", [0.0, 0.0], 2, ""),
])  # fmt: skip
def test_what_gives_no_factor_says_why(run, layer, mode, walls, number, words):
    run.clean(10)
    run.slice(layer, walls, layer=layer, mode=mode, number=number)
    run.clean(10)
    run.layers(**{layer: "recorded"})
    effect, timed = effects_of(run)[layer], [wall for wall in walls if wall]
    assert any(x in effect["note"] for x in (words,) if x) or "of its" in effect["note"]
    known = (None, None, len(timed), median(timed) if timed else None)
    assert cell(effect, "factor ci95_low n_layer step_median_s") == known


def test_a_layer_counts_all_its_slices_and_says_which_its_figures_are_of(run):
    run.torch([0.05], number=1)
    run.clean(12)
    run.torch([0.012] * 3)
    run.slice("clean", [0.009, 0.011] * 6)
    run.torch([0.031, 0.029, 0.039], mode="lines")
    run.slice("clean", [0.009, 0.011, 0.012] * 4)
    trace = {"path": "torch/trace.json", "opens_in": "Perfetto", "bytes": 19}
    run.writer.write({"artifacts": [{"layer": "torch", **trace}, {"layer": "x", **trace}]})
    found = layers_of(run, torch="recorded", cprofile="recorded")
    factor = 0.031 / median([0.009, 0.011] * 6 + [0.009, 0.011, 0.012] * 4)
    row, audit = found["torch"], ["3 steps in 1 slice (timed)"]
    audit += [f"3 more in slices of mode lines, at {factor:.2f} times a clean step, by medians"]
    audit += ["1 more in slices of mode timed"]
    known = (7, pytest.approx(1.5), audit, None, None)
    assert cell(row, "steps stop_s audit command reason") == known
    assert [item["layer"] for item in row["artifacts"]] == ["torch"]
    assert cell(found["cprofile"], "steps stop_s") == (0, None)


ALONE = ["profstack", "run", "--layers"]
WHOLE = ["profstack", "run", "--step-by", "none", "--layers"]


@pytest.mark.parametrize(("name", "others", "rounds", "command"), [
    ("memory", {"torch": "empty"}, 1, ALONE), ("cprofile", {"flops": "recorded"}, 1, WHOLE),
    # The same again would do the same.
    ("cprofile", {}, 1, WHOLE), ("nvtx", {"watch": "recorded"}, 1, None),
    ("torch", {"memory": "recorded"}, 0, WHOLE)])  # fmt: skip
def test_an_empty_layer_has_a_command_that_fills_it(run, name, others, rounds, command):
    run.slice("startup", [0.5, 0.1, 0.1][: 3 - 2 * rounds], number=0)
    if rounds:
        run.clean(2, number=1)
    row = layers_of(run, **others, **{name: "empty"})[name]
    assert "after 3 steps" in row["reason"]
    assert (row["command"] and shlex.split(row["command"])) == (command and [*command, name, *ARGV])
