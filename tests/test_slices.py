"""The plan of slices: who observes when, for how long, and what stands between two observers."""

from __future__ import annotations

import itertools

import pytest

from profstack.capture.run import make_plan
from profstack.capture.slices import SlicePlan, Targets, plan
from profstack.layer import COUNTING, Mode

LAYERS = [["cprofile", "torch"], ["cprofile"], ["torch"]]
TARGETS = Targets(
    slice_steps=4,
    slice_s=0.25,
    clean_steps=7,
    rounds=3,
    final_steps=30,
    final_s=2.0,
    max_final_steps=90,
    settle_s=0.5,
    max_settle_steps=6,
)


def planned(layers: list[str], targets: Targets = TARGETS) -> list[SlicePlan]:
    """All slices of a plan."""
    return list(make_plan(layers, targets))


def observed(slices: list[SlicePlan]) -> list[tuple[str, str]]:
    """Every observer with its mode, in order."""
    return [observer for one in slices for observer in one.observers]


def test_seven_steps_after_the_first_give_every_layer_one() -> None:
    # The first step of a script is over when its rule is known.
    first = planned(["cprofile", "torch"])[:7]
    assert all(one.steps == 1 and one.min_s == 0 for one in first)
    assert {layer for layer, _ in observed(first)} == {"cprofile", "torch"}
    assert set(observed(first)) >= {("torch", "detail"), ("cprofile", "timed"), ("torch", "lines")}


def test_the_very_next_step_is_shared_by_all_layers_that_stand_each_other() -> None:
    first = planned(["cprofile", "torch"])[0]
    assert set(first.observers) == {("torch", "shared"), ("cprofile", "shared")}
    assert all(len(one.observers) < 2 for one in planned(["cprofile", "torch"])[1:])


@pytest.mark.parametrize("layers", LAYERS)
def test_the_first_round_alternates_with_clean_steps_and_lets_none_settle(
    layers: list[str],
) -> None:
    first = [one for one in planned(layers) if one.round == 1]
    assert [bool(one.observers) for one in first] == [True, False] * (len(first) // 2)
    assert {one.kind for one in first if not one.observers} == {"clean"}


@pytest.mark.parametrize("layers", LAYERS)
def test_later_rounds_settle_before_and_after_every_observer(layers: list[str]) -> None:
    later = [one for one in planned(layers) if one.round > 1]
    positions = [number for number, one in enumerate(later) if one.observers]
    assert positions
    for number in positions:
        kinds = [one.kind for one in later[number - 1 : number + 3]]
        assert kinds[0] == kinds[2] == "settle"
        assert kinds[3] == "clean"


@pytest.mark.parametrize("layers", LAYERS)
def test_clean_steps_stand_on_both_sides_of_every_observer(layers: list[str]) -> None:
    slices = [one for one in planned(layers) if one.kind != "settle"]
    # The very first has nothing before it but the start-up.
    for before, one, after in zip(slices, slices[1:], slices[2:], strict=False):
        if one.observers:
            assert before.kind == after.kind == "clean"


@pytest.mark.parametrize("layers", LAYERS)
def test_targets_are_what_slices_last(layers: list[str]) -> None:
    for one in planned(layers):
        if one.kind == "settle":
            assert (one.steps, one.min_s, one.max_steps) == (1, 0.5, 6)
        elif one.round > 1 and one.observers:
            assert (one.steps, one.min_s) == (4, 0.25)
        elif one.round in (2, 3) and one.kind == "clean":
            assert (one.steps, one.min_s) == (7, 0.25)


@pytest.mark.parametrize("layers", LAYERS)
def test_the_last_slices_are_a_long_clean_one_and_the_watch(layers: list[str]) -> None:
    *_, settle, clean, watch = planned(layers)
    assert settle.kind == "settle"
    assert (clean.kind, clean.steps, clean.min_s, clean.max_steps) == ("clean", 30, 2.0, 90)
    assert (watch.kind, watch.observers, watch.min_s) == ("watch", (), float("inf"))


def test_rounds_repeat_the_timed_layers_and_lines_only_once() -> None:
    slices = planned(["cprofile", "torch"])
    rounds = {
        number: observed(list(group))
        for number, group in itertools.groupby(slices, key=lambda one: one.round)
    }
    assert rounds[2] == [
        ("torch", "timed"),
        ("cprofile", "timed"),
        ("torch", "lines"),
        ("torch", "stacks"),
    ]
    assert rounds[3] == [("torch", "timed"), ("cprofile", "timed")]
    assert rounds[4] == []
    assert [one.round for one in slices] == sorted(one.round for one in slices)


def test_stacks_come_after_what_counts_their_calls_and_never_beside_it() -> None:
    slices = planned(["cprofile", "torch", "flops", "memory"])
    (at,) = [number for number, one in enumerate(slices) if ("torch", "stacks") in one.observers]
    assert slices[at].observers == (("torch", "stacks"),)
    assert slices[at].round == 2
    before = observed(slices[:at])
    assert ("cprofile", "timed") in before
    # No layer of the second round is behind it: what it leaves behind is nobody's but the clean
    # steps', which come after one has settled.
    assert not any(one.observers for one in slices[at + 1 :] if one.round == 2)
    assert [one.kind for one in slices[at + 1 : at + 3]] == ["settle", "clean"]


def test_the_timed_layers_come_before_those_that_a_short_script_can_do_without() -> None:
    slices = planned(["cprofile", "torch", "nvtx", "memory"])
    assert [one.kind for one in slices if one.observers and one.round == 1].count("nvtx") == 1
    assert [observer for one in slices if one.round == 2 for observer in one.observers] == [
        ("memory", "lines"),
        ("torch", "timed"),
        ("cprofile", "timed"),
        ("torch", "lines"),
        ("nvtx", "timed"),
        ("torch", "stacks"),
    ]


def test_what_counts_takes_no_more_steps_than_it_asks_for() -> None:
    counts = ("a", Mode("count", 2, 2, turn=COUNTING, steps=10))
    slices = plan([counts, ("b", Mode("timed", 2, 2))], Targets(slice_s=0.25))
    observed = [(one.kind, one.steps, one.min_s) for one in slices if one.observers]
    assert observed == [("a", 10, 0.0), ("b", 3, 0.25)]


def test_one_round_is_enough_when_no_more_are_asked_for() -> None:
    slices = planned(["cprofile", "torch"], Targets(rounds=1))
    assert {one.round for one in slices if one.observers} == {1}
    assert slices[-1].kind == "watch"


def test_without_layers_only_clean_steps_are_measured() -> None:
    kinds = [one.kind for one in planned([])]
    assert set(kinds) == {"settle", "clean", "watch"}


def test_a_layer_takes_part_in_the_rounds_it_names() -> None:
    slices = plan([("a", Mode("timed", 2, 3)), ("b", Mode("once"))], Targets(rounds=4))
    by_layer = {
        name: [one.round for one in group]
        for name, group in itertools.groupby(
            sorted((one for one in slices if one.observers), key=lambda one: one.kind),
            key=lambda one: one.kind,
        )
    }
    assert by_layer == {"a": [2, 3], "b": [1, 2, 3, 4]}


def test_the_usual_targets_are_those_of_the_documentation() -> None:
    usual = Targets()
    assert (usual.slice_steps, usual.slice_s) == (3, 0.05)
    assert (usual.settle_s, usual.max_settle_steps) == (0.003, 10)
