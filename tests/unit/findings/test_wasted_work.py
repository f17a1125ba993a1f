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


@cases(
    "calls same part_ms dropouts gain_ms",
    "5 5 2.5 0 2; 3 3 1.26 0 1.008; 2 2 2.5 0 None; 5 5 1.24 0 None; 5 5 2.5 1 None",
)
def test_a_part_on_the_same_input_in_each_step_can_be_kept(calls, same, part_ms, dropouts, gain_ms):
    noted = [{"module": "Net.texts", "calls": calls, "same": same}]
    rows = rows_of(
        "path type forward_s", ("Net", "Net", 9 * MS), ("Net.texts", "Enc", part_ms * MS)
    )
    kept = {"count": dropouts, "modules": []}
    report = report_of([], constant=noted, training_dropouts=kept, tables={"modules": rows})
    found = asked(wasted_work.constant_input, None, report)
    assert len(found) == (gain_ms is not None)
    for told in found:
        gain_s = gain_ms * MS
        named = of(told, "slug gain_s line module")
        assert named == near("constant-input", gain_s, 7, "Net.texts")
        assert "this Enc once" in told["advice"]
    # Slices that were too much disturbed have no times of a clean step.
    report["attribution"]["calibrated_owned_s"] = None
    assert [each["gain_s"] for each in wasted_work.constant_input(None, report)] == [None] * len(
        found
    )


@cases(
    "forward_ms sources is_found",
    # Of 64 rows that are 8: seven eighths of the modules' passes, a twentieth of the step.
    "2 8 True; .239 8 True; .238 8 False; 2 32 True; 2 60 False",
)
def test_a_module_on_rows_that_were_gathered_from_fewer(forward_ms, sources, is_found):
    noted = [
        {"module": f"Net.{name}", "calls": 2, "rows": 64, "sources": sources, "place": place}
        for name, place in (("small", PLACE), ("large", PLACE), ("gone", PLACE), ("none", None))
    ]
    rows = [("Net.small", 0.2 * forward_ms), ("Net.large", forward_ms), ("Net.none", 0.001)]
    rows = [(path, ms * MS, 1.5 * ms * MS) for path, ms in rows]
    modules = {"modules": rows_of("path forward_s backward_s", *rows)}
    report = report_of([], gathered=noted, tables=modules)
    found = asked(wasted_work.gathered_rows, None, report)
    assert len(found) == is_found
    for told in found:
        spared_s = 2.5 * 1.2 * forward_ms * MS * (1 - sources / 64)
        gained = near("gathered-rows", spared_s * made.CALIBRATION, 7, "Net.large")
        assert of(told, "slug gain_s line module") == gained
        words = f"32 rows are computed that were gathered from {sources // 2}"
        assert told["title"] == f"Net.large and 1 more: {words}"
        assert [each["module"] for each in told["evidence"]] == ["Net.large", "Net.small"]
    assert wasted_work.gathered_rows(None, report_of([], gathered=None)) == []


@cases(
    "call_ms calls line_ms own is_found",
    # A twentieth of the step, 50 us a call, half of it outside operators.
    "2 9 1 True True; 2 9 .99 True False; .501 9 1 True True; .499 9 1 True False",
    "2 39 1 True True; 2 41 1 True False; 2 9 1 False False",
)
def test_tensors_of_lists_are_made_element_by_element(call_ms, calls, line_ms, own, is_found):
    lists = made.function("stacked", MS, 3 * MS, line=5) | {"own": own}
    maker = made.built_in("<built-in method torch.tensor>", call_ms * MS)
    maker |= {"self_s": call_ms * MS, "calibrated_s": call_ms * MS}
    other = made.built_in("<built-in method torch.zeros>", 5 * MS)
    edges = [made.call(lists, maker, call_ms * MS, calls=calls), made.call(lists, other, 5 * MS)]
    lines = [made.line(6, "x = torch.tensor(rows)", python_s=line_ms * MS), made.line(7, "y = 1")]
    tables = {"functions": [lists, maker, other], "calls": edges, "lines": lines}
    report = report_of([], tables=tables)
    report["sources"] = [{"file": made.TRAIN, "text": "\n" * 4 + "def stacked(rows):\n x\n x\n"}]
    found = asked(wasted_work.tensors_from_lists, None, report)
    assert len(found) == is_found
    for told in found:
        gained = near("tensors-from-lists", 0.9 * call_ms * MS, 6)
        assert of(told, "slug gain_s line") == gained
        assert told["title"].startswith("stacked makes tensors of lists")


