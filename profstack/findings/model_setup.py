"""Models and optimizers set up wrongly for their use.

Precision, optimizers that go tensor by tensor, and gradients set to zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Literal, NamedTuple

from profstack.analysis.functions import PROFILED
from profstack.findings import names, reading, rules
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import (
    Evidence,
    Finding,
    OptimizerFacts,
    Report,
    RooflinePoint,
)
from profstack.storage.schema.rows import OperatorRow
from profstack.storage.untrusted import json_cell
from profstack.units import format_seconds, format_share

# Numbers stored as float32 that a GPU multiplies at full precision, where it could use TF32. What
# is bound by arithmetic, by the roofline, would take the less the higher the peak of TF32 is above
# that of float32, and not less than its bytes need; the rest would take as long as now.

Switch = Literal["tf32_products", "tf32_convolutions"]
LEAST_CAPABILITY = (8, 0)
_PRODUCTS = re.compile(r"aten::(?:mm|addmm|bmm|baddbmm|addbmm)$|aten::_scaled_dot_product_")
_CONVOLUTIONS = re.compile(r"conv", re.IGNORECASE)
_SWITCHES: dict[Switch, str] = {
    "tf32_products": 'torch.set_float32_matmul_precision("high")',
    "tf32_convolutions": "torch.backends.cudnn.allow_tf32 = True",
}
_NO_PEAKS = "the device's peaks in float32 and in TF32 and its bandwidth are not all known"
_MOST_ROWS = 5


def _tf32_gain(report: Report, points: list[RooflinePoint]) -> tuple[float | None, str]:
    """Return the seconds of a step that TF32 would save, or None, and the reason for None."""
    flop, bandwidth = reading.known_peaks(report)
    if not bandwidth or not {"float32", "tf32"} <= flop.keys():
        return None, _NO_PEAKS
    if not reading.is_device_bound(report):
        return None, reading.HOST_BOUND
    gain = 0.0
    for point in points:
        if point["bound"] == "compute" and point["moved_bytes"] is not None:
            seconds, least = point["seconds"] or 0.0, point["moved_bytes"] / bandwidth
            gain += max(seconds - max(seconds * flop["float32"] / flop["tf32"], least), 0.0)
    return gain, ""


@reading.family
def float32_without_tf32(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where the device could use TF32 and does not."""
    setup = report["setup"]
    device = setup.get("device")
    capability = tuple(device["capability"]) if device else ()
    off = [switch for switch in _SWITCHES if setup[switch] is False]
    if capability < LEAST_CAPABILITY or not off:
        return
    points = [
        point
        for point in reading.by_size(reading.roofline_points(report), "seconds")
        if point["kind"] == "operator" and point["dtype"] == "float32" and point["seconds"]
    ]
    # A point is named as "operator in module".
    operators = [(point["name"] or "").partition(" in ")[0] for point in points]
    chosen = [each for each in zip(points, operators, strict=True) if switch_of(each[1]) in off]
    spent = reading.total((point for point, _ in chosen), "seconds")
    if spent < rules.FLOAT32_MATMUL_WITHOUT_TF32.threshold * step_s:
        return
    gain, reason = _tf32_gain(report, [point for point, _ in chosen])
    if gain is not None and gain < reading.WORTH_TELLING * step_s:
        return
    used = {switch_of(name) for _, name in chosen}
    switches = [switch for switch in off if switch in used]
    calls = " and ".join(_SWITCHES[switch] for switch in switches)
    yield reading.finding(
        rules.FLOAT32_MATMUL_WITHOUT_TF32,
        f"{format_share(spent / step_s)} of the step multiplies float32 at full precision: "
        "TF32 is off",
        severity=reading.severity_of(spent if gain is None else gain, step_s),
        gain_s=gain,
        gain_reason=reason,
        rest=f"with TF32 they would still take {format_seconds(spent - (gain or 0.0))}",
        layers=("torch",),
        evidence=[
            {
                "calibrated_s": spent,
                "step_share": spent / step_s,
                "capability": ".".join(map(str, capability)),
                **dict.fromkeys(switches, False),
            },
            *(
                {
                    "calibrated_s": point["seconds"],
                    "flop": point["flop"],
                    "operator": point["name"],
                    "bound": point["bound"],
                    "link": f"operators/{name}",
                }
                for point, name in chosen[:_MOST_ROWS]
            ),
        ],
        advice=f"Set {calls} where the results allow it: factors are rounded to 10 bits "
        "after the point, sums are float32 as before. Or use autocast to bfloat16, which "
        "halves the bytes too.",
    )


