"""Values asked for, tensors printed, and copies to a device: what they cost, and where."""

import pytest

from profstack.findings import synchronization
from profstack.findings.synchronization import host_to_device_copies, line_costs
from tests.support import findings as made
from tests.support.findings import MS, STEP_S, TRAIN, built_in, call, function, line, recorded
from tests.support.tables import cases, missing, near, of, rows_of

# Four profiled steps of 26 ms, of which cProfile's own cost took 1 ms each in the functions below.
PROFILED = recorded(cprofile_timed=(4, 0.104), torch_lines=(5, 0.1))
ITEM = "<method 'item' of 'torch._C.TensorBase' objects>"
TEXT = "\n" * 4 + "def hits(scores):\n    total = 0\n    for score in scores:\n"
TEXT += "        total += score.item()\n    return total\n"


def asking(
    *, per_value_s=4e-6, values=64.0, asked=64.0, loop="total += score.item()", calls=64.0, **tables
):
    """A function that asks for values one by one, for whose time line 8 and cProfile vouch."""
    hits = function("hits", 2 * MS, corrected_self_s=1.5 * MS, line=5)
    values_s = values * per_value_s
    item = built_in(ITEM, values_s + 0.5 * MS, calls=values, corrected_self_s=values_s)
    lines = [line(7, "    for score in scores:", calls=calls, python_s=0.1 * MS)]
    lines += [line(8, f"        {loop}", calls=calls, operator_s=values_s)]
    ran = [(None, asked, 0.2 * MS), ("(optimizer)", 900.0, 0.1 * MS)]
    operators = rows_of("module calls self_s", *ran, name="aten::item")
    known = {"functions": [hits, item], "calls": [call(hits, item)]}
    known |= {"lines": lines, "operators": operators, **tables}
    return made.report_of(parts={"sources": [{"file": TRAIN, "text": TEXT}]}, **known)


def told_of(report, recording=PROFILED):
    family = synchronization.forced_synchronisation
    return made.asked(family, recording, report, "lines", "operators")


def test_values_taken_one_by_one_cost_the_functions_time_and_the_calls():
    (told,) = told_of(asking())
    # Of a profiled step less cProfile's own cost (0.5 ms in each function) 1.756 ms are theirs.
    cost = (1.5 * MS + 64 * 4e-6) / (26 * MS - 1 * MS) * STEP_S
    assert of(told, "gain_s file line severity") == near(cost, TRAIN, 8, "medium")
    first, site, operator, around = told["evidence"]
    assert of(first, "values_per_step cost_s") == near(64.0, cost)
    assert of(site, "text operator_s") == ["total += score.item()", 64 * 4e-6]
    assert of(operator, "calls self_s") == near(964.0, 0.3 * MS)
    links = [f"source/{TRAIN}:8", "operators/aten::item", f"python/{TRAIN}:5:hits"]
    assert (made.links(told), around["function"]) == (links, "hits")
    for values, is_found in ((8.0, 1), (7.9, 0), (16.0, 1), (4.0, 0)):
        assert len(told_of(asking(values=values, asked=values, calls=values))) == is_found
    # Without functions, the loop's lines have their share of the traced steps of 20 ms: a fiftieth.
    for share, is_found in ((0.02002, 1), (0.01998, 0)):
        per_value_s = (share * 20 * MS - 0.1 * MS) / 64
        found = told_of(asking(functions=[], per_value_s=per_value_s))
        assert [each["gain_s"] for each in found] == near(share * STEP_S)[:is_found]


@cases("values calls loop",
       # Two on a line that runs 30 times; no more than were asked for at all.
       *((60.0, 30.0, "x += a.item() + float(b)"), (64.0, 40.0, "x += a.item() + float(b)")),
       # A method without its brackets is no value by its text: as often as the line runs.
       (30.0, 30.0, "f = a.item"),
       # The whole loop is on the line: all that were asked for.
       (64.0, 8.0, "x = sum(a.item() for a in b)"),
       (64.0, 8.0, "x = sum(map(float, b.item()))"))  # fmt: skip
