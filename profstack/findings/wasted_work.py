"""Work done for nothing: padding, ignored logits, unused gradients, results that were there."""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Literal

from profstack.code_owner import BUILTIN_FILE
from profstack.findings import names, reading, rules
from profstack.findings.step_bar import OF_OPTIMIZER
from profstack.findings.step_cut import COLLECTIVE
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import Finding, GatheredFacts, Place, Report
from profstack.storage.schema.rows import OperatorRow
from profstack.storage.untrusted import json_cell
from profstack.units import format_count, format_share

# Beside what is behind the longest row: padding of this share is worth sorting rows by length.
_MUCH_PADDING = 0.4
# With less behind the longest row nothing is promised.
_LEAST_UNUSED = 0.1


@reading.family
def padding(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where much of the tokens that the model is given is padding."""
    noted, calls = report["setup"].get("padding"), report["setup"].get("calls")
    if not noted or not noted["tokens"] or not calls:
        return
    unused, padded = noted["unused"] / noted["tokens"], noted["padded"] / noted["tokens"]
    if unused < rules.PADDING.threshold and padded < _MUCH_PADDING:
        return
    models = [row for path, row in reading.module_rows(report).items() if row["parameters"]]
    whole = sum(
        reading.figure(row, "forward_s") + reading.figure(row, "backward_s")
        for row in models
        if row["depth"] == 0
    )
    model_s = reading.calibrated(report, whole)
    gain_s = unused * model_s if model_s and unused >= _LEAST_UNUSED else None
    place, collate = calls["place"], names.collate_function(report)
    advice = "Pad each batch to its own longest row (in collate_fn, or by DataCollatorWithPadding)."
    if collate is not None and unused >= _LEAST_UNUSED:
        place, name = collate
        advice = f"Pad each batch to its own longest row, in {name}{reading.in_brackets(place)}."
    elif unused < _LEAST_UNUSED:
        advice = "Put rows of about the same length into one batch, or pack several into one row."
    yield reading.finding(
        rules.PADDING,
        f"{format_share(padded)} of the tokens that the model computes are padding",
        severity="high",
        gain_s=gain_s,
        gain_reason="what shorter rows save is not known",
        place=names.padding_collate_fn(report) or place,
        module=calls["module"],
        evidence=[
            {
                **reading.pick(noted, "inputs", "tokens", "padded", "unused"),
                "padded_share": padded,
                "unused_share": unused,
                "link": f"modules/{calls['module']}",
            }
        ],
        advice=f"{advice} {format_share(unused)} of the tokens are behind the longest row of their "
        "batch.",
    )


# Logits of positions whose targets the loss ignores: tokens that are not masked, prompts, padding.
# Only the rows that count need to go through the layer that has a logit for each class.

# What the layer, the loss over its logits and their backward passes are made of.
_PRODUCT = re.compile(r"aten::(?:mm|addmm|bmm|baddbmm|addbmm)$")
_OVER_CLASSES = re.compile(
    r"aten::(?:mm|addmm|bmm|baddbmm|_log_softmax|_log_softmax_backward_data|nll_loss\w*)$"
)
# A product has the classes in its second matrix alone, or in both of the backward pass.
_IN_PRODUCT = 2
# Fewer classes are a size that other layers have, too.
_FEWEST_CLASSES = 1000
# Of a model that takes less of the step nothing is said.
_MUCH_OF_STEP = 0.25
# Less than this share of a step is no reason to change the model.
_WORTH_SELECTING = 0.1


@reading.family
def ignored_targets(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where much of what a layer of many classes computes is not used."""
    noted = report["setup"].get("targets")
    if not noted or not noted["targets"]:
        return
    share, classes = noted["ignored"] / noted["targets"], noted["classes"]
    on_device = reading.on_accelerator(report)
    if share < rules.IGNORED_TARGETS.threshold or classes < _FEWEST_CLASSES:
        return
    # As many positions as classes: every layer has that size. An idle device waits for the host.
    if classes in noted["per_call"] or (on_device and not reading.is_device_bound(report)):
        return
    rows = _on_logits(report, classes)
    products = [row for row in rows if _PRODUCT.match(row["name"])]
    column: Literal["device_s", "calibrated_s"] = "device_s" if on_device else "calibrated_s"
    logits_s = reading.total(rows, column)
    gain_s = share * logits_s
    modules = {row["module"] for row in products}
    # One layer computes them: where several have its size it is not known which.
    if len(modules) != 1 or gain_s < _WORTH_SELECTING * step_s:
        return
    module = modules.pop()
    index = noted["ignored_index"]
    yield reading.finding(
        rules.IGNORED_TARGETS,
        f"The loss ignores {format_share(share)} of the positions that logits are computed for",
        severity=reading.severity_of(gain_s, step_s),
        gain_s=gain_s,
        place=_line_of(report, module),
        module=module,
        evidence=[
            {
                **reading.pick(noted, "classes", "targets", "ignored"),
                "logits_s": logits_s,
                "link": f"modules/{module}",
            }
        ],
        advice="Select the positions whose labels count before the layer that computes the logits: "
        f"wanted = labels != {index}; loss(head(hidden[wanted]), labels[wanted]), with the labels "
        "as the loss has them. It is the same but for its last digits.",
    )


def _on_logits(report: Report, classes: int) -> list[OperatorRow]:
    """Return the operators over as many classes; none where another layer has that size, too."""
    found = []
    for row in report["tables"]["operators"]:
        named = _OVER_CLASSES.match(row["name"]) and row["module"] not in OF_OPTIMIZER
        if not named or not row["shapes"]:
            continue
        sizes = [shape for shape in json_cell(row["shapes"], list[list[object]]) if len(shape) > 1]
        uses = sum(shape.count(classes) for shape in sizes[-2:])
        if _PRODUCT.match(row["name"]) and uses > _IN_PRODUCT:
            return []
        if uses:
            found.append(row)
    return found


def _line_of(report: Report, module: str | None) -> Place | None:
    """Return the user's own line in a module's forward that has most of its operators' time."""
    rows = [row for row in report["tables"]["module_lines"] if row["module"] == module]
    times = ((reading.figure(row, "operator_s"), reading.figure(row, "backward_s")) for row in rows)
    forward = [whole - backward for whole, backward in times]
    if max(forward, default=0.0) <= 0.0:
        return None
    first = rows[forward.index(max(forward))]
    return {"file": first["file"], "line": first["line"]}


# Two calls of a model on one input: with a condition and without, or once more for metrics.


@reading.family
def called_again(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where a model works on the input that it has just worked on."""
    setup = report["setup"]
    noted, dropouts = setup.get("repeated"), setup.get("training_dropouts")
    if not noted or (dropouts and dropouts["count"]):
        return
    share = noted["on_same_input"] / noted["calls"]
    row = reading.module_rows(report).get(noted["module"])
    model_s = reading.calibrated(report, row and row["forward_s"])
    if share < rules.CALLED_AGAIN.threshold or (model_s or 0.0) < _MUCH_OF_STEP * step_s:
        return
    first, again = noted["first"], noted["again"]
    places = " and ".join(dict.fromkeys(reading.in_words(each) for each in (first, again) if each))
    advice = (
        "Make one pass where the result of the other is not used, as with a guidance of 1; else "
        "make both passes at once, with their inputs in one batch (torch.cat)."
    )
    if noted["on_all_the_same"] >= noted["on_same_input"]:
        advice = (
            "All inputs are the same: keep the result of the first call and use it again, unless "
            "the model is changed between the calls or draws random numbers."
        )
    yield reading.finding(
        rules.CALLED_AGAIN,
        f"{noted['module']} is called twice on the same input",
        severity=reading.severity_of(share * (model_s or 0.0), step_s),
        gain_reason="what of both results is needed is not known",
        place=again,
        module=noted["module"],
        evidence=[
            {
                **reading.pick(noted, "calls", "on_same_input", "on_all_the_same"),
                "again_s": share * (model_s or 0.0),
                "link": f"modules/{noted['module']}",
            }
        ],
        advice=f"{advice} The calls are at {places}." if places else advice,
    )


# A part of the model that gets the same in each step, while the model gets something new.

_FEWEST_LOOKS = 3


@reading.family
def constant_input(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding for each part of a model whose result could be kept."""
    setup, rows = report["setup"], reading.module_rows(report)
    dropouts = setup.get("training_dropouts")
    for noted in setup.get("constant") or ():
        row = rows.get(noted["module"])
        if row is None or noted["calls"] < _FEWEST_LOOKS or (dropouts and dropouts["count"]):
            continue
        part_s = reading.calibrated(report, row["forward_s"])
        share = (row["forward_s"] or 0.0) / (reading.traced_step_s(report) or math.inf)
        if share < rules.CONSTANT_INPUT.threshold:
            continue
        kind = row["type"] or "module"
        yield reading.finding(
            rules.CONSTANT_INPUT,
            f"{noted['module']} gets the same input in each step",
            severity=reading.severity_of(share * step_s, step_s),
            gain_s=part_s,
            gain_reason=reading.why_uncalibrated(report),
            place=setup["calls"]["place"] if "calls" in setup else None,
            module=noted["module"],
            layers=["torch"],
            evidence=[
                {
                    **reading.pick(noted, "calls", "same"),
                    "forward_s": part_s,
                    "step_share": share,
                    "link": f"modules/{noted['module']}",
                }
            ],
            advice=f"Compute the result of this {kind} once before the steps, keep it, and use it "
            "again in each request or step, as long as its input and its weights stay the same and "
            "it draws no random numbers.",
        )


# The same row computed again for each place that it is gathered to.


@reading.family
def gathered_rows(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding for each line that calls modules which could work on fewer rows."""
    rows, traced_s = reading.module_rows(report), reading.traced_step_s(report)
    by_line: dict[tuple[object, ...], list[tuple[float, GatheredFacts]]] = defaultdict(list)
    for noted in report["setup"].get("gathered") or ():
        if (row := rows.get(noted["module"])) is not None:
            whole_s = reading.figure(row, "forward_s") + reading.figure(row, "backward_s")
            spared_s = whole_s * (1 - noted["sources"] / noted["rows"])
            by_line[tuple((noted["place"] or {}).values())].append((spared_s, noted))
    for found in by_line.values():
        spared_s = math.fsum(seconds for seconds, _ in found)
        if not traced_s or spared_s < rules.GATHERED_ROWS.threshold * traced_s:
            continue
        _, noted = max(found, key=operator.itemgetter(0))
        given, sources = (noted[name] // noted["calls"] for name in ("rows", "sources"))
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield reading.finding(
            rules.GATHERED_ROWS,
            f"{noted['module']}{more}: {given} rows are computed that were gathered from {sources}",
            severity=reading.severity_of(spared_s / traced_s, 1.0),
            gain_s=reading.calibrated(report, spared_s),
            gain_reason=reading.why_uncalibrated(report),
            place=noted["place"],
            module=noted["module"],
            layers=["torch"],
            evidence=[
                {
                    **reading.pick(each, "module", "calls", "rows", "sources"),
                    "step_share": seconds / traced_s,
                    "link": f"modules/{each['module']}",
                }
                for seconds, each in sorted(found, key=lambda pair: -pair[0])
            ],
            advice="Call it before the indexing: it does the same to every row, and each comes "
            f"{format_count(noted['rows'] / noted['sources'])} times on average. Apply it to the "
            f"{sources} rows once and gather its result (module(x)[index] instead of "
            "module(x[index])).",
        )


# Lists of arrays or numbers that torch goes through element by element.

_MAKES = re.compile(r"\btorch\.(?:as_)?(?:tensor|Tensor|\w+Tensor)\(")
_MADE = re.compile(r"<built-in method torch\.(?:as_)?tensor>|<class 'torch\.\w*Tensor'>|^tensor$")
_LEAST_CALL_S, _JOINED = 50e-6, 0.9


@reading.family
def tensors_from_lists(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding for each of the user's functions that makes tensors of lists."""
    graph = reading.CallGraph(report)
    for caller, edges in graph.callees.items():
        if caller not in graph.rows or not graph.rows[caller]["own"]:
            continue
        for callee, edge in edges:
            row, calls, total_s = graph.rows.get(callee), edge["calls"], edge["total_s"]
            is_made = callee.file == BUILTIN_FILE and _MADE.search(callee.name) is not None
            if not is_made or row is None or not calls or not total_s or not row["self_s"]:
                continue
            clean_s = total_s * (row["calibrated_s"] or 0.0) / row["self_s"]
            least_s = max(rules.TENSORS_FROM_LISTS.threshold * step_s, _LEAST_CALL_S * calls)
            lines = [at for at in graph.lines_of(caller) if _MAKES.search(at["source"] or "")]
            in_none_s = sum(at["python_s"] or 0.0 for at in lines)
            if clean_s < least_s or in_none_s < total_s / 2:
                continue
            place = max(lines, key=lambda at: at["python_s"] or 0.0)
            name = reading.qualified_name(report, graph.rows[caller], caller.name)
            share = format_share(clean_s / step_s)
            yield reading.finding(
                rules.TENSORS_FROM_LISTS,
                f"{name} makes tensors of lists element by element, {share} of each step",
                severity=reading.severity_of(clean_s, step_s),
                gain_s=_JOINED * clean_s,
                place=place,
                layers=("cprofile", "torch"),
                evidence=[
                    {
                        "function": callee.name,
                        "calls": calls,
                        "clean_s": clean_s,
                        "step_share": clean_s / step_s,
                        "text": reading.text_of(place),
                        "link": reading.to_source(place),
                    }
                ],
                advice="torch.tensor goes through a list, and each array in it, element by "
                "element: join arrays first (torch.from_numpy(numpy.stack(arrays))), make one "
                "array of numbers (numpy.array), or keep tensors from the start.",
            )


# Gradients of a part that was to be frozen.


@reading.family
def unused_gradients(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where backward passes compute gradients that no optimizer uses."""
    noted, rows = report["setup"].get("unused_gradients"), reading.module_rows(report)
    traced_s = reading.traced_step_s(report)
    if not noted or not traced_s:
        return
    parts = [
        (each, reading.figure(rows[each["module"]], "backward_s"))
        for each in noted["modules"]
        if each["module"] in rows
    ]
    if sum(seconds for _, seconds in parts) < rules.UNUSED_GRADIENTS.threshold * traced_s:
        return
    whole_s = sum(seconds for each, seconds in parts if not each["after_trained"])
    gain_s = reading.calibrated(report, whole_s) if whole_s else None
    first, _ = max(parts, key=operator.itemgetter(1))
    name = first["module"]
    more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
    share = sum(seconds for _, seconds in parts) / traced_s
    calls = report["setup"].get("calls")
    place = reading.own_text(report, _OPTIMIZER) or (calls["place"] if calls else None)
    yield reading.finding(
        rules.UNUSED_GRADIENTS,
        f"No optimizer uses the gradients of {name}{more}",
        severity=reading.severity_of(share * step_s, step_s),
        gain_s=gain_s,
        gain_reason="gradients pass through these modules to others that are trained: what those "
        "of their weights take is not told apart"
        if not whole_s
        else reading.why_uncalibrated(report),
        place=place,
        module=name,
        layers=["torch"],
        evidence=[
            {
                "module": each["module"],
                "parameters": each["parameters"],
                "backward_s": reading.calibrated(report, seconds),
                "step_share": seconds / traced_s,
                "link": f"modules/{each['module']}",
            }
            for each, seconds in sorted(parts, key=lambda pair: -pair[1])
        ],
        advice=f"Freeze it before training: {_frozen(name)}, so that autograd leaves "
        + ("its backward pass out" if gain_s else "the gradients of its weights out")
        + "; or give its parameters to the optimizer where they are to be trained.",
    )


_OPTIMIZER = re.compile(r"\boptim\.\w+\(|\b(?:Adam|AdamW|SGD|RMSprop|Adagrad|Adafactor)\(")


def _frozen(path: str) -> str:
    """Return how the script may freeze a module: `model.encoder`, of a root its class's name."""
    whole, dot, inside = path.partition(".")
    if not dot:
        return f"call requires_grad_(False) of the {whole}"
    return f"model.{inside}.requires_grad_(False)"


# Gradients that ranks exchange after each small batch, and use after several.

_OFTEN = 1.5


@reading.family
def exchanged_too_often(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where gradients are exchanged in more passes than optimizers step."""
    noted = report["setup"].get("exchanges")
    if not noted or noted["exchanged"] < _OFTEN * noted["updates"]:
        return
    on_device = reading.on_accelerator(report)
    regions = [row for row in report["tables"]["regions"] if COLLECTIVE.match(row["path"])]
    spent_s = reading.calibrated(report, reading.total(regions, "wall_s"))
    if not on_device and (spent_s or 0.0) < rules.EXCHANGED_TOO_OFTEN.threshold * step_s:
        return
    unused = 1 - noted["updates"] / noted["exchanged"]
    gain_s = None if on_device or spent_s is None else unused * min(spent_s, step_s)
    lines = reading.own_lines(report, _BACKWARD)
    often = f"{noted['exchanged'] / noted['updates']:.2g}"
    yield reading.finding(
        rules.EXCHANGED_TOO_OFTEN,
        f"Gradients are exchanged between ranks in {often} backward passes for each step of the "
        "optimizer",
        severity="medium" if gain_s is None else reading.severity_of(gain_s, step_s),
        gain_s=gain_s,
        gain_reason="on a device the exchange overlaps with other work",
        place=max(lines, key=reading.line_s, default=None),
        layers=["torch"],
        evidence=[
            {
                **reading.pick(noted, "passes", "exchanged", "updates"),
                "wall_s": spent_s,
                **({"link": f"ranges/{regions[0]['path']}"} if regions else {}),
            }
        ],
        advice="Put all backward passes but the last one before the optimizer's step under "
        "model.no_sync(), with their forward passes: gradients add up on each rank, and are "
        "all-reduced once for the accumulated small batches.",
    )


_BACKWARD = re.compile(r"\bbackward\(")

# Numbers of twice the size that training and inference need.

# What float32 saves of an operator's time on a CPU, measured on one core with AVX-512, torch 2.13:
# half of most (twice the bytes, half as many numbers in a vector: 1.9 to 2.6 times as long), more
# of those for which oneDNN and vector libraries have no double precision: convolutions take 2 to 12
# times as long, roots, GELU and softmax 2.4 to 8 times.
_SAVED = ((re.compile(r"conv"), 0.8), (re.compile(r"sqrt|gelu|softmax|\bdiv"), 0.75))
_SAVED_USUALLY = 0.5
_DOUBLE = re.compile(r"\.double\(|\bfloat64\b|\bDoubleTensor\b")


def _saved(operator: str) -> float:
    """Return the share of an operator's time that float32 saves."""
    return next((share for name, share in _SAVED if name.search(operator)), _SAVED_USUALLY)


@reading.family
def double_precision(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where operators on float64 take a good part of the step."""
    points = [
        point
        for point in reading.roofline_points(report)
        if point["kind"] == "operator" and point["dtype"] == "float64" and point["seconds"]
    ]
    spent_s = reading.total(points, "seconds")
    if spent_s < rules.DOUBLE_PRECISION.threshold * step_s:
        return
    on_device = reading.on_accelerator(report)
    saved_s = sum(
        (point["seconds"] or 0.0) * _saved(point["name"] or "")
        for point in points
        # A convolution without oneDNN is far from the machine's limits by what it is.
        if point["bound"] != "overhead" or "conv" in (point["name"] or "")
    )
    optimizers, calls = report["setup"].get("optimizers") or (), report["setup"].get("calls")
    largest = max(optimizers, key=lambda each: each["elements"], default=None)
    is_model = largest is not None and largest["dtypes"] == ["float64"]
    what = "The model trains" if is_model else f"{format_share(spent_s / step_s)} of the step is"
    yield reading.finding(
        rules.DOUBLE_PRECISION,
        f"{what} in double precision (float64)",
        severity=reading.severity_of(spent_s / 2, step_s),
        gain_s=None if on_device else saved_s,
        gain_reason="how much faster the device is in float32 was not measured",
        place=reading.own_text(report, _DOUBLE) or (calls["place"] if calls else None),
        layers=["torch"],
        evidence=[
            {"calibrated_s": spent_s, "step_share": spent_s / step_s, "dtype": "float64"},
            *(
                {
                    "calibrated_s": point["seconds"],
                    "operator": point["name"],
                    "link": f"operators/{(point['name'] or '').partition(' in ')[0]}",
                }
                for point in reading.by_size(points, "seconds")[:_MOST_POINTS]
            ),
        ],
        advice="Convert the data and the model to float32 (array.astype(np.float32), "
        "tensor.float(), model.float()), unless results need more than 7 digits: NumPy makes "
        "float64, and a model or a loss that meets it computes in it.",
    )


_MOST_POINTS = 5
