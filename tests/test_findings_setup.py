"""Findings that rest on how a script set things up: programs that have them, and known numbers."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from data_findings import completed
from finding_programs import found, had_no_core, line_of, run_program, run_twins

from profstack.findings.model_setup import (
    can_be_fused,
    float32_without_tf32,
    inference,
    switch_of,
    unfused_optimizer,
    zero_grad_to_zeros,
)

pytestmark = pytest.mark.timed

LAYERS = "torch,flops"
MS = 1e-3
SLUGS = frozenset(
    (
        *("unfused-optimizer", "zero-grad-to-zeros", "grad-in-inference"),
        *("batchnorm-training-at-inference", "float32-matmul-without-tf32"),
    )
)


def slugs(report: dict[str, Any]) -> set[str]:
    return SLUGS & {each["slug"] for each in report["findings"]}


def disturbed(report: dict[str, Any]) -> bool:
    """Whether other work, or the profiler, took so much that no time can be told."""
    return report["attribution"]["calibrated_owned_s"] is None


def links(finding: dict[str, Any]) -> list[str]:
    return [row["link"] for row in finding["evidence"] if "link" in row]


# Of cases of one kind the twins of the first are run.
TWINLESS = {
    "unfused_optimizer__few_large",
    "unfused_optimizer__momentum",
    "zero_grad_to_zeros__by_hand",
}


def the_one(folder: Path, case: str, mark: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The finding that the program of a case has, at the line with the mark; and its report.

    Its mended twin has none of this family's.
    """
    slug = case.split("__", maxsplit=1)[0].replace("_", "-")
    if case in TWINLESS:
        report = run_program(folder, case, "bad", LAYERS)
    else:
        report, mended = run_twins(folder, case, LAYERS)
        assert slugs(mended) == set()
    if slug not in slugs(report) and had_no_core(report):
        pytest.skip("other work had the cores: no time can be told")
    assert slug in slugs(report), report["findings"]
    (finding,) = found(report, slug)
    place = line_of(case, mark)
    if any(row["line"] == place for row in report["tables"]["lines"]):
        assert finding["file"].endswith("bad.py")
        assert finding["line"] == place
    paths = {row["path"] for row in report["tables"]["modules"]}
    names = {row["name"] for row in report["tables"]["operators"]}
    for link in links(finding):
        view, key = link.split("/", maxsplit=1)
        assert view in ("modules", "operators", "source", "memory")
        assert view != "modules" or key in paths
        assert view != "operators" or key in names
    return finding, report


# -- programs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        "unfused_optimizer__many_small",
        pytest.param("unfused_optimizer__few_large", marks=pytest.mark.slow),
        pytest.param("unfused_optimizer__momentum", marks=pytest.mark.slow),
    ],
)
def test_an_optimizer_that_goes_operator_by_operator_is_told_of(tmp_path: Path, case: str) -> None:
    finding, report = the_one(tmp_path, case, "step")
    assert finding["module"] == "(optimizer)"
    assert "modules/(optimizer)" in links(finding)
    assert "fused=True" in finding["advice"]
    # Peaks are not measured in tests; on a machine where they were before, they are known.
    if disturbed(report):
        assert "slowed its steps too much" in finding["gain_reason"]
    elif report["roofline"]["peaks"]["bytes_per_s"]:
        assert 0 < finding["gain_s"] < report["benchmark"]["median_s"]
    else:
        assert "bandwidth" in finding["gain_reason"]
    (told,) = report["setup"]["optimizers"]
    assert told["tensors"] == finding["evidence"][1]["tensors"]