def test_values_are_counted_by_the_loops_lines(values, calls, loop):
    # The function round it has its time, whatever the lines say.
    (told,) = told_of(asking(loop=loop, calls=calls, per_value_s=20e-6))
    assert told["evidence"][0]["values_per_step"] == values


def test_some_values_have_a_cost_alone_and_loops_their_share_of_the_step():
    # What a run carries to the next; of all calls, those that this loop made.
    for changes in ({}, {"values": 256.0}):
        (told,) = told_of(asking(loop="h = step(h.item())", **changes, per_value_s=20e-6))
        found = [told["gain_s"], *of(told["evidence"][0], "cost_s values_per_step")]
        assert found == near(None, 64 * 20e-6 / 2.5, 64.0)
    # One value for each call of a model is none too many.
    assert told_of(asking(modules=[{"path": "Net", "depth": 0, "calls": 64.0}])) == []
    counts = {5: 49.0, 6: 50.0, 7: 100.0, 8: 200.0, 9: 201.0}
    rows = [line(number, calls=calls, python_s=0.2 * MS) for number, calls in counts.items()]
    report = made.report_of(lines=[*rows, line(6, calls=100.0, file="/app/other.py")])
    assert sorted(row["line"] for row in synchronization.loop_lines(report, rows[2])) == [6, 7, 8]
    # Three lines of 0.2 ms in traced steps of 20 ms.
    assert line_costs(PROFILED, report, rows[2]) == pytest.approx(0.6 / 20 * STEP_S)


CARRIED = [
    *("h = cell(x[t], h)", "h, c = cell(x[t], (h, c))", "total += net(total)"),
    *("logits = net(s); a = draw(logits)|s, r = step(a)", "for x in y: a = 1; h = f(h)"),
]
ALONE = [
    *("pred = net(x[i])|total = total + loss(pred)", "total += net(x[t]).sum()", "total -= net(x)"),
    *("for head in range(8):|parts.append(x[head] @ w[head])", "a = net(x)|b = net(a)"),
    *("x = torch.stack([f(r) for r in x])", "x = list(map(f, x))"),
]


def test_what_a_loop_carries_is_read_from_its_text():
    for text in CARRIED + ALONE:
        rows = [line(number, "        " + each) for number, each in enumerate(text.split("|"))]
        assert synchronization.has_carried_name(reversed(rows)) is (text in CARRIED), text


@cases("factor is_found", "1.001 1; 0.999 0")
def test_a_tensor_turned_into_text_costs_all_that_it_calls(factor, is_found):
    text_ms = 0.5 * factor
    printer = function("_str", 1 * MS, corrected_self_s=0.2 * MS, file="/lib/torch/_tensor_str.py")
    below = built_in("format", text_ms * MS, corrected_self_s=(text_ms - 0.2) * MS)
    rows = [(11, "print(loss)", 1), (12, "print(x)", 2), (13, "print(3)", 0), (14, "model(x)", 9)]
    lines = [line(at, text, operator_s=ms * MS) for at, text, ms in rows]
    tables = {"functions": [printer, below], "calls": [call(printer, below)], "lines": lines}
    # 25 ms without the cost of 0.8 + 0.2 ms.
    found = told_of(made.report_of(**tables), recorded(cprofile_timed=(4, 0.104)))
    assert len(found) == is_found
    for told in found:
        expected = near(text_ms / 25 * STEP_S, 12, 2.0)
        assert [*of(told, "gain_s line"), told["evidence"][0]["calls"]] == expected
        assert made.links(told) == [f"python/{printer['file']}:5:_str", f"source/{TRAIN}:12"]


def idle(cause, *milliseconds, **tables):
    """A device that is idle for so long in the torch layer's steps, for one cause."""
    gaps = rows_of("total_s after", *((ms * MS, f"x{ms}") for ms in milliseconds), cause=cause)
    gaps += rows_of("cause total_s", ("queued", 1 * MS))
    gaps = [each | {"device": "cuda:0", "count": 20} for each in gaps]
    return made.report_of(device="cuda", gaps=gaps, **tables)


