"""Counted operations: sums along the tree, the counter of record, and where counters disagree."""

import pytest

from profstack.analysis import flops
from profstack.analysis.clean_steps import clean_steps
from profstack.analysis.modules import TIMED
from profstack.storage.vocabulary import OUTSIDE
from tests.support.cells import cells
from tests.support.recordings import by, operator
from tests.support.recordings import module as module_of
from tests.support.tables import cases

OF_RECORD, SHAPES, PROFILER = "FlopCounterMode", "recorded_shapes", "flops-profiler"
ATTENTION = "aten::_scaled_dot_product_attention"


TREE = [module_of(1, "Net"), module_of(2, "Net.body", 1), module_of(3, "Net.body.fc", 2)]
TREE.append(module_of(4, "OptimizedModule"))
LAYERS = {"torch": "recorded", "flops": "recorded"}


def count(counter, flop, number, **more):
    row = {"counter": counter, "module_id": number, "backward": 0, "flop": flop}
    return {**row, "operator": "aten.mm.default", "calls": 1, **more}


def counting(run, *counts, steps=1, batch=32):
    batches, frames = dict.fromkeys(range(steps), batch), {"flop_counts": list(counts)}
    keywords = {"layer": "flops", "mode": "count", "frames": frames, "batches": batches}
    return run.slice("flops", [0.05] * steps, **keywords)


def detail(run, *counts, batch=32):
    frames = {"flop_counts": list(counts)}
    return run.torch([0.05], mode="detail", number=1, frames=frames, batches={0: batch})


def record_in(run):
    return flops.of_record(flops.counted(run.recorded()))


def rows_in(run):
    recorded = run.recorded()
    timed = recorded.select("torch", TIMED)
    return by(flops.flop_rows(recorded, flops.counted(recorded), timed), "counter")


def disagreeing(run):
    recorded = run.recorded()
    found = flops.disagreements(flops.counted(recorded), recorded.module_paths)
    return [row["text"] for row in found]


def test_counts_are_per_step_and_what_has_no_formula_is_no_nothing(run):
    rows = [count(OF_RECORD, 6000, 3, calls=3), count(OF_RECORD, 300, None, operator="aten.add")]
    rows.append(count(OF_RECORD, None, 3, operator="aten.cos.default", calls=6))
    rows.append(count(OF_RECORD, None, 2, operator="aten.cos.default", calls=3))
    rows.append(count(OF_RECORD, 900, 3, backward=1))
    counting(run, *rows, steps=3)
    record = record_in(run)
    assert record.own == {(3, 0): 2000, (3, 1): 300, (OUTSIDE, 0): 100}
    assert record.modules[1, 0] == record.modules[2, 0] == 2000
    assert record.by_place == {("aten::mm", 3): 2300, ("aten::add", None): 100}
    assert record.uncounted == {"aten::cos": 3.0}
    assert (record.total(0), record.total(1), record.total()) == (2100, 300, 2400)
    names = ("aten.mm.default", "aten::mm", "aten::conv2d.padding")
    assert [*map(flops.operator_name, names)] == ["aten::mm", "aten::mm", "aten::conv2d"]


@pytest.mark.parametrize(("early", "shaped", "record", "operators"), [
    ([(OF_RECORD, 3), (PROFILER, 3)], [3], OF_RECORD, SHAPES),
    ([(PROFILER, 3)], [3], SHAPES, SHAPES), ([(PROFILER, 3), ("thop", 3)], [], PROFILER, PROFILER),
    # Compiled after the count: the next counter saw other modules.
    ([(OF_RECORD, 3)], [4], SHAPES, SHAPES), ([(OF_RECORD, 3)], [4, 3], OF_RECORD, SHAPES),
])  # fmt: skip
def test_the_counter_of_record(run, early, shaped, record, operators):
    counting(run, *(count(counter, 1000, number) for counter, number in early))
    if shaped:
        detail(run, *(count(SHAPES, 999, number) for number in shaped))
    found = flops.counted(run.recorded())
    columns = ("forward_flop", "backward_flop", "forward_mac", "flop_per_s")
    sources = dict.fromkeys((f"modules.{column}" for column in columns), f"{record}, 1 step")
    assert flops.flop_sources(found) == {**sources, "operators.flop": f"{operators}, 1 step"}