@pytest.mark.parametrize(
    "case",
    [
        "zero_grad_to_zeros__set_to_none_false",
        pytest.param("zero_grad_to_zeros__by_hand", marks=pytest.mark.slow),
    ],
)
def test_gradients_that_are_set_to_zero_are_told_of(tmp_path: Path, case: str) -> None:
    finding, report = the_one(tmp_path, case, "zero")
    zeros, adds = finding["evidence"][:2]
    assert zeros["calls"] == adds["calls"]
    assert 0 < zeros["step_share"] + adds["step_share"] < 0.5
    if disturbed(report):
        assert "slowed its steps too much" in finding["gain_reason"]
        return
    assert finding["gain_is"] == "estimated"
    assert 0 < finding["gain_s"] < report["benchmark"]["median_s"] / 2
    assert finding["gain_s"] == pytest.approx(zeros["calibrated_s"] + adds["calibrated_s"])


def test_gradients_at_inference_are_told_of(tmp_path: Path) -> None:
    case = "grad_in_inference__convolutions"
    finding, report = the_one(tmp_path, case, "call")
    assert slugs(report) == {"grad-in-inference"}
    assert finding["module"] == "Sequential"
    assert finding["gain_s"] is None
    # Seven convolutions and six activations.
    assert finding["evidence"][0]["nodes"] == 13
    # The first convolution's result, which the next one saves, and those of the activations.
    assert finding["evidence"][1]["kept_after_the_call_bytes"] == 7 * (4 * 16 * 48 * 48 * 4)


def test_batch_normalisation_in_training_mode_at_inference_is_told_of(tmp_path: Path) -> None:
    case = "batchnorm_training_at_inference__forgotten_eval"
    finding, report = the_one(tmp_path, case, "call")
    assert slugs(report) == {"batchnorm-training-at-inference"}
    assert finding["severity"] == "high"
    assert finding["module"] == "Sequential.1"
    assert {"modules/Sequential.1", "modules/Sequential.3"} <= set(links(finding))
    assert finding["gain_s"] is None


# -- reports of known numbers --------------------------------------------------------------------


def optimizer(**changes: Any) -> dict[str, Any]:
    """An optimizer as the report's `setup` tells it."""
    made: dict[str, Any] = {
        "name": "AdamW",
        "base": "AdamW",
        "fused": None,
        "foreach": None,
        "capturable": False,
        "differentiable": False,
        "maximize": False,
        "amsgrad": False,
        "nesterov": None,
        "momentum": False,
        "weight_decay": True,
        "centered": False,
        "has_fused": True,
        "has_foreach": True,
        "tensors": 10,
        "elements": 250_000,
        "parameter_bytes": 1_000_000,
        "sparse_tensors": 0,
        "devices": ["cpu"],
        "dtypes": ["float32"],
        "calls": 3,
        "place": {"file": "train.py", "line": 7},
    }
    assert set(changes) <= set(made)
    return made | changes


def operator(name: str, module: str | None, **figures: Any) -> dict[str, Any]:
    """A row of the operators: one call of a tenth of a millisecond unless told otherwise."""
    return {
        "name": name,
        "module": module,
        "shapes": "[[100]]",
        "calls": 1.0,
        "self_s": 0.1 * MS,
        "total_s": 0.1 * MS,
        "device_s": None,
        "calibrated_s": 0.1 * MS,
        "flop": None,
        "moved_bytes": None,
        **figures,
    }


