"""Inference that does what only training needs, or does it again and again."""

from functools import partial
from types import SimpleNamespace

import pytest

from profstack.findings import inference as module
from profstack.findings.inference import inference
from profstack.storage.reader import Recorded
from tests.support import findings as made
from tests.support.findings import MS, STEP_S, links
from tests.support.tables import cases, near, of, rows_of

PLACE = {"file": "train.py", "line": 7}
CALLS = {"count": 4, "with_grad": 3, "nodes": 30, "module": "Net", "place": PLACE}
NOBODY = {"count": 0, "modules": []}
NORMS = {"count": 7, "modules": [{"path": f"Net.{at}", "type": "BatchNorm2d"} for at in range(7)]}
DROPOUTS = {"count": 1, "modules": [{"path": "Net.d", "type": "Dropout"}]}
QUIET = {"count": 4, "with_grad": 3, "nodes": 0, "module": "Net", "place": None}


def report_of(
    phase="train", requests=None, step_s=STEP_S, batch=4, tokens=None, tables=None, **setup
):
    """What the rules read of a run of three steps."""
    noted = {"steps": 3, "backward_passes": 0, "training_norms": NOBODY, "calls": CALLS}
    parts = {"setup": noted | {"training_dropouts": NOBODY} | setup, "requests": requests}
    parts |= {"step": {"phase": phase, "batch_size": batch}, "tokens": tokens}
    return made.report_of(parts=parts, step_s=step_s, **tables or {})


def inferred(backward=0, **changes):
    """The findings of a run of inference; one operator of slice 2 may be of a backward pass."""
    tables = {"operators": rows_of("slice backward", (1, None), (2, backward)), "thread_times": []}
    slices = [{"slice": 1}, {"slice": changes.pop("slice", 2)}]
    steps = rows_of("shape wall_s kind", *changes.pop("steps", [("4x8", 1.0, "clean")] * 9))
    numbers = changes.pop("numbers", range(len(steps)))
    steps = [{**row, "step": number} for row, number in zip(steps, numbers, strict=True)]
    recording = SimpleNamespace(table=tables.__getitem__, slices=slices, steps=steps)
    recording.rare_pause_s = partial(Recorded.rare_pause_s, recording)
    recording.rare_pauses = partial(Recorded.rare_pauses, recording)
    return inference(recording, report_of(**{"phase": "other", **changes}))


# A fifth of the peak of 1250 bytes is much.
@cases("kept severity", "260 medium; 240 low; 0 low")
def test_gradients_at_inference_are_told_with_what_they_keep(kept, severity):
    rows = [("parameters", 800, 900), ("activations", 450, kept), ("activations", None, None)]
    owners = rows_of("kind peak_bytes largest_bytes", *rows, device="cpu")
    (told,) = inferred(tables={"memory_owners": owners})
    expected = ["grad-in-inference", severity, 7, "Net", ["memory", "torch"] if kept else []]
    assert of(told, "slug severity line module layers") == expected
    first, *others = told["evidence"]
    assert of(first, "nodes calls_with_grad_share calls") == [7.5, 0.75, 4]
    assert [row.get("kept_after_the_call_bytes") for row in others[:-1]] == [kept] * bool(kept)
    assert links(told)[-1] == "source/train.py:7"


def test_only_inference_that_records_or_is_in_training_mode_is_a_finding():
    assert len(inferred()) == 1
    assert len(inferred(backward=1, slice=3)) == 1, "another plan's pass"
    none = [{"phase": "train"}, {"phase": None}, {"backward_passes": 1}, {"backward": 1}]
    none += [{"calls": None}, {"calls": QUIET}, {"calls": QUIET | {"nodes": None}}]
    none += [{"calls": QUIET, "training_dropouts": DROPOUTS}]
    assert [inferred(**each) for each in none] == [[]] * 8
    (told,) = inferred(calls=QUIET, training_norms=NORMS)
    assert of(told, "severity module gain_s") == ["high", "Net.0", None]
    (both,) = inferred(calls=QUIET, training_norms=NORMS | {"count": 1}, training_dropouts=DROPOUTS)
    assert (len(links(told)), links(both)[-1]) == (5, "modules/Net.d")
    assert both["evidence"][-1] == {"batch_normalisations": 1, "dropouts": 1}


def test_training_mode_costs_what_evaluation_mode_does_not_take():
    share, fixed_s = module._EVALUATED[True]
    flat_share, flat_s = module._EVALUATED[False]
    norm, images, rows = "aten::native_batch_norm", "[[8,16,22,22],[16]]", "[[32,64],[64]]"
    operators = rows_of(
        "module name shapes calls calibrated_s",
        ("Net.0", norm, images, 2, 0.7 * MS), ("Net.1", norm, rows, 3, 0.4 * MS),
        # Too short to be less, not in training mode, and what only training does.
        ("Net.2", norm, images, 2, fixed_s), ("Net.x", norm, images, 1, 9 * MS),
        ("Net.1", "aten::add_", None, 3, 0.02 * MS), ("Net.1", "aten::empty", None, 3, 9 * MS),
        ("Net.d", "aten::bernoulli_", rows, 1, 0.3 * MS), ("Net.d", "aten::mul", rows, 1, 0.1 * MS),
    )  # fmt: skip
    known = {"calls": QUIET, "training_norms": NORMS, "training_dropouts": DROPOUTS}
    known["tables"] = {"operators": operators}
    # Half way between the traced time and the calibrated one.
    mean = made.CALIBRATION**-0.5 * MS
    norms_s = (1 - share) * 0.7 * mean - 2 * fixed_s + (1 - flat_share) * 0.4 * mean - 3 * flat_s
    assert inferred(**known)[0]["gain_s"] == pytest.approx(norms_s + 0.42 * mean)
    for slowed, is_known in ((1.68, True), (1.7, False), (0.6, True), (0.58, False)):
        (told,) = inferred(step_s=made.TRACED_S / slowed, steps=[("4x8", 1.0, "clean")], **known)
        assert (told["gain_s"] is not None) is is_known