@pytest.mark.parametrize("later", [1 + flops._SAME_WORK * 0.99, 1 + flops._SAME_WORK * 1.01, 0.9])
@pytest.mark.parametrize("compiled", [False, True])
def test_steps_that_the_torch_layer_timed_lead_where_they_did_other_work(run, later, compiled):
    counting(run, count(OF_RECORD, 1_000_000, 3))
    detail(run, count(SHAPES, 1_000_000, 3))
    rows = [count(SHAPES, round(4_000_000 * later), 3)]
    rows += [count(SHAPES, None, 3, operator="CompiledFxGraph xyz")] * compiled
    run.torch([0.02] * 4, frames={"flop_counts": rows})
    recorded = run.recorded()
    timed, known = recorded.select("torch", TIMED), flops.counted(recorded)
    counters, warnings = flops.of_timed_steps(recorded, known, timed)
    leads = abs(later - 1) > flops._SAME_WORK and not compiled
    assert list(counters) == ([SHAPES, OF_RECORD] if leads else [OF_RECORD, SHAPES])
    assert [row["slug"] for row in warnings] == ["flops-differ-by-step"] * leads
    if leads:
        first = counters[SHAPES]
        assert (first.total(), first.apart) == (pytest.approx(1_000_000 * later), True)


LIMIT = round(32 * (1 + flops._SAME_INPUTS) * 1.01)


@pytest.mark.parametrize(("batch", "same"), [(32, 1), (LIMIT, 0), (38, 1), (25, 0), (44, 0)])
def test_clean_steps_of_other_inputs_are_not_those_that_were_counted(run, batch, same):
    # Steps beside a slice tell its inputs, too.
    counting(run, count(OF_RECORD, 1000, 3), batch=batch)
    for _ in range(2):
        run.slice("watch", [0.01] * 3, batches=dict.fromkeys(range(3), batch))
    run.clean(12)
    recorded = run.recorded()
    clean = clean_steps(recorded)
    why = flops.unlike_clean(recorded, clean, record_in(run))
    assert (why is None) is bool(same)
    assert same or (f"{32 * 8} elements" in why and f"{batch * 8}" in why)
    assert flops.unlike_clean(recorded, clean, None) is None


# Up to a fifth between the quartiles, of which the upper one is the third size.
@pytest.mark.parametrize(("largest", "varies"), [(48, False), (49, True)])
def test_compiled_steps_of_varying_inputs_have_no_rate(run, largest, varies):
    compiled = count(SHAPES, None, 3, operator="CompiledFxGraph xyz")
    detail(run, count(SHAPES, 1000, 3), compiled, batch=40)
    run.clean(12, batches={at: (40, 40, largest)[at % 3] for at in range(12)})
    recorded = run.recorded()
    why = flops.unlike_clean(recorded, clean_steps(recorded), record_in(run))
    assert ("differ in size" in (why or "")) is varies


def test_a_disagreement_names_the_operators_and_the_amounts(run):
    attention = count(OF_RECORD, 500, 2, operator="aten._scaled_dot_product_attention")
    counting(run, count(OF_RECORD, 1000, 3), attention)
    rows = (SHAPES, 1000, 3, "aten::mm"), (PROFILER, 1030, 3, "linear"), (PROFILER, 70, 1, "relu")
    detail(run, *(count(*row, operator=name) for *row, name in rows))
    shapes, profiler = disagreeing(run)
    assert ("forward 0.667 times" in shapes, shapes.endswith(ATTENTION)) == (True, True)
    # This one knows modules alone: those where the difference arises.
    assert f"{1030 / 1500:.3f} times" in profiler
    assert profiler.endswith(f"Net.body ({ATTENTION})")
    # 1100 of 1500: nothing of attention, 30 of 1000 for biases, and 70 by element.
    text = rows_in(run)[PROFILER]["difference"]
    assert text.startswith(f"forward {1100 / 1500:.3f} times the record: -500 in Net.body (")
    for words in ("+70 ", "(relu 70)", "+30 in formulas"):
        assert words in text