def report_of(
    operators: list[dict[str, Any]],
    *,
    optimizer_s: float = 4 * MS,
    phase: str = "train",
    on: str = "cpu",
    busy_s: float | None = None,
    **noted: Any,
) -> dict[str, Any]:
    """What the rules read of a report whose step takes 10 ms, clean and traced alike."""
    setup = {
        "steps": 3,
        "backward_passes": 3 if phase == "train" else 0,
        "optimizers": [],
        "training_norms": {"count": 0, "modules": []},
        "training_dropouts": {"count": 0, "modules": []},
        "device": {"capability": [9, 0]} if on == "cuda" else None,
        "tf32_products": False if on == "cuda" else None,
        "tf32_convolutions": True if on == "cuda" else None,
        "calls": {
            "count": 3,
            "training": 3,
            "with_grad": 3,
            "inference_mode": 0,
            "nodes": 30,
            "module": "Net",
            "place": {"file": "train.py", "line": 5},
            "autocast": None,
        },
    }
    launches = [{"device_busy_s": busy_s, "device_idle_s": 10 * MS - busy_s}] if busy_s else []
    peaks: dict[str, Any] = {
        "flop_per_s": [
            {"dtype": "float32", "value": 50e12},
            {"dtype": "tf32", "value": 400e12},
        ],
        "bytes_per_s": [{"value": 10e9 if on == "cpu" else 2e12}],
    }
    return completed(
        {
            "benchmark": {"median_s": 10 * MS},
            "environment": {"device": on},
            "step": {"phase": phase},
            "attribution": {
                "step_s": 10 * MS,
                "calibrated_owned_s": 10 * MS,
                "clean_median_s": 10 * MS,
            },
            "setup": setup | noted,
            "roofline": {"peaks": peaks, "points": []},
            "tables": {
                "modules": [{"path": "(optimizer)", "self_s": optimizer_s}],
                "operators": operators,
                "launches": launches,
                "lines": [],
                "memory_owners": [],
            },
        }
    )


def recorded(*, backward: bool = False) -> Any:
    """What the rules of inference read of a recording: whether any operator is of a pass."""
    frame = pd.DataFrame({"slice": [1], "backward": [int(backward)]})
    return SimpleNamespace(frames={"operators": frame}, slices=pd.DataFrame({"slice": [1]}))


NOTHING: Any = None


def stepping(moved: float) -> list[dict[str, Any]]:
    """The operators of a step of 3 ms, 1000 calls."""
    figures = {"calls": 1000.0, "self_s": 3 * MS, "moved_bytes": moved}
    return [operator("aten::addcdiv_", "(optimizer)", **figures)]


# Of the time of 1000 calls a fused step of AdamW saves this much.
SAVED = 1 - 0.17 - 6 / 1000


def test_the_gain_of_fusing_is_that_of_calls_where_no_bytes_count() -> None:
    report = report_of(stepping(1.0), optimizers=[optimizer(parameter_bytes=1)])
    (finding,) = unfused_optimizer(NOTHING, report)
    assert finding["gain_s"] == pytest.approx(4 * MS * SAVED, rel=1e-3)
    assert (finding["file"], finding["line"]) == ("train.py", 7)
    assert finding["severity"] == "high"


def test_the_gain_of_fusing_is_that_of_bytes_where_memory_is_the_bound() -> None:
    # 20 MB at 10 GB/s take 2 ms of the operators' 3; 7 MB are left of them.
    report = report_of(stepping(20e6), optimizers=[optimizer()])
    (finding,) = unfused_optimizer(NOTHING, report)
    assert finding["gain_s"] == pytest.approx(1.6 * MS * SAVED + 2 * MS * (1 - 7 / 20))
    more = report_of(stepping(20e6), optimizers=[optimizer(amsgrad=True)])
    assert unfused_optimizer(NOTHING, more)[0]["gain_s"] < finding["gain_s"]


def test_time_that_bytes_would_take_is_no_more_than_the_operators_took() -> None:
    report = report_of(stepping(100e6), optimizers=[optimizer(parameter_bytes=5_000_000)])
    (finding,) = unfused_optimizer(NOTHING, report)
    assert finding["gain_s"] == pytest.approx(3 * MS * (1 - 35 / 100))


def test_the_python_of_a_step_itself_stays() -> None:
    # Six tensors with momentum: 42 calls take 0.2 ms of the 4 ms.
    made = optimizer(name="SGD", base="SGD", momentum=True, weight_decay=False, parameter_bytes=1)
    calls = [operator("aten::add_", "(optimizer)", calls=42.0, self_s=0.2 * MS, moved_bytes=1.0)]
    (finding,) = unfused_optimizer(NOTHING, report_of(calls, optimizers=[made]))
    assert finding["gain_s"] == pytest.approx(0.32 * MS * (1 - 0.20 - 6 / 42), rel=1e-3)
    # Of four tensors of plain descent there is less to save than a fused step takes more.
    few = [operator("aten::add_", "(optimizer)", calls=4.0, self_s=0.2 * MS, moved_bytes=1.0)]
    plain = optimizer(name="SGD", base="SGD", weight_decay=False, parameter_bytes=1)
    assert not unfused_optimizer(NOTHING, report_of(few, optimizers=[plain]))


