"""Operations in the report: by module, by operator, and counter by counter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_recording import CLEAN_S, TORCH_S, Run, by, module, module_times, operator

TREE = [module(1, "Net"), module(2, "Net.body", 1), module(3, "Net.body.fc", 2)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An empty recording."""
    return Run(tmp_path / "rec")


def count(
    counter: str, flop: int | None, *, module: int | None, backward: int = 0, **more: Any
) -> dict[str, Any]:
    """A record of `flop_counts`."""
    row = {"counter": counter, "module_id": module, "backward": backward, "flop": flop}
    return {**row, "operator": "aten.mm", "calls": 1, **more}


def watched(run: Run, counts: list[dict[str, Any]], **keywords: Any) -> None:
    """A step counted by the layer flops, then the torch layer's slice among clean ones."""
    run.slice(
        "flops", [0.05], layer="flops", mode="counter", number=1, frames={"flop_counts": counts}
    )
    run.clean()
    times = [module_times(1, 3, 0.018), module_times(2, 3, 0.012), module_times(3, 3, 0.009)]
    operators = [operator("aten::mm", 3, 0.006, module_id=3), operator("aten::cos", 6, 0.003)]
    run.torch([TORCH_S] * 3, frames={"module_times": times, "operators": operators}, **keywords)
    run.clean()
    run.writer.replace("modules", TREE)
    run.layers(torch="recorded", flops="recorded")


def test_a_module_holds_the_operations_of_those_inside_it(run: Run) -> None:
    counts = [
        count("FlopCounterMode", 100, module=2),
        count("FlopCounterMode", 1000, module=3),
        count("FlopCounterMode", 4000, module=3, backward=1),
    ]
    watched(run, counts)
    rows = by(run.finish()["tables"]["modules"], "path")
    assert [rows[path]["forward_flop"] for path in ("Net", "Net.body", "Net.body.fc")] == [
        *(1100, 1100, 1000),
    ]
    assert {rows[path]["backward_flop"] for path in ("Net", "Net.body", "Net.body.fc")} == {4000}
    assert rows["Net.body.fc"]["forward_mac"] == 500


def test_the_rate_is_of_clean_time(run: Run) -> None:
    watched(
        run,
        [
            count("FlopCounterMode", 1000, module=3),
            count("FlopCounterMode", 4000, module=3, backward=1),
        ],
    )
    report = run.finish()
    row = by(report["tables"]["modules"], "path")["Net.body.fc"]
    assert row["calibrated_s"] == pytest.approx(0.003 / TORCH_S * CLEAN_S)
    assert row["flop_per_s"] == pytest.approx(5000 / row["calibrated_s"])
    assert report["columns_source"]["modules.flop_per_s"] == "FlopCounterMode, 1 step"


def test_without_calibrated_time_there_is_no_rate(run: Run) -> None:
    run.slice(
        *("flops", [0.05]),
        layer="flops",
        mode="counter",
        number=1,
        frames={"flop_counts": [count("FlopCounterMode", 1000, module=1)]},
    )
    run.clean()
    run.torch([TORCH_S] * 2, frames={"module_times": [module_times(1, 2, 0.018)]})
    run.clean()
    run.writer.replace("modules", TREE)
    run.layers(torch="recorded", flops="recorded")
    report = run.finish()
    (row,) = report["tables"]["modules"]
    assert (row["forward_flop"], row["flop_per_s"]) == (1000, None)
    assert "calibrated" in report["columns_reason"]["modules.flop_per_s"]


def test_without_a_count_of_the_backward_pass_its_time_gives_no_rate(run: Run) -> None:
    run.slice(
        *("flops", [0.05]),
        layer="flops",
        mode="counter",
        number=1,
        frames={"flop_counts": [count("flops-profiler", 1000, module=1, operator="linear")]},
    )
    run.clean()
    times = [module_times(1, 3, 0.009, backward_s=0.012)]
    run.torch([TORCH_S] * 3, frames={"module_times": times})
    run.clean()
    run.writer.replace("modules", TREE)
    (row,) = run.finish()["tables"]["modules"]
    assert (row["forward_flop"], row["backward_flop"]) == (1000, None)
    assert row["calibrated_s"] is not None
    assert row["flop_per_s"] is None


def test_counts_are_per_step(run: Run) -> None:
    counts = [count("FlopCounterMode", 6000, module=3, calls=3)]
    run.slice("flops", [0.05] * 3, layer="flops", mode="counter", frames={"flop_counts": counts})
    run.writer.replace("modules", TREE)
    tables = run.finish()["tables"]
    assert by(tables["modules"], "path")["Net"]["forward_flop"] == 2000
    assert tables["flops"][0]["forward_flop"] == 2000