def test_a_counter_without_figures_has_the_first_reason(run):
    run.layers(flops="empty")
    notes = ("flops: no turn", "too late")
    run.writer.write({"notes": [{"slug": "x", "layer": "flops", "text": text} for text in notes]})
    assert rows_in(run)[OF_RECORD]["note"] == "no turn"


M, LITTLE = 1_000_000, 50_000_000 * flops.NEGLIGIBLE


# A formula with the additions of a bias differs by little; in a small module any gap is nothing.
@pytest.mark.parametrize(("counter", "flop", "other", "apart"), [
    (SHAPES, M, M * (1 + flops.ROUNDING / 2), False),
    (SHAPES, M, M * (1 + flops.ROUNDING * 2), True),
    (PROFILER, M, M * (1 + flops.CONVENTION / 2), False),
    (PROFILER, M, M * (1 - flops.CONVENTION * 1.5), True),
    (PROFILER, 10_000, 10_000 + LITTLE / 2, False), (PROFILER, 10_000, 10_000 + 7.5 * LITTLE, True),
])  # fmt: skip
def test_how_much_is_a_disagreement(run, counter, flop, other, apart):
    rest = 0 if flop == M else 50_000_000
    counting(run, count(OF_RECORD, rest, 3), count(OF_RECORD, flop, 2))
    name = "linear" if counter == PROFILER else "aten::mm"
    pairs = ((rest, 3), (round(other), 2))
    detail(run, *(count(counter, flop, number, operator=name) for flop, number in pairs))
    assert bool(disagreeing(run)) is apart


NEITHER = (None, None)


@cases(
    "masked causal", ((0, 250, 600), (1350, 3400)), ((0, 0, 0), NEITHER), ((0, None, 6), NEITHER)
)
def test_causal_attention_has_both_totals(run, masked, causal):
    rows = [count(OF_RECORD, 1000, 3), count(OF_RECORD, 600, 2, operator="aten::attention")]
    rows.append(count(OF_RECORD, 4000, 3, backward=1))
    rows = [row | {"masked_flop": left} for row, left in zip(rows, masked, strict=True)]
    rows.append(count(OF_RECORD, None, 3, operator="aten::fft", calls=2))
    counting(run, *rows, count(PROFILER, 1000, 3, operator="linear", mac=450))
    names = "forward_flop backward_flop forward_mac causal_forward_flop causal_backward_flop"
    found = cells(rows_in(run).values(), names)
    assert found[0] == (1600, 4000, 800, *causal)
    assert found[2] == (1000, None, 450, None, None)


def test_what_was_not_counted_is_listed_with_its_time(run):
    lost = [("aten.cos.default", 3, 2), ("aten.erf", 3, 5), ("aten.sin", None, 1)]
    rows = [count(OF_RECORD, None, n, operator=name, calls=calls) for name, n, calls in lost]
    rows.append(count(PROFILER, None, 3, operator="cos", calls=4))
    counting(run, count(OF_RECORD, 1000, 3), *rows)
    times = (("aten::cos", 6, 0.003), ("aten::mv", 12, 0.009), ("aten::erf", 6, 0.004))
    run.torch([0.012, 0.017, 0.013], frames={"operators": [operator(*each) for each in times]})
    found = {name: row["uncounted"] or () for name, row in rows_in(run).items()}
    cos, erf, mv = (pytest.approx(seconds / 0.042) for seconds in (0.003, 0.004, 0.009))
    assert cells(found[OF_RECORD], "operator calls time_share") == [
        ("aten::erf", 5.0, erf), ("aten::cos", 2.0, cos), ("aten::sin", 1.0, None)]  # fmt: skip
    # Known to be missed without an error, where it ran.
    known = [("aten::mv", 4.0, mv), ("cos", 4.0, cos)]
    assert cells(found[PROFILER], "operator calls time_share") == known