def test_a_small_share_or_a_small_gain_is_not_told() -> None:
    made = [optimizer()]
    assert not unfused_optimizer(
        NOTHING, report_of(stepping(1.0), optimizer_s=0.29 * MS, optimizers=made)
    )
    assert unfused_optimizer(
        NOTHING, report_of(stepping(1.0), optimizer_s=0.31 * MS, optimizers=made)
    )
    # Plain descent reads and writes as much when it is fused.
    plain = optimizer(name="SGD", base="SGD", weight_decay=False)
    streaming = [operator("aten::add_", "(optimizer)", self_s=0.4 * MS, moved_bytes=3e6)]
    assert not unfused_optimizer(
        NOTHING, report_of(streaming, optimizer_s=0.4 * MS, optimizers=[plain])
    )


def test_where_the_torch_layer_disturbed_its_steps_the_share_is_told_alone() -> None:
    report = report_of(stepping(1.0), optimizers=[optimizer()])
    report["attribution"]["calibrated_owned_s"] = None
    (finding,) = unfused_optimizer(NOTHING, report)
    assert finding["gain_s"] is None
    assert "slowed its steps too much" in finding["gain_reason"]
    assert finding["evidence"][0]["optimizer_s"] is None
    assert finding["evidence"][0]["step_share"] == pytest.approx(0.4)


def test_other_work_in_the_few_traced_steps_is_not_the_optimizers() -> None:
    report = report_of(stepping(1.0), optimizers=[optimizer()])
    step = {"phase": "step", "name": "step", "file": "/lib/torch/optim/adamw.py", "total_s": 1 * MS}
    report["tables"]["functions"] = [step]
    profiled: Any = SimpleNamespace(
        select=lambda layer, modes: SimpleNamespace(steps=10, wall_s=100 * MS)
    )
    (finding,) = unfused_optimizer(profiled, report)
    assert finding["evidence"][0]["step_share"] == pytest.approx(0.1)
    step["total_s"] = 2 * MS
    (finding,) = unfused_optimizer(profiled, report)
    assert finding["evidence"][0]["step_share"] == pytest.approx(0.4)


def test_an_optimizer_that_steps_more_often_moves_as_much_more() -> None:
    once = report_of(stepping(20e6), optimizers=[optimizer()])
    twice = report_of(stepping(20e6), optimizers=[optimizer(calls=6)])
    gains = [unfused_optimizer(NOTHING, report)[0]["gain_s"] for report in (once, twice)]
    assert gains[0] - gains[1] == pytest.approx(2 * MS * 7 / 20)


def test_what_is_fused_already_is_not_told() -> None:
    ran = [*stepping(1.0), operator("aten::_fused_adamw_", "(optimizer)")]
    assert not unfused_optimizer(NOTHING, report_of(ran, optimizers=[optimizer()]))
    assert not unfused_optimizer(
        NOTHING, report_of(stepping(1.0), optimizers=[optimizer(fused=True)])
    )
    assert not unfused_optimizer(NOTHING, report_of(stepping(1.0)))


@pytest.mark.parametrize(
    "change",
    [
        {"has_fused": False},
        {"base": None},
        {"base": "RMSprop"},
        {"differentiable": True},
        {"sparse_tensors": 1},
        {"tensors": 0},
        {"devices": ["cpu", "xla"]},
        {"dtypes": ["complex64"]},
        {"base": "Adagrad", "devices": ["cuda"]},
    ],
)
def test_what_cannot_be_fused_is_let_alone(change: dict[str, Any]) -> None:
    assert can_be_fused(optimizer())
    assert not can_be_fused(optimizer(**change))


