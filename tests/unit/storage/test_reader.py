"""The rows of a recording: which slices count, and sums per step."""

import pytest

from profstack.storage import reader
from tests.support.recordings import Run, module

FEWEST, LARGEST = reader.FEWEST_STEPS, reader.LARGEST_FACTOR
near = pytest.approx


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "rec")


def test_figures_per_step_at_the_clean_time():
    chosen = reader.Selection([1], "timed", 7, 0.9, factor=1.5)
    found = chosen.figures({"self_s": 0.35, "calls": None}, 0.1)
    assert found == {"self_s": near(0.05), "calls": None, "calibrated_s": near(0.35 / 0.9 * 0.1)}
    assert chosen.figures({"calls": 4.0}, 0.1) == {"calls": near(4 / 7), "calibrated_s": None}
    for steps, factor, total, clean, known in (
        (FEWEST, LARGEST, 0.2, 0.1, True), (FEWEST - 1, 1.2, 0.2, 0.1, False),
        (FEWEST, LARGEST * 1.001, 0.2, 0.1, False), (9, None, 0.2, 0.1, False),
        (9, 1.2, None, 0.1, False), (9, 1.2, 0.2, None, False),
    ):  # fmt: skip
        found = reader.Selection([1], "timed", steps, 0.7, factor).calibrated(total, clean)
        assert found == (near(0.2 / 0.7 * 0.1) if known else None)
    # The same two limits are named in the glossary of the report.
    assert (FEWEST, LARGEST) == (3, 3.0)
    none, once = reader.NO_SLICES, reader.ONCE
    found = [(one.per_step(3.0), one.calibrated(3.0, 1.0)) for one in (none, once)]
    assert found == [(None, None), (3.0, None)]
    words = [reader.Selection([], None, n, 0.0).in_words() for n in (1, 7)]
    assert words == ["1 step", "7 steps"]


def test_later_rounds_go_before_the_first_and_modes_by_their_turn(run):
    run.torch([0.5], number=1)
    run.torch([0.012, 0.013], number=2)
    run.torch([], number=2)
    run.torch([0.014, 0.019, 0.013], number=3, left_out=(1,))
    run.torch([0.2], mode="detail", number=1)
    run.cprofile([0.3])
    recorded = run.recorded()
    chosen = recorded.select("torch", (("other",), ("timed",), ("detail",)))
    assert (chosen.slices, chosen.mode, chosen.steps) == ([1, 3], "timed", 4)
    assert chosen.wall_s == near(0.012 + 0.013 + 0.014 + 0.013)
    assert (chosen.factor, chosen.mixed) == (None, False)
    assert recorded.select("torch", (("detail", "timed"),)).slices == [1, 3]
    early = recorded.select("torch", (("detail",), ("timed",)))
    assert (early.slices, early.mode) == ([4], "detail")
    assert recorded.select_all("torch").slices == [0, 1, 3, 4]
    assert recorded.select("nvtx", (("timed",),)) is recorded.select_all("nvtx") is None


@pytest.mark.parametrize(("phase", "left_out", "flag", "others", "slices", "mixed"), [
    ("train", (), "eval", True, [1], False), ("train", (), "eval", False, [0], True),
    ("eval", (), "eval", True, [0, 1], False),
    ("train", (), "switch", True, [0, 1], False), ("train", (1,), "eval", True, [0, 1], False),
])  # fmt: skip
def test_slices_with_evaluation_count_where_there_are_no_others(
    tmp_path, phase, left_out, flag, others, slices, mixed
):
    run = Run(tmp_path / "rec", "optimizer", phase)
    run.torch([0.01, 2.0, 0.02], flags={1: flag}, left_out=left_out)
    if others:
        run.torch([0.01, 0.03])
    chosen = run.recorded().select_all("torch")
    assert (chosen.slices, chosen.mixed) == (slices, mixed)


def test_values_may_be_missing_and_modules_go_by_their_numbers(run):
    sums = [(f(()), f((1.5, 2.0)), f((1.5, None))) for f in (reader.known_sum, reader.known_total)]
    assert sums == [(None, 3.5, 1.5), (0.0, 3.5, None)]
    ratios = [reader.ratio(*two) for two in ((3.0, 2), (0.0, 2), (3.0, 0), (None, 2), (3.0, None))]
    assert ratios == [1.5, 0.0, None, None, None]
    run.write({"modules": [module(1, "Net"), module(2, "Net.a", 1)]})
    recorded = run.recorded()
    paths = [recorded.module_path(number) for number in (1, 2, 3, None)]
    assert (paths, recorded.module_parents) == (["Net", "Net.a", None, None], {1: None, 2: 1})


def test_sums_by_keys_and_the_time_of_a_loop_by_its_unobserved_steps(run):
    rows = [{"a": n % 2, "b": None if n == 2 else float(n)} for n in range(5)]
    assert reader.sums(rows, ["a"], ["b"]) == [((0,), {"b": 4.0}), ((1,), {"b": 4.0})]
    assert reader.sums(rows[2:3], ["a"], ["b"]) == [((0,), {"b": None})]
    run.torch([0.5] * 3)
    run.slice("clean", [0.03, 0.01, 0.02, 0.07, 0.04])
    assert run.recorded().plan_times == {1: near(8 * 0.02)}
    # Slow ones that were kept alone count, and are not how long the others take.
    run.slice("watch", [9.0] * 20, flags=dict.fromkeys(range(20), "slow"))
    assert run.recorded().plan_times == {1: near(28 * 0.02)}


def test_the_wait_of_modules_is_without_a_rare_pause(run):
    run.clean(30, 0.01)
    waits = {"module_id": -1, "forward_s": 2.5, "forward_self_s": None}
    times = {"module_times": [waits, waits | {"module_id": 1}]}
    run.torch([*[0.01] * 9, 2.01], waits=[*[0.001] * 9, 2.0], frames=times)
    waited, other = run.recorded().table("module_times")
    assert (waited["forward_s"], other["forward_s"]) == (near(0.5), 2.5)
    assert waited["forward_self_s"] == 0.0
