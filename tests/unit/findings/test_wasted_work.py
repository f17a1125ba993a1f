"""Findings on work that a model does for nothing."""

import pytest

from profstack.findings import rules, wasted_work
from profstack.findings.wasted_work import padding
from tests.support import findings as made
from tests.support.findings import MS, asked
from tests.support.tables import cases, near, of, rows_of

PLACE = {"file": "train.py", "line": 7}
CALLS = {"count": 4, "with_grad": 3, "nodes": 30, "module": "Net", "place": PLACE}


def operator(name, module, **figures):
    """A row of the operators."""
    return {"name": name, "module": module, "shapes": "[[100]]", "calls": 1.0, **figures}


def report_of(operators, *, on="cpu", busy=None, tables=None, **setup):
    """What the rules read of a run of three steps; its device is busy for `busy` of 10 ms."""
    launches = [{"device_busy_s": busy * MS, "device_idle_s": (10 - busy) * MS}] if busy else []
    tables = (tables or {}) | {"operators": operators, "launches": launches}
    parts = {"setup": {"steps": 3, "calls": CALLS} | setup}
    return made.report_of(device=on, parts=parts, **tables)


# Half of the model's 6 ms, at four fifths of the traced time.
@cases("unused padded gain_share is_found", "200 300 .2 True; 199 399 0 False",
       "199 400 .199 True; 99 500 None True; 0 400 None True")  # fmt: skip
def test_padding_behind_the_longest_row_or_in_most_of_all(unused, padded, gain_share, is_found):
    modules = rows_of("path depth parameters forward_s backward_s", ("Net", 0, 9, 2 * MS, 4 * MS),
                      ("Net.a", 1, 9, MS, MS), ("(loss)", 0, None, MS, MS))  # fmt: skip
    noted = {"inputs": 3, "tokens": 1000, "padded": padded, "unused": unused}
    report = report_of([], padding=noted, tables={"modules": modules})
    found = padding(None, report)
    assert bool(found) is is_found
    for told in found:
        gain_s = gain_share and gain_share * 6 * MS * made.CALIBRATION
        assert of(told, "slug gain_s severity line") == near("padding", gain_s, "high", 7)
        assert ("own longest row" in told["advice"]) is (unused >= 100)
    assert rules.PADDING.threshold == pytest.approx(0.2)


def on_logits(classes=8000):
    """Operators over logits of a clean step's 2, 3 and 0.5 ms, and others."""
    shapes = (f"[[512, 128], [128, {classes}]]", f"[[512, {classes}], [{classes}, 128]]")
    rows = [operator("aten::mm", "Net.head", shapes=shapes[0], calibrated_s=2 * MS, self_s=2.0)]
    rows += [operator("aten::mm", "Net.head", shapes=shapes[1], calibrated_s=3 * MS, self_s=1.0)]
    loss = {"shapes": f"[[512, {classes}], [], []]", "calibrated_s": 0.5 * MS}
    rows += [operator("aten::_log_softmax", None, **loss)]
    # The weights have as many rows, however many positions there are.
    rows += [operator("aten::add_", None, shapes=f"[[{classes}, 128]]", calibrated_s=9 * MS)]
    return [*rows, operator("aten::mm", "Net.body", shapes="[[512, 9]]", calibrated_s=9 * MS)]


# A quarter of the targets, a thousand classes, and a tenth of the clean step.
@cases(
    "ignored classes step_ms is_found",
    "850 8000 10 True; 250 8000 10 True; 249 8000 10 False; 850 1000 10 True; 850 999 10 False",
    "850 8000 46.7 True; 850 8000 46.8 False; 0 8000 10 False",
)
def test_logits_of_targets_that_the_loss_ignores_need_not_be_made(
    ignored, classes, step_ms, is_found
):
    targets = {"targets": 1000, "ignored": ignored, "classes": classes}
    targets |= {"per_call": [512], "ignored_index": 255}
    rows = [("Net.head", 7, 4.0, 0.0), ("Net.head", 9, 5.0, 4.0), ("Net.body", 8, 6.0, 0.0)]
    lines = rows_of("module line operator_s backward_s", *rows, file="train.py")
    report = report_of(on_logits(classes), targets=targets, tables={"module_lines": lines})
    report["benchmark"]["median_s"] = step_ms * MS
    found = asked(wasted_work.ignored_targets, None, report, "operators")
    assert len(found) == is_found
    for told in found:
        gain_s = ignored / 1000 * 5.5 * MS
        assert of(told, "slug gain_s line module") == near("ignored-targets", gain_s, 7, "Net.head")
        assert told["evidence"][0]["logits_s"] == pytest.approx(5.5 * MS)
        assert ("labels != 255" in told["advice"]) is True
    lone = report_of(on_logits()[2:], targets=targets)
    assert wasted_work.ignored_targets(None, lone) == []
    assert wasted_work.ignored_targets(None, report_of(on_logits(), targets=None)) == []


def test_logits_are_not_told_where_other_layers_have_their_size():
    targets = {"targets": 1000, "ignored": 850, "classes": 8000}
    targets |= {"per_call": [512], "ignored_index": -100}

    def found(*more, on="cpu", busy=None, **changes):
        report = report_of([*on_logits(), *more], targets=targets | changes, on=on, busy=busy)
        return [each["gain_s"] for each in wasted_work.ignored_targets(None, report)]

    usual = found()
    assert usual == near(0.85 * 5.5 * MS)
    square = {"shapes": "[[512, 8000], [8000, 8000]]", "calibrated_s": MS}
    assert found(operator("aten::mm", "Net.body", **square)) == []
    assert found(operator("aten::mm", "(optimizer)", **square)) == usual
    alike = {"shapes": "[[512, 128], [128, 8000]]", "calibrated_s": MS}
    assert found(operator("aten::mm", "Net.body.ffn", **alike)) == []
    assert found(per_call=[64, 8000]) == []
    # A device's own times, where it sets the pace.
    on_device = operator("aten::mm", "Net.head", shapes="[[9, 9], [9, 8000]]", device_s=2 * MS)
    assert found(on_device, on="cuda", busy=9) == near(0.85 * 2 * MS)
    assert found(on_device, on="cuda", busy=7) == []


@cases(
    "same alike model_ms dropouts is_found",
    "25 0 10 0 True; 24 0 10 0 False; 50 50 10 0 True; 50 49 10 0 True; 50 50 2.51 0 True",
    "50 0 2.49 0 False; 50 50 10 1 False",
)
def test_a_model_that_is_called_again_on_its_input(same, alike, model_ms, dropouts, is_found):
    places = {"first": PLACE, "again": PLACE | {"line": 9}}
    noted = {"module": "Net", "calls": 100, "on_same_input": same, "on_all_the_same": alike}
    model = {"path": "Net", "forward_s": model_ms * MS / made.CALIBRATION, "backward_s": 1.0}
    report = report_of(
        [],
        repeated=noted | places,
        training_dropouts={"count": dropouts, "modules": []},
    )
    report["tables"]["modules"] = [model]
    found = asked(wasted_work.called_again, None, report)
    assert len(found) == is_found
    for told in found:
        assert of(told, "slug gain_s line module") == ["called-again", None, 9, "Net"]
        assert told["evidence"][0]["again_s"] == pytest.approx(same / 100 * model_ms * MS)
        at_once = "torch.cat" in told["advice"]
        assert ("train.py:7 and train.py:9" in told["advice"], at_once) == (True, alike < same)
    assert wasted_work.called_again(None, report_of([], repeated=None)) == []