@cases(
    "head_ms encoder_ms behind gain_ms",
    "1 5 False 4; 1 5 True None; 0 .63 False .504; 0 .62 False no",
    ".3 .4 False .32; .3 .4 True None",
)
def test_a_backward_pass_whose_gradients_no_optimizer_has(head_ms, encoder_ms, behind, gain_ms):
    parts = [("Net.encoder", 20, behind), ("Net.adapter", 5, True), ("Net.gone", 9, False)]
    noted = {"parameters": 34, "steps": 20}
    noted["modules"] = rows_of("module parameters after_trained", *parts)
    times = ("Net.encoder", encoder_ms * MS), ("Net.adapter", head_ms * MS), ("Net", 9 * MS)
    rows = rows_of("path backward_s", *times)
    report = report_of([], unused_gradients=noted, tables={"modules": rows})
    lines = "import torch\nprint()\nadam = torch.optim.Adam(net.head.parameters())\n"
    report["sources"] = [{"file": made.TRAIN, "text": lines}]
    report["tables"]["lines"] = [made.line(3)]
    found = asked(wasted_work.unused_gradients, None, report)
    assert len(found) == (gain_ms != "no")
    for told in found:
        gain_s = gain_ms and gain_ms * MS
        assert of(told, "slug gain_s line") == near("unused-gradients", gain_s, 3)
        assert "model.encoder.requires_grad_(False)" in told["advice"]
        assert ("its backward pass" in told["advice"]) is (gain_ms is not None)
        assert told["evidence"][0]["module"] == told["module"]
    assert wasted_work.unused_gradients(None, report_of([], unused_gradients=None)) == []


@cases(
    "exchanged updates wall_ms on gain_ms",
    "12 3 5 cpu 3; 12 8 6 cpu 1.6; 11 8 5 cpu no; 12 3 .625 cpu .375; 12 3 .62 cpu no",
    "12 3 20 cpu 7.5; 12 3 0 cuda None",
)
def test_gradients_that_ranks_exchange_before_they_are_used(
    exchanged, updates, wall_ms, on, gain_ms
):
    noted = {"passes": 12, "exchanged": exchanged, "updates": updates}
    rows = [("gloo:all_reduce", wall_ms * MS), ("DistributedDataParallel.forward", 9 * MS)]
    tables = {"regions": rows_of("path wall_s", *rows)}
    tables["lines"] = [made.line(4, "loss.backward()", python_s=MS), made.line(9, "x.backward()")]
    report = report_of([], on=on, exchanges=noted, tables=tables)
    found = asked(wasted_work.exchanged_too_often, None, report)
    assert len(found) == (gain_ms != "no")
    for told in found:
        gain_s = gain_ms and gain_ms * MS
        assert of(told, "slug gain_s line") == near("exchanged-too-often", gain_s, 4)
        assert "no_sync()" in told["advice"]
    assert wasted_work.exchanged_too_often(None, report_of([], exchanges=None)) == []


def point(dtype, ms, bound="compute", kind="operator"):
    """A point of the roofline."""
    name = f"aten::mm in {kind}"
    return {"kind": kind, "name": name, "dtype": dtype, "seconds": ms * MS, "bound": bound}


@cases(
    "of_64 small on gain_ms",
    "4 0 cpu 2; 1 0 cpu .5; .9 0 cpu no; .9 .1 cpu .45; 4 2 cpu 2; 4 0 cuda None",
)
def test_operators_on_float64_take_twice_as_long(of_64, small, on, gain_ms):
    points = [point("float64", of_64), point("float64", small, "overhead"), point("float32", 9)]
    points += [point("float64", 9, kind="module"), point(None, 9)]
    report = report_of([], on=on)
    report["roofline"] = {"points": points}
    found = asked(wasted_work.double_precision, None, report)
    assert len(found) == (gain_ms != "no")
    for told in found:
        gain_s = gain_ms and gain_ms * MS
        assert of(told, "slug gain_s line") == near("double-precision", gain_s, 7)
        assert told["evidence"][0]["step_share"] == pytest.approx((of_64 + small) / 10)
    # A single number of another optimizer is not the model.
    single, model = {"dtypes": ["float64"], "elements": 1}, {"elements": 9}
    for dtypes in (["float64"], ["float32"], ["float32", "float64"]):
        report["setup"]["optimizers"] = [single, model | {"dtypes": dtypes}]
        titles = [each["title"] for each in wasted_work.double_precision(None, report)]
        is_model = dtypes == ["float64"]
        assert [title.startswith("The model trains") for title in titles] == [is_model] * len(found)


@cases(
    "name share",
    "aten::mm .5; aten::mkldnn_convolution .8; aten::_slow_conv2d_backward .8; aten::sqrt .75",
    "aten::div .75; aten::gelu_backward .75; aten::_softmax .75; aten::add .5",
)
def test_what_float32_saves_of_an_operator(name, share):
    report = report_of([])
    report["roofline"] = {"points": [point("float64", 4) | {"name": f"{name} in Net"}]}
    (told,) = wasted_work.double_precision(None, report)
    assert told["gain_s"] == pytest.approx(4 * MS * share)
    # What its calls cost, it costs in float32 too; a slow convolution is slow by its type.
    report["roofline"]["points"][0]["bound"] = "overhead"
    (told,) = wasted_work.double_precision(None, report)
    assert told["gain_s"] == pytest.approx(4 * MS * share * ("conv" in name))