def switch_of(operator: str) -> Switch | None:
    """Return the switch of TF32 that an operator obeys; None for others."""
    if _PRODUCTS.match(operator):
        return "tf32_products"
    return "tf32_convolutions" if _CONVOLUTIONS.search(operator) else None


# Optimizers that go tensor by tensor. What a fused step saves follows from two ratios. Where time
# goes to calls, it is the ratio of what both implementations take for tensors too small to matter;
# where it goes to memory, the ratio of the bytes that both move: the recorded operators' and each
# parameter, gradient and state once. The machine's memory bandwidth parts the one from the other.
# What a step takes in Python whatever its tensors are stays, and of few tensors it is most of it.

PART = "(optimizer)"
_GPUS = frozenset({"cuda", "mps", "xpu"})
# Where torch 2.6 and later have a fused implementation, by the class the optimizer is made from.
_DEVICES = dict.fromkeys(("Adam", "AdamW", "SGD"), _GPUS | {"cpu"})
_DEVICES["Adagrad"] = frozenset({"cpu"})
_TYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
# Tensors of a parameter's size that a fused step reads or writes for each parameter.
_PASSES = {"Adam": 7, "AdamW": 7, "SGD": 3, "Adagrad": 5}
# What a step over parameters of 8 elements takes fused, over what it takes unfused, per tensor:
# of 20 and of 200 tensors, torch 2.13, Python 3.11. Both are calls and Python alone, so that the
# ratio hardly depends on the machine.
_CALLS_LEFT = {"Adam": 0.19, "AdamW": 0.17, "SGD": 0.20, "Adagrad": 0.31}
_CALLS_LEFT_PLAIN_SGD = 0.38
# A call of an operator with the Python round it, over the operator alone: of 80 tensors, at which
# the rest of a step does not count, 1.5 with SGD and 1.7 with AdamW.
_WITH_PYTHON = 1.6
# What a fused step takes more than another before it comes to its tensors, in such calls: about
# 5 µs where each takes 0.7 to 1.7 µs.
_FUSED_CALLS = 6
_NO_BANDWIDTH = "the memory bandwidth of this machine is not known, which a fused step is bound by"
_FOREACH = (
    "the optimizer works over lists of tensors already: how much a fused one saves is not known"
)
_SEVERAL = "several optimizers share the time, and not each of them has a fused implementation"
# Profiling slows Python and not operators, by less than this.
_TOO_FAR = 3.0
# The functions round these are also the end of a step, where profstack does work of its own.
_STEPS = ("step", "_use_grad")
_MOST_OPERATORS = 3