def test_a_gain_that_cannot_be_told_says_why() -> None:
    unknown = report_of(stepping(1.0), optimizers=[optimizer()])
    unknown["roofline"]["peaks"]["bytes_per_s"] = []
    several = report_of(stepping(1.0), optimizers=[optimizer(), optimizer(base="Rprop")])
    lists = report_of(
        [*stepping(1.0), operator("aten::_foreach_lerp_", "(optimizer)")], optimizers=[optimizer()]
    )
    bytes_unknown = report_of([operator("aten::mul_", "(optimizer)")], optimizers=[optimizer()])
    for report, word in (
        (unknown, "bandwidth"),
        (several, "several"),
        (lists, "lists"),
        (bytes_unknown, "bytes"),
    ):
        (finding,) = unfused_optimizer(NOTHING, report)
        assert finding["gain_s"] is None
        assert word in finding["gain_reason"]


def test_on_a_gpu_the_optimizer_is_its_kernels() -> None:
    # No GPU here: the figures are made up.
    rows = [operator("aten::_foreach_addcdiv_", "(optimizer)", device_s=2 * MS)]
    made = [optimizer(devices=["cuda"], parameter_bytes=100_000_000)]
    report = report_of(rows, on="cuda", busy_s=9 * MS, optimizers=made)
    (finding,) = unfused_optimizer(NOTHING, report)
    assert finding["gain_s"] == pytest.approx(2 * MS - 7 * 0.05 * MS)
    waiting = report_of(rows, on="cuda", busy_s=5 * MS, optimizers=made)
    (finding,) = unfused_optimizer(NOTHING, waiting)
    assert finding["gain_s"] is None
    assert "host sets the pace" in finding["gain_reason"]


# -- gradients that are set to zero --------------------------------------------------------------


def zeroing(shape: str = "[[100]]", module: str | None = "(zero_grad)", calls: float = 4.0) -> Any:
    """Four parameters in a step whose gradients are zeroed and added to."""
    gathering = "(gradient accumulation)"
    return [
        operator("aten::zero_", module, shapes=shape, calls=calls),
        operator("aten::add_", gathering, shapes="[[100], [100], []]", calls=4.0, total_s=0.3 * MS),
        operator("torch::autograd::AccumulateGrad", gathering, calls=4.0),
    ]


@pytest.mark.parametrize("module", ["(zero_grad)", "(wait)", "(before the optimizer)", None])
def test_zeroing_costs_itself_and_the_additions(module: str | None) -> None:
    (finding,) = zero_grad_to_zeros(NOTHING, report_of(zeroing(module=module)))
    assert finding["gain_s"] == pytest.approx(0.4 * MS)
    assert (finding["file"], finding["line"]) == (None, None)


def test_only_zeros_that_are_added_to_count() -> None:
    (finding,) = zero_grad_to_zeros(NOTHING, report_of(zeroing(calls=2.0)))
    assert finding["gain_s"] == pytest.approx(0.1 * MS + 0.15 * MS)
    for other in (
        zeroing(calls=1.0),
        zeroing(shape="[[99]]"),
        zeroing(module="Net.embedding"),
        zeroing(module="(loss)"),
        zeroing()[:1],
        zeroing()[1:],
        [],
    ):
        assert not zero_grad_to_zeros(NOTHING, report_of(other))


def test_gradients_that_are_gathered_over_passes_are_zeroed_once() -> None:
    # Four passes a step: of sixteen additions four follow a zero.
    rows = zeroing()
    rows[1] |= {"calls": 16.0, "total_s": 1.6 * MS}
    rows[2] |= {"calls": 16.0}
    (finding,) = zero_grad_to_zeros(NOTHING, report_of(rows, backward_passes=12))
    assert finding["gain_s"] == pytest.approx(0.1 * MS + 0.4 * MS)