def test_waits_for_values_of_a_device_are_told_with_their_lines():
    # Four fifths of the traced time are clean.
    for factor, is_found in ((1.001, 1), (0.999, 0)):
        found = told_of(idle("synchronisation", factor * 0.02 * 10 / 0.8))
        assert [each["gain_s"] for each in found] == near(factor * 0.2 * MS)[:is_found]
    rows = [(8, "loss.backward()", 5), (9, "total += loss.item()", 3), (10, "print(x)", 4)]
    rows += [(number, "x.cpu()", 0.1 * number) for number in (11, 12, 13)]
    lines = [line(at, text, operator_s=ms * MS) for at, text, ms in rows]
    ran = [("aten::item", 2.0, 1 * MS, "Net"), ("aten::item", 3.0, 1 * MS, None)]
    operators = rows_of("name calls self_s module", *ran)
    (told,) = told_of(idle("synchronisation", 2, 1.5, lines=lines, operators=operators))
    assert of(told, "gain_s severity file line") == near(2.8 * MS, "high", TRAIN, 10)
    gaps, (asked, *rest) = told["evidence"][:2], told["evidence"][2:]
    found = [of(row, "idle_s after") for row in gaps]
    assert found == [near(1.6 * MS, "x2"), near(1.2 * MS, "x1.5")]
    assert of(asked, "operator calls") == ["aten::item", 5.0]
    assert [row["line"] for row in rest] == [10, 9, 13, 12]


def copies(*memories, device_ms=2.5):
    names = [(f"Memcpy HtoD ({memory} -> Device)",) for memory in memories]
    same = {"operator": "aten::copy_", "module": "Net", "calls": 3.0, "device_s": device_ms * MS}
    return rows_of("name", *names, **same)


def test_copies_cost_the_time_in_which_the_device_is_idle():
    for factor, is_found in ((1.001, 1), (0.999, 0)):
        report = idle("copy", factor * 0.125, kernels=copies("Pageable"))
        found = host_to_device_copies(None, report)
        assert [each["gain_s"] for each in found] == near(factor * 0.1 * MS)[:is_found]
        report = idle("other", 1, kernels=copies("Pinned", device_ms=factor * 0.125))
        found = host_to_device_copies(None, report)
        assert [each["gain_s"] for each in found] == [None] * is_found
        for told in found:
            facts = of(told["evidence"][0], "memory copies holds_up_the_host")
            assert facts == ["pinned", 3.0, None]


@cases("kind word pins", "Pageable pageable True; Pinned pinned False; x host False")
def test_copies_are_told_with_their_memory_and_lines(kind, word, pins):
    lines = [line(5, "loss = model(x)", operator_s=5 * MS)]
    lines += [line(6, "x = x.to(d)", operator_s=1 * MS)]
    lines += [line(7, "y = y.cuda()", python_s=0.3 * MS, operator_s=1.2 * MS)]
    ran = [("aten::copy_", "Net", 3.0, 5e5), ("aten::copy_", "Other", 9.0, 7e5)]
    operators = rows_of("name module calls moved_bytes", *ran)
    back = {"operator": "aten::mm", "module": "Net.fc", "calls": 9.0, "device_s": 9 * MS}
    kernels = [*copies(kind), back | {"name": "Memcpy DtoH (Device -> Pageable)"}]
    (told,) = host_to_device_copies(None, idle("copy", 1, lines=lines, kernels=kernels,
        operators=operators))  # fmt: skip
    assert of(told, "line module severity") == [7, "Net", "medium"]
    first, *others = told["evidence"]
    holds = True if kind == "Pageable" else None
    assert of(first, "device_s holds_up_the_host") == [2.5 * MS, holds]
    (copied,) = (each for each in others if "copied_bytes" in each)
    assert of(copied, "operator calls copied_bytes") == ["aten::copy_", 3.0, 250_000]
    words = ("pin_memory=True",) * (not pins) + ("non_blocking=True",) * (word == "host")
    assert missing(told["advice"], "pin_memory=True", "non_blocking=True") == [*words]