def test_work_outside_every_module_has_a_row_without_a_rate(run: Run) -> None:
    watched(run, [count("FlopCounterMode", 700, module=None)])
    report = run.finish()
    row = by(report["tables"]["modules"], "path")["(outside modules)"]
    assert (row["forward_flop"], row["flop_per_s"], row["forward_s"]) == (700, None, None)
    assert by(report["tables"]["modules"], "path")["Net"]["forward_flop"] is None


def test_what_was_not_counted_is_null_with_a_reason(run: Run) -> None:
    watched(run, [count("FlopCounterMode", 1000, module=3)])
    report = run.finish()
    rows = by(report["tables"]["modules"], "path")
    assert {row["backward_flop"] for row in rows.values()} == {None}
    assert report["columns_reason"]["modules.backward_flop"] == "no backward pass was counted"


def test_the_record_is_the_dispatch_counter_and_else_the_recorded_shapes(run: Run) -> None:
    shaped = count("recorded_shapes", 999, module=3, operator="aten::mm")
    watched(run, [], number=2)
    run.torch([0.5], mode="detail", number=1, frames={"flop_counts": [shaped]})
    report = run.finish()
    assert by(report["tables"]["modules"], "path")["Net"]["forward_flop"] == 999
    assert report["columns_source"]["modules.forward_flop"] == "recorded_shapes, 1 step"


def test_a_model_compiled_after_the_count_has_its_operations_from_the_shapes(run: Run) -> None:
    shaped = count("recorded_shapes", 999, module=4, operator="aten::mm")
    watched(run, [count("FlopCounterMode", 1000, module=3)])
    run.torch([0.5], mode="detail", number=1, frames={"flop_counts": [shaped]})
    run.writer.replace("modules", [*TREE, module(4, "OptimizedModule")])
    rows = by(run.finish()["tables"]["modules"], "path")
    assert rows["OptimizedModule"]["forward_flop"] == 999
    assert rows["Net"]["forward_flop"] is None


def test_counters_stand_side_by_side_with_what_they_leave_out(run: Run) -> None:
    shaped = [
        count("recorded_shapes", 1000, module=3, operator="aten::mm"),
        count("recorded_shapes", None, module=3, operator="aten::cos", calls=2),
    ]
    watched(
        run,
        [
            count("FlopCounterMode", 1000, module=3),
            count("FlopCounterMode", None, module=3, operator="aten.cos.default", calls=2),
            count("FlopCounterMode", None, module=None, operator="aten.sin", calls=1),
            count("flops-profiler", 1000, module=3, operator="linear"),
        ],
    )
    run.torch([0.5], mode="detail", number=1, frames={"flop_counts": shaped})
    report = run.finish()
    rows = by(report["tables"]["flops"], "counter")
    assert list(rows) == ["FlopCounterMode", "recorded_shapes", "flops-profiler"]
    assert {row["forward_flop"] for row in rows.values()} == {1000}
    assert [row["forward_mac"] for row in rows.values()] == [500, 500, None]
    cos, sin = rows["FlopCounterMode"]["uncounted"]
    assert (cos["operator"], cos["calls"]) == ("aten::cos", 2.0)
    assert cos["time_share"] == pytest.approx(0.003 / (3 * TORCH_S))
    assert sin == {"operator": "aten::sin", "calls": 1.0, "time_share": None}
    assert not [row for row in report["warnings"] if row["slug"] == "flop-counters-disagree"]


def disagreed(run: Run, shape: str | None = None, elsewhere: str | None = None) -> dict[str, Any]:
    """The report where one counter saw half of the attention.

    `shape` is that of the inputs of its steps, `elsewhere` that of others'.
    """
    watched(
        run,
        [
            count("FlopCounterMode", 1000, module=3),
            count("FlopCounterMode", 500, module=2, operator="aten._scaled_dot_product_attention"),
        ],
    )
    shaped = [
        count("recorded_shapes", 1000, module=3, operator="aten::mm"),
        count("flops-profiler", 1030, module=3, operator="linear"),
        count("flops-profiler", 70, module=1, operator="relu"),
    ]
    index = run.torch([0.5], mode="detail", number=1, frames={"flop_counts": shaped})
    if shape is not None:
        database = run.writer._database
        database.execute("UPDATE steps SET shape = ?", (elsewhere,))
        database.execute("UPDATE steps SET shape = ? WHERE slice = ?", (shape, index))
    return run.finish()


def disagreeing(run: Run, **shapes: str) -> list[str]:
    """The texts of its warnings."""
    warnings = disagreed(run, **shapes)["warnings"]
    return [row["text"] for row in warnings if row["slug"] == "flop-counters-disagree"]