def test_large_gradients_on_the_host_are_better_kept() -> None:
    large = zeroing(shape="[[200, 100]]")
    large[1]["shapes"] = "[[200, 100], [200, 100], []]"
    assert not zero_grad_to_zeros(NOTHING, report_of(large))
    for row in large:
        row["device_s"] = row["total_s"]
    # On a device, whose allocator keeps them, they count; the figures are made up.
    report = report_of(large, on="cuda", busy_s=9 * MS)
    assert zero_grad_to_zeros(NOTHING, report)[0]["gain_s"] == pytest.approx(0.4 * MS)
    report = report_of(large, on="cuda", busy_s=5 * MS)
    assert zero_grad_to_zeros(NOTHING, report)[0]["gain_s"] is None


def test_the_line_that_zeroes_is_named_by_its_text() -> None:
    report = report_of(zeroing())
    line = {"file": "train.py", "own": True, "calls": 1.0, "python_s": MS, "operator_s": 0.0}
    report["tables"]["lines"] = [
        line | {"line": 3, "source": "loss.backward()  # .zero_() comes later"},
        line | {"line": 4, "source": "optimizer.zero_grad(set_to_none=False)"},
        line | {"line": 5, "source": "optimizer.zero_grad()", "own": False},
        line | {"line": 6, "source": "optimizer.zero_grad()", "calls": None},
    ]
    (finding,) = zero_grad_to_zeros(NOTHING, report)
    assert finding["line"] == 4
    assert "source/train.py:4" in links(finding)


# -- inference -----------------------------------------------------------------------------------


def asked(**noted: Any) -> dict[str, Any]:
    return report_of([], phase="other", **noted)


NORMS = {"count": 2, "modules": [{"path": "Net.1", "type": "BatchNorm2d"}]}
DROPOUTS = {"count": 1, "modules": [{"path": "Net.3", "type": "Dropout"}]}


def test_inference_with_gradients_on_is_told_with_what_it_keeps() -> None:
    report = asked()
    rows = [("parameters", 800, 800), ("activations", 900, 1000)]
    report["tables"]["memory_owners"] = [
        {"device": "cpu", "kind": kind, "peak_bytes": peak, "largest_bytes": largest}
        for kind, peak, largest in rows
    ]
    (finding,) = inference(recorded(), report)
    assert (finding["slug"], finding["severity"]) == ("grad-in-inference", "medium")
    assert finding["evidence"][0]["nodes"] == 10
    assert finding["evidence"][1]["kept_after_the_call_bytes"] == 1000
    report["tables"]["memory_owners"] = []
    assert inference(recorded(), report)[0]["severity"] == "low"


def test_what_trains_is_no_inference() -> None:
    noted = {"training_norms": NORMS}
    assert inference(recorded(), asked(**noted))
    assert not inference(recorded(), report_of([], phase="train", **noted))
    assert not inference(recorded(), asked(backward_passes=1, **noted))
    assert not inference(recorded(backward=True), asked(**noted))
    assert not inference(recorded(), asked(**noted) | {"setup": {"steps": 0, "reason": "none"}})


def test_only_normalisation_is_a_fault_and_dropout_is_mentioned() -> None:
    quiet = {"calls": asked()["setup"]["calls"] | {"nodes": 0}}
    assert inference(recorded(), asked(**quiet)) == []
    assert inference(recorded(), asked(**quiet, training_dropouts=DROPOUTS)) == []
    (finding,) = inference(recorded(), asked(**quiet, training_norms=NORMS))
    assert finding["severity"] == "high"
    assert "drawn at random" not in finding["advice"]
    (finding,) = inference(
        recorded(), asked(**quiet, training_norms=NORMS, training_dropouts=DROPOUTS)
    )
    assert "modules/Net.3" in links(finding)
    assert "drawn at random" in finding["advice"]


def test_nodes_that_nobody_could_count_are_no_finding() -> None:
    unknown = {"calls": asked()["setup"]["calls"] | {"nodes": None}}
    assert inference(recorded(), asked(**unknown)) == []


# -- TF32: no GPU here, the figures are made up --------------------------------------------------