@cases("weight_ms phase backward is_found", "0.4 other 0 True; 0.313 other 0 True",
       "0.312 other 0 False; 0.4 train 0 False; 0.4 other 1 False")  # fmt: skip
def test_weights_that_are_computed_anew_at_inference(weight_ms, phase, backward, is_found):
    # Two of the same, a twentieth of the step together.
    kinds = {"Net": "Net", "Net.a.p.weight": "ParametrizationList", "Net.a.p.weight.0": "_Own"}
    kinds["Net.b.p.weight"] = "ParametrizationList"
    times = dict(zip(kinds, (9, weight_ms, weight_ms, 0.999 * weight_ms), strict=True))
    rows = rows_of("path type forward_s", *((at, kinds[at], times[at] * MS) for at in kinds))
    found = inferred(calls=QUIET | {"place": {"file": "train.py", "line": 7}}, phase=phase,
                     backward=backward, tables={"modules": rows})  # fmt: skip
    assert len(found) == is_found
    for told in found:
        gain_s = 1.999 * weight_ms * MS * made.CALIBRATION
        named = near("parametrized-at-inference", gain_s, 7, "Net.a.p.weight")
        assert of(told, "slug gain_s line module") == named
        assert (len(told["evidence"]), "cached()" in told["advice"]) == (2, True)


def growing(count=17, other=0):
    """Calls that are one token longer each, from 5 on, of 3 ms and 0.5 ms a token; and others."""
    steps = [(f"2x{5 + n}", (3 + 0.5 * (5 + n)) * MS, "clean") for n in range(count)]
    return [*steps, *[("2x5", 5.5 * MS, "clean")] * other]


def test_text_without_a_cache_or_that_grows_by_a_token_a_call_is_found():
    for cached, added, is_found in ((False, 8, True), (False, 7.5, False), (True, 9, False)):
        made = {"cached": cached, "new_tokens": added, "prompt_tokens": 4, "new_tokens_per_s": 3.0}
        found = inference(None, report_of(calls=None, tokens=made | {"can_end": None}))
        assert [each["slug"] for each in found] == ["no-kv-cache"] * is_found
    (told, _) = inferred(steps=growing())
    # The median of 5 to 21 tokens is 13: twelve of them are computed again.
    assert of(told, "slug gain_s line") == near("no-kv-cache", 12 * 0.5 * MS, 7)
    assert of(told["evidence"][0], "calls per_token_s longest_tokens") == near(17, 0.5 * MS, 21)
    for steps, is_found in (
            (growing(7), False), (growing(8), True), (growing(17, 5), True),
            (growing(17, 6), False), ([("17", MS, "clean")] * 20, False)):  # fmt: skip
        found = [each["slug"] for each in inferred(steps=steps)]
        assert found == ["no-kv-cache"] * is_found + ["grad-in-inference"]


def test_calls_of_which_some_were_not_kept_are_no_neighbours():
    # From the 18th on each second call was kept: two tokens longer.
    later = [(f"2x{22 + 2 * n}", (3 + 0.5 * (22 + 2 * n)) * MS, "clean") for n in range(12)]
    steps, numbers = [*growing(), *later], [*range(17), *range(18, 42, 2)]
    slugs = [each["slug"] for each in inferred(steps=steps, numbers=numbers)]
    assert slugs == ["no-kv-cache", "grad-in-inference"]
    slugs = [each["slug"] for each in inferred(steps=steps)]
    assert slugs == ["grad-in-inference"]


@cases("ends calls added told", "False 8 8 1; False 7 8 0; False 8 7.5 0; True 8 8 0; None 8 8 0")
def test_texts_that_nothing_ends_before_their_limit(ends, calls, added, told):
    made = {"cached": True, "new_tokens": added, "generations": calls, "later_token_s": 3 * MS}
    found = inferred(calls=QUIET | {"place": PLACE}, tokens=made | {"can_end": ends})
    assert [of(each, "slug line gain_s") for each in found] == [["no-end-token", 7, None]] * told


@cases("count batch is_found", "20 1 True; 19 1 False; 20 2 False; 20 None False")
def test_many_requests_of_one_item_each_could_be_one_call(count, batch, is_found):
    requests = {"count": count, "p50_s": 7 * MS}
    found = inferred(requests=requests, batch=batch)
    assert [each["slug"] for each in found] == ["grad-in-inference"] + ["batch-of-one"] * is_found