def test_a_disagreement_names_the_operators(run: Run) -> None:
    shapes, profiler = disagreeing(run)
    assert shapes == (
        "recorded_shapes counts forward 0.667 times what FlopCounterMode counts; "
        "they differ in aten::_scaled_dot_product_attention"
    )
    # This one knows modules alone: those where the difference arises.
    assert profiler == (
        "flops-profiler counts 0.687 times the forward multiply-adds of FlopCounterMode; "
        "they differ in Net.body (aten::_scaled_dot_product_attention)"
    )


def differences(report: dict[str, Any]) -> dict[str, str | None]:
    return {row["counter"]: row["difference"] for row in report["tables"]["flops"]}


def test_each_difference_has_its_amount_and_its_reason(run: Run) -> None:
    assert differences(disagreed(run)) == {
        "FlopCounterMode": None,
        "recorded_shapes": "forward 0.667 times the record: "
        "-500 aten::_scaled_dot_product_attention",
        # 1100 of 1500: nothing of attention, 30 of 1000 for biases, and 70 by element.
        "flops-profiler": "forward 0.733 times the record: "
        "-500 in Net.body (aten::_scaled_dot_product_attention), which it does not count, "
        "+70 of work that the record leaves out by convention (relu 70), "
        "+30 in formulas, such as for a bias",
    }


def test_counters_that_agree_say_so(run: Run) -> None:
    watched(
        run,
        [
            count("FlopCounterMode", 1000, module=3),
            count("thop", 1000, module=3, operator="Linear"),
            count("fvcore", 2000, module=3, operator="linear"),
        ],
    )
    shaped = [count("recorded_shapes", 1000, module=3, operator="aten::mm")]
    run.torch([0.5], mode="detail", number=1, frames={"flop_counts": shaped})
    found = differences(run.finish())
    assert found["recorded_shapes"] == "the same"
    assert found["thop"] == "the same forward"
    assert found["fvcore"] == (
        "forward 2.000 times the record: +1.00 k in Net.body.fc (aten::mm), which it counts 2 times"
    )
    assert found["flops-profiler"] is None


def test_what_is_nothing_of_the_whole_is_no_disagreement(run: Run) -> None:
    """A bias of one weight in a module that does next to nothing."""
    watched(
        run,
        [
            count("FlopCounterMode", 10_000_000, module=3),
            count("FlopCounterMode", 4, module=2),
            count("flops-profiler", 10_000_000, module=3, operator="linear"),
            count("flops-profiler", 6, module=2, operator="linear"),
        ],
    )
    report = run.finish()
    assert differences(report)["flops-profiler"] == "the same forward"
    assert not [row for row in report["warnings"] if row["slug"] == "flop-counters-disagree"]


def test_steps_with_other_inputs_are_not_compared(run: Run) -> None:
    found = differences(disagreed(run, shape="7x8", elsewhere="5x5"))
    assert found["recorded_shapes"] == "not compared: it saw steps with other inputs"


def test_where_inputs_are_not_known_it_is_said(run: Run) -> None:
    text = differences(disagreed(run, shape="7x8"))["recorded_shapes"]
    assert text is not None
    assert text.startswith("forward 0.667 times the record")
    assert text.endswith("(whether their steps had the same inputs is not known)")


def causal(report: dict[str, Any]) -> list[tuple[int | None, int | None]]:
    """Forward and backward of the counters with attention counted as masks leave it."""
    rows = [row for row in report["tables"]["flops"] if row["note"] is None]
    return [(row["causal_forward_flop"], row["causal_backward_flop"]) for row in rows]


def test_causal_attention_has_both_totals(run: Run) -> None:
    counts = [
        count("FlopCounterMode", 1000, module=3, masked_flop=0),
        count("FlopCounterMode", 600, module=2, masked_flop=250, operator="aten::attention"),
        count("FlopCounterMode", 4000, module=3, masked_flop=600, backward=1),
        count("FlopCounterMode", None, module=3, operator="aten::fft", calls=2),
        count("flops-profiler", 1000, module=3, operator="linear"),
    ]
    watched(run, counts)
    assert causal(run.finish()) == [(1350, 3400), (None, None)]


def test_without_causal_attention_there_is_one_total(run: Run) -> None:
    watched(run, [count("FlopCounterMode", 1000, module=3, masked_flop=0)])
    report = run.finish()
    assert causal(report) == [(None, None)]
    reason = report["columns_reason"]["flops.causal_forward_flop"]
    assert "no attention was called as causal" in reason