def multiplying(**noted: Any) -> dict[str, Any]:
    """4 ms of products bound by arithmetic, 1 ms by memory, and a convolution."""
    report = report_of([], on="cuda", busy_s=9 * MS, **noted)
    point = {"kind": "operator", "dtype": "float32", "flop": 1e11, "moved_bytes": 1e6}
    report["roofline"]["points"] = [
        point | {"name": "step", "kind": "step", "seconds": 10 * MS, "bound": "compute"},
        point | {"name": "aten::mm in Net.0", "seconds": 4 * MS, "bound": "compute"},
        point | {"name": "aten::addmm in Net.1", "seconds": 1 * MS, "bound": "memory"},
        point | {"name": "aten::convolution in Net.2", "seconds": 2 * MS, "bound": "compute"},
        point
        | {
            "name": "aten::bmm in Net.3",
            "seconds": 2 * MS,
            "bound": "compute",
            "dtype": "bfloat16",
        },
    ]
    return report


def test_products_at_full_precision_are_told_with_the_ratio_of_the_peaks() -> None:
    (finding,) = float32_without_tf32(NOTHING, multiplying())
    assert finding["gain_s"] == pytest.approx(4 * MS * (1 - 50 / 400))
    assert finding["evidence"][0]["calibrated_s"] == pytest.approx(5 * MS)
    assert finding["evidence"][0]["tf32_products"] is False
    assert links(finding) == ["operators/aten::mm", "operators/aten::addmm"]
    assert "set_float32_matmul_precision" in finding["advice"]
    assert "cudnn" not in finding["advice"]


def test_convolutions_hang_on_a_switch_of_their_own() -> None:
    report = multiplying(tf32_products=True, tf32_convolutions=False)
    (finding,) = float32_without_tf32(NOTHING, report)
    assert finding["gain_s"] == pytest.approx(2 * MS * (1 - 50 / 400))
    assert "cudnn" in finding["advice"]


def test_bytes_bound_what_tf32_can_save() -> None:
    report = multiplying()
    report["roofline"]["points"][1]["moved_bytes"] = 4e9
    (finding,) = float32_without_tf32(NOTHING, report)
    assert finding["gain_s"] == pytest.approx(4 * MS - 2 * MS)


def test_a_device_that_cannot_or_does_already_is_let_alone() -> None:
    def run(**noted: Any) -> list[Any]:
        return float32_without_tf32(NOTHING, multiplying(**noted))

    assert run(device={"capability": [8, 0]})
    assert not run(device={"capability": [7, 5]})
    assert not run(device=None)
    assert not run(tf32_products=True)
    assert not run(tf32_products=None)
    small = multiplying()
    for point in small["roofline"]["points"]:
        point["seconds"] /= 20
    assert not float32_without_tf32(NOTHING, small)


def test_a_gain_of_tf32_that_cannot_be_told_says_why() -> None:
    unknown = copy.deepcopy(multiplying())
    unknown["roofline"]["peaks"]["flop_per_s"].pop()
    (finding,) = float32_without_tf32(NOTHING, unknown)
    assert finding["gain_s"] is None
    assert "peaks" in finding["gain_reason"]
    idle = multiplying()
    idle["tables"]["launches"] = [{"device_busy_s": 5 * MS, "device_idle_s": 5 * MS}]
    assert "host sets the pace" in float32_without_tf32(NOTHING, idle)[0]["gain_reason"]


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("aten::mm", "tf32_products"),
        ("aten::baddbmm", "tf32_products"),
        ("aten::_scaled_dot_product_efficient_attention", "tf32_products"),
        ("aten::cudnn_convolution", "tf32_convolutions"),
        ("aten::convolution_backward", "tf32_convolutions"),
        ("aten::add", None),
        ("aten::mm_special", None),
    ],
)
def test_operators_are_known_by_the_switch_they_hang_on(operator: str, kind: str | None) -> None:
    assert switch_of(operator) == kind