@reading.family
def unfused_optimizer(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where the optimizer's part of the step is large enough."""
    seen = report["setup"].get("optimizers") or []
    able = [each for each in seen if can_be_fused(each)]
    rows = [row for row in report["tables"]["operators"] if row["module"] == PART]
    if not able or any("_fused_" in row["name"] for row in rows):
        return
    share = _share(recorded, report, rows)
    if share is None or share < rules.UNFUSED_OPTIMIZER.threshold:
        return
    is_disturbed = reading.calibrated(report, 1.0) is None
    gain: float | None = None
    reason: str | None = reading.why_uncalibrated(report) if is_disturbed else _SEVERAL
    if not is_disturbed and len(able) == len(seen):
        gain, reason = _gain(report, rows, seen, share * step_s)
    if gain is not None and gain < reading.WORTH_TELLING * step_s:
        return
    first = max(able, key=lambda each: each["parameter_bytes"])
    in_lists = any("_foreach_" in row["name"] for row in rows)
    way = "in a pass for each operator" if in_lists else "one operator at a time"
    times, parts = _times(report, rows, share * step_s)
    left_s = share * step_s - (gain or 0.0)
    yield reading.finding(
        rules.UNFUSED_OPTIMIZER,
        f"{first['name']} updates {first['tensors']} tensors {way}",
        severity=reading.severity_of(share * step_s if gain is None else gain, step_s),
        gain_s=gain,
        gain_reason=reason,
        rest=f"the fused update still takes {format_seconds(left_s)}",
        place=first["place"],
        module=PART,
        layers=("torch",),
        evidence=[
            {
                **(dict.fromkeys(times) if is_disturbed else times),
                "step_share": share,
                "link": f"modules/{PART}",
            },
            *(
                {
                    "optimizer": each["name"],
                    **reading.pick(each, "fused", "foreach", "tensors", "parameter_bytes"),
                    **({"link": reading.to_source(each["place"])} if each["place"] else {}),
                }
                for each in able
            ),
            *_heaviest(rows),
        ],
        advice=f"Make it with fused=True ({first['name']}(..., fused=True)): the same update, "
        "with all its tensors read and written once by one operator. Its results differ in "
        f"the last digits.{'' if is_disturbed else parts}",
    )


def _times(report: Report, rows: Sequence[OperatorRow], spent_s: float) -> tuple[Evidence, str]:
    """Return the optimizer's time as the step's bar divides it, and a sentence on that."""
    # The bar's part holds the zeroing of gradients, too.
    most_s = reading.host_parts(report).get("optimizer")
    inside_s = reading.calibrated(report, reading.total(rows, "self_s"))
    if most_s is None or inside_s is None or not inside_s < spent_s:
        return {"optimizer_s": spent_s}, ""
    inside_s = min(inside_s, most_s)
    python_s = spent_s - inside_s
    words = (
        f" Of its {format_seconds(spent_s)}, {format_seconds(inside_s)} are in operators and "
        f"{format_seconds(python_s)} in Python: the step's bar has them in these two parts."
    )
    return {"optimizer_s": spent_s, "operator_s": inside_s, "python_s": python_s}, words


def can_be_fused(optimizer: OptimizerFacts) -> bool:
    """Whether torch has a fused implementation of an optimizer of the report's `setup`."""
    return (
        optimizer["has_fused"]
        and not optimizer["fused"]
        and not optimizer["differentiable"]
        and not optimizer["sparse_tensors"]
        and bool(optimizer["tensors"])
        and set(optimizer["devices"]) <= _DEVICES.get(optimizer["base"] or "", frozenset())
        and set(optimizer["dtypes"]) <= _TYPES
    )


def _share(recorded: Recorded, report: Report, rows: Sequence[OperatorRow]) -> float | None:
    """Return the optimizer's share of a step: of the device's time where there is one.

    On the CPU it is the torch layer's, which has a few steps: where other work took the core
    meanwhile, so that it is several times what cProfile saw, it is cProfile's.
    """
    step_s = reading.traced_step_s(report)
    if not step_s:
        return None
    if reading.on_accelerator(report):
        return reading.total(rows, "device_s") / step_s
    part = reading.module_rows(report).get(PART)
    if part is None or part["self_s"] is None:
        return None
    share = part["self_s"] / step_s
    # The share of the profiled steps in torch's optimizers, with what they call.
    taken = [
        row["total_s"] or 0.0
        for row in report["tables"]["functions"]
        if row["phase"] == "step" and row["name"] in _STEPS
        if "torch/optim/" in row["file"].replace("\\", "/")
    ]
    profiled = recorded.select("cprofile", PROFILED) if taken else None
    if profiled is None or not profiled.steps or not profiled.wall_s:
        return share
    profiled_share = max(taken) * profiled.steps / profiled.wall_s
    return profiled_share if 0 < _TOO_FAR * profiled_share < share else share


def _gain(
    report: Report, rows: Sequence[OperatorRow], seen: Sequence[OptimizerFacts], spent: float
) -> tuple[float | None, str | None]:
    """Return what fused steps would save of `spent`, or why that is not known."""
    _, rate = reading.known_peaks(report)
    if not rate:
        return None, _NO_BANDWIDTH
    steps = report["setup"]["steps"] or 1
    # One of several may step more often than the others, or more rarely.
    once = sum(
        each["parameter_bytes"]
        * (_PASSES[each["base"] or ""] + 2 * bool(each["amsgrad"]) + 2 * bool(each["momentum"]))
        * (each["calls"] or steps)
        / steps
        for each in seen
    )
    if reading.on_accelerator(report):
        if not reading.is_device_bound(report):
            return None, reading.HOST_BOUND
        return max(spent - once / rate, 0.0), None
    if any("_foreach_" in row["name"] for row in rows):
        return None, _FOREACH
    moved = reading.total(rows, "moved_bytes")
    if not moved:
        return None, "how many bytes the optimizer's operators move is not known"
    inside = reading.calibrated(report, reading.total(rows, "self_s")) or 0.0
    streaming = min(moved / rate, inside)
    called = min(_WITH_PYTHON * (inside - streaming), spent - streaming)
    # The share of the time of its operators' calls that a fused step saves.
    calls = reading.total(rows, "calls")
    more = _FUSED_CALLS * len(seen) / calls if calls else 1.0
    saved = max(1.0 - max(map(_calls_left, seen)) - more, 0.0)
    return saved * max(called, 0.0) + streaming * max(1 - once / moved, 0.0), None


def _calls_left(optimizer: OptimizerFacts) -> float:
    """Return the share of the time of calls that is left, of one class of optimizers."""
    is_plain = not (optimizer["momentum"] or optimizer["weight_decay"])
    base = optimizer["base"] or ""
    return _CALLS_LEFT_PLAIN_SGD if base == "SGD" and is_plain else _CALLS_LEFT[base]


def _heaviest(rows: Sequence[OperatorRow]) -> list[Evidence]:
    """Return the operators that take most of it, over all shapes."""
    calls = reading.sums_of((row["name"], row["calls"]) for row in rows)
    times = reading.sums_of((row["name"], row["calibrated_s"]) for row in rows)
    return [
        {
            "operator": name,
            "calls": calls[name],
            "calibrated_s": times[name],
            "link": f"operators/{name}",
        }
        for name in sorted(times, key=lambda name: -times[name])[:_MOST_OPERATORS]
    ]


# Embeddings whose gradients are dense: each step fills one of the whole table with zeros, and the
# optimizer goes through all of its rows.

_DENSE = frozenset({"aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward"})
_LOOK_UP = frozenset({"aten::embedding", "aten::_embedding_bag"})
# A step looks up no more of the rows; with more a sparse update has little left to save.
_FEW_ROWS = 0.1
# What a row of a sparse update takes over what one of a dense update does, gradient included: 1.7
# to 12.7 for SparseAdam, Adagrad and SGD with 20,000 to 300,000 rows of which 1 to 10 % are used.
_SPARSE_ROW = 5.0


class _Table(NamedTuple):
    """The table of an embedding: its module, its rows and columns, and look-ups of a step."""

    module: str
    rows: int
    columns: int
    used: float

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return self.rows * self.columns


@reading.family
def dense_embeddings(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where most rows of large tables are updated for nothing."""
    seen = report["setup"].get("optimizers") or []
    updated = sum(each["elements"] for each in seen)
    tables = sorted(_tables(report), key=lambda table: -table.elements)
    optimizer = reading.module_rows(report).get(PART)
    if reading.on_accelerator(report) or not tables or not updated or optimizer is None:
        return
    modules = {table.module for table in tables}
    rows = [row for row in report["tables"]["operators"] if row["name"] in _DENSE]
    dense_s = reading.total((row for row in rows if row["module"] in modules), "total_s")
    part = min(sum(table.elements for table in tables) / updated, 1.0)
    cost_s = reading.calibrated(report, dense_s + part * reading.figure(optimizer, "self_s"))
    if cost_s is None or cost_s < rules.DENSE_EMBEDDINGS.threshold * step_s:
        return
    first = tables[0]
    used = sum(table.used * table.columns for table in tables)
    left_s = cost_s * min(_SPARSE_ROW * used / sum(table.elements for table in tables), 1.0)
    yield reading.finding(
        rules.DENSE_EMBEDDINGS,
        f"A step looks up {first.used:.0f} of the {first.rows} rows of {first.module}, and all of "
        "them are updated",
        severity=reading.severity_of(cost_s, step_s),
        gain_s=cost_s - left_s,
        rest=f"the rows that are used keep about {format_seconds(left_s)}",
        place=names.made_at(report, "Embedding", first.module)
        or names.made_at(report, "EmbeddingBag", first.module)
        or seen[0]["place"],
        module=first.module,
        layers=("torch",),
        evidence=[
            {"calibrated_s": cost_s, "step_share": cost_s / step_s, "link": f"modules/{PART}"},
            *map(_row_of, tables[:_MOST_ROWS]),
        ],
        advice="Make it with sparse=True (nn.Embedding and nn.EmbeddingBag take it), and give its "
        "weights to torch.optim.SparseAdam (SGD and Adagrad take sparse gradients too): gradients "
        "are dense now. Results differ: then the averages of a row do not change in steps whose "
        "batch lacks it.",
    )


def _row_of(table: _Table) -> Evidence:
    link = f"modules/{table.module}"
    return {"module": table.module, "rows": table.rows, "used_rows": table.used, "link": link}


def _tables(report: Report) -> Iterator[_Table]:
    """Yield the embeddings with dense gradients of which a step uses few rows."""
    rows = [row for row in report["tables"]["operators"] if row["shapes"] and row["calls"]]
    shapes = {id(row): json_cell(row["shapes"], list[list[object]]) for row in rows}
    # What evaluates looks up rows that no gradient is for.
    used = reading.sums_of(
        (row["module"], prod(shapes[id(row)][1]) * (row["calls"] or 0.0))
        for row in rows
        if row["name"] in _DENSE
        and row["module"] is not None
        and len(shapes[id(row)]) > 1
        # A bag that takes the largest has no sparse gradients: it notes where each one lies.
        and not any(len(shape) == 2 for shape in shapes[id(row)][4:5])
    )
    sizes = {row["module"]: shapes[id(row)][0] for row in rows if row["name"] in _LOOK_UP}
    # An output layer with the same weights has a gradient for all of them.
    products = [shapes[id(row)] for row in rows if _PRODUCTS.match(row["name"])]
    for module, looked_up in used.items():
        size = sizes.get(module, [])
        if len(size) != 2 or any(size in each or size[::-1] in each for each in products):
            continue
        table = _Table(str(module), size[0], size[1], looked_up)
        if table.used <= _FEW_ROWS * table.rows:
            yield table


# Gradients that are set to zero and added to, where they could be let go and handed over anew: the
# tensors that a step fills with zeros outside modules are as many and of the same shapes as those
# that AccumulateGrad then adds to. On the CPU blocks above 64 KiB do not count: the C library gives
# larger ones back to the system when gradients are let go, and the pages of the next ones have to
# be faulted in, which was measured to cost more than zeroing does. Devices have an allocator that
# keeps them.

ACCUMULATION = "(gradient accumulation)"
# Blocks up to here were measured to be kept by the C library: it trims from 128 KiB on.
LARGEST_ON_HOST = 64 << 10
# Fewer are a part that the script zeroes on purpose, as accumulators of its own.
LEAST_PARAMETERS = 0.5
_ZERO, _ADD, _NODE = "aten::zero_", "aten::add_", "torch::autograd::AccumulateGrad"
# A script may zero what it likes in a module or in a loss; gradients are zeroed between.
_ELSEWHERE = (ACCUMULATION, "(loss)")
_ZEROES = re.compile(r"^[^#]*(?:\bzero_grad\(|\.zero_\(|_foreach_zero_\()")


def _zeroed_and_added(report: Report) -> tuple[float, float, float]:
    """Return gradients that a step zeroes and adds to, and its shares that zero and that add.

    All are 0 where these are not most of the parameters that get gradients.
    """
    traced_s, on_device = reading.traced_step_s(report), reading.on_accelerator(report)
    rows = report["tables"]["operators"]
    accumulating = [row for row in rows if row["module"] == ACCUMULATION]
    # The work between modules and passes.
    outside = (row for row in rows if row["module"] not in _ELSEWHERE)
    between = (row for row in outside if row["module"] is None or row["module"].startswith("("))
    zeroed = _by_shape(between, _ZERO, on_device=on_device)
    added = _by_shape(accumulating, _ADD, on_device=on_device)
    # Parameters that get gradients in a step of any number of passes.
    nodes = reading.total((row for row in accumulating if row["name"] == _NODE), "calls")
    parameters = max(nodes / max(reading.backward_passes(report), 1.0), 1.0)
    counted = {
        shape: min(calls, added[shape][0])
        for shape, (calls, _) in zeroed.items()
        if shape in added and (on_device or 4 * prod(shape) <= LARGEST_ON_HOST)
    }
    count = sum(counted.values())
    if not traced_s or count < LEAST_PARAMETERS * parameters:
        return 0.0, 0.0, 0.0
    some = [shape for shape, calls in counted.items() if calls]
    zero_share, add_share = (
        sum(works[shape][1] * (counted[shape] / works[shape][0]) for shape in some) / traced_s
        for works in (zeroed, added)
    )
    return count, zero_share, add_share


@reading.family
def zero_grad_to_zeros(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where zeroing and adding cost enough."""
    count, zero_share, add_share = _zeroed_and_added(report)
    if zero_share + add_share < rules.ZERO_GRAD_TO_ZEROS.threshold:
        return
    on_device = reading.on_accelerator(report)
    is_disturbed = reading.calibrated(report, 1.0) is None
    reason = reading.why_uncalibrated(report) if is_disturbed else None
    if not is_disturbed and on_device and not reading.is_device_bound(report):
        reason = reading.HOST_BOUND
    cost_s = zero_share * step_s + add_share * step_s
    # The longest line that by its text sets gradients to zero. How often it ran is not known where
    # its function was not traced to the end.
    lines = (row for row in reading.own_lines(report, _ZEROES) if row["calls"] != 0)
    line = max(lines, key=reading.line_s, default=None)
    yield reading.finding(
        rules.ZERO_GRAD_TO_ZEROS,
        f"{count:.0f} gradients are set to zero in each step, and then added to",
        severity=reading.severity_of(cost_s, step_s),
        gain_s=cost_s if reason is None else None,
        gain_reason=reason,
        place=line,
        layers=("torch",),
        evidence=[
            {
                "operator": operator,
                "calls": count,
                "calibrated_s": None if is_disturbed else share * step_s,
                "step_share": share,
                "link": link,
            }
            for operator, share, link in (
                (_ZERO, zero_share, f"operators/{_ZERO}"),
                (f"{_ADD} in {ACCUMULATION}", add_share, f"modules/{ACCUMULATION}"),
            )
        ]
        + ([{"text": reading.text_of(line), "link": reading.to_source(line)}] if line else []),
        advice="Let gradients go instead: optimizer.zero_grad() without set_to_none=False, or "
        "parameter.grad = None. The backward pass then hands over new ones, and adds nothing. What "
        "reads .grad between must expect None.",
    )


def _by_shape(
    rows: Iterable[OperatorRow], name: str, *, on_device: bool
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Return calls and seconds of one operator in a step, by the shape of what it changes."""
    found: dict[tuple[int, ...], tuple[float, float]] = {}
    for row in rows:
        shapes = json_cell(row["shapes"], list[list[object]]) if row["name"] == name else []
        if shapes and all(isinstance(size, int) for size in shapes[0]):
            calls, seconds = found.get(tuple(shapes[0]), (0.0, 0.0))
            seconds += (row["device_s"] if on_device else row["total_s"]) or 0.0
            found[tuple(shapes[0])] = (calls + (row["calls"] or 0.0), seconds)
    return found