def test_a_mask_that_nobody_knows_leaves_no_total(run: Run) -> None:
    counts = [
        count("FlopCounterMode", 600, module=2, masked_flop=250),
        count("FlopCounterMode", 600, module=3, masked_flop=None),
    ]
    watched(run, counts)
    assert causal(run.finish()) == [(None, None)]


def test_tools_that_are_not_there_have_no_row(run: Run) -> None:
    watched(run, [count("FlopCounterMode", 1000, module=3)])
    note = "fvcore has no figures: it raises RuntimeError"
    run.writer.write({"notes": [{"slug": "flops-uncounted", "layer": "flops", "text": note}]})
    rows = by(run.finish()["tables"]["flops"], "counter")
    assert rows["fvcore"]["note"] == note
    assert "thop" not in rows
    assert rows["flops-profiler"]["note"] != note


def test_what_flops_profiler_is_known_to_miss_is_listed_where_it_ran(run: Run) -> None:
    watched(run, [count("flops-profiler", None, module=3, operator="nn.LSTM", calls=2)])
    run.torch([TORCH_S] * 3, frames={"operators": [operator("aten::mv", 12, 0.009)]})
    row = run.finish()["tables"]["flops"][2]
    assert row["forward_flop"] is None
    mv, lstm = row["uncounted"]
    assert (mv["operator"], mv["calls"], mv["why"]) == ("aten::mv", 2.0, "counted as 0")
    assert mv["time_share"] == pytest.approx(0.009 / (6 * TORCH_S))
    assert lstm == {"operator": "nn.LSTM", "calls": 2.0, "time_share": None}


def test_a_counter_without_figures_says_why(run: Run) -> None:
    watched(run, [count("FlopCounterMode", 1000, module=3)])
    note = "flops: flops-profiler is not installed; pip install 'profstack[all]'"
    run.writer.write({"notes": [{"slug": "gave-way", "layer": "flops", "text": note}]})
    report = run.finish()
    rows = by(report["tables"]["flops"], "counter")
    assert rows["FlopCounterMode"]["note"] is None
    assert rows["flops-profiler"]["note"] == (
        "flops-profiler is not installed; pip install 'profstack[all]'"
    )
    assert "no slice of the torch layer" in rows["recorded_shapes"]["note"]


def test_counts_of_other_inputs_are_not_compared(run: Run) -> None:
    assert disagreeing(run, shape="7x8") == []


def test_an_operator_with_one_shape_in_its_module_has_its_operations(run: Run) -> None:
    operators = [
        operator("aten::mm", 3, 0.006, module_id=3, shapes="[[2, 3], [3, 4]]"),
        operator("aten::mm", 3, 0.003, module_id=2, shapes="[[2, 3], [3, 4]]"),
        operator("aten::mm", 3, 0.002, module_id=2, shapes="[[5, 3], [3, 4]]"),
        operator("aten::mm", 3, 0.001, shapes="[[9, 9], [9, 9]]"),
        operator("aten::convolution", 3, 0.0009, module_id=2, shapes="[[1, 1], [3, 3]]"),
        operator("aten::convolution", 3, 0.0008, module_id=2, shapes="[[2, 1], [3, 3]]"),
    ]
    run.clean()
    run.torch([TORCH_S] * 3, frames={"operators": operators})
    shaped = [
        count("recorded_shapes", flop, module=number, operator="aten::mm")
        for number, flop in ((3, 48), (2, 168), (None, 1458))
    ]
    shaped.append(count("recorded_shapes", 90, module=2, operator="aten::convolution"))
    run.torch([0.5], mode="detail", number=1, frames={"flop_counts": shaped})
    run.writer.replace("modules", TREE)
    report = run.finish()
    rows = [(row["module"], row["flop"]) for row in report["tables"]["operators"]]
    # Of matrix products the shapes tell which had how much of the module's.
    assert rows[:4] == [("Net.body.fc", 48), ("Net.body", 48), ("Net.body", 120), (None, 1458)]
    assert rows[4:] == [("Net.body", None), ("Net.body", None)]
    assert "several shapes" in report["cells_reason"]["operators.flop"]


def test_without_the_layer_its_columns_say_so(run: Run) -> None:
    watched(run, [])
    run.layers(torch="recorded")
    reasons = run.finish()["columns_reason"]
    assert reasons["modules.forward_flop"] == "the layer flops was not asked for"
    run.writer = type(run.writer)(run.folder)
    run.writer.replace(
        "layers", [{"name": "flops", "status": "unavailable", "reason": "torch is too old"}]
    )
    reasons = run.finish()["columns_reason"]
    assert reasons["modules.forward_flop"] == "the layer flops is unavailable: torch is too old"
