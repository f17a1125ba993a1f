"""Many small operators: which groups are repeated, what they cost, and what one run would save."""

from profstack.findings import small_operators as module_of
from profstack.findings.small_operators import joined, repeated_groups, small_operators
from tests.support import findings as made
from tests.support.findings import MS, STEP_S, TRACED_S, line, links, report_of, row
from tests.support.tables import cases, near, of, rows_of


def operator(name, calls, self_ms, module="Net.heads", **more):
    names = {"name": f"aten::{name}", "calls": calls, "self_s": self_ms * MS, "module": module}
    return names | more


def module(path, calls, self_ms, **more):
    known = {"path": path, "depth": path.count("."), "type": "Heads", "calls": calls}
    self_s = self_ms * MS
    return known | {"self_s": self_s, "forward_s": self_s, "backward_s": 0.0} | more


def heads(*, runs=12.0, own_ms=4.0, small=10.0, lines=(), operators=None, **changes):
    """A module that is called twice in a step and repeats `runs` matrix products in each call.

    `small` of ten such calls are products, the others happen once in a call.
    """
    if operators is None:
        operators = [operator("mm", 2 * runs * 10, own_ms * small / 10, flop=2e6, moved_bytes=1e6)]
        operators += [operator("stack", 2.0, own_ms * (10 - small) / 10)]
    modules = [module("Net", 1.0, 1), module("Net.heads", 2.0, own_ms)]
    return report_of(modules=modules, operators=operators, lines=[*lines], **changes)


def told_of(report):
    return made.asked(small_operators, None, report, "modules", "operators", "lines")


def test_work_that_a_call_repeats_eight_times_is_a_group():
    for calls, child_calls, found in ((16, 0, 1), (15.9, 0, 0), (2, 16, 1), (2, 15.9, 0)):
        modules = [module("Net.heads", 2.0, 4), module("Net.heads.cell", child_calls, 1)]
        rows = [operator("mm", calls, 1), operator("mul", 32.0, 0.2, "Net.heads.cell")]
        groups = [*repeated_groups(report_of(modules=modules, operators=rows))]
        assert len([group for group in groups if group.module["path"] == "Net.heads"]) == found
    for mul_ms, runs in ((100, 8), (99, 20)):
        rows = [operator("mm", 40.0, 900), operator("mul", 16.0, mul_ms)]
        (group,) = repeated_groups(report_of(modules=[module("Net.heads", 2, 9)], operators=rows))
        assert group.runs == runs, "of operators with a tenth of the time"
    rows = [operator("cat", 2.0, 1), operator("mm", 40.0, 1, "Net.heads.cell")]
    rows += [operator("mul", 60.0, 1, "Net.heads.cell.gate")]
    rows += [operator("mm", 500.0, 1, "Net.heads.cellar"), operator("mm", 500.0, 1, None)]
    modules = [module("Net.heads", 2.0, 0.5)]
    modules += [module("Net.heads.cell", 40.0, 1, backward_s=2 * MS)]
    modules += [module("Net.heads.norm", 20.0, 0.1), module("(loss)", 1.0, 9)]
    modules += [module("Net.heads.cellar", 2.0, 9, type="LSTM")]
    (group,) = repeated_groups(report_of(modules=modules, operators=rows))
    assert (group.module["path"], group.child) == ("Net.heads", row("modules", **modules[1]))
    assert [group.seconds, group.runs, group.operators] == near((0.5 + 1 + 2 + 0.1) * MS, 20, 100)
    # More than half of a module's own time is repeated; torch's own loops over time are no group.
    assert [len([*repeated_groups(heads(small=small))]) for small in (5.1, 4.9)] == [1, 0]


def test_modules_of_one_class_repeat_as_one_group():
    def groups(*paths, **changes):
        modules, rows = [], []
        for at, path in enumerate(paths, 1):
            modules.append(module(path, 2.0, at) | changes.get(path.rpartition(".")[2], {}))
            rows.append(operator("mm", 48.0, at, path))
        found = joined(repeated_groups(report_of(modules=modules, operators=rows)))
        return [(one.module["path"], round(one.seconds / MS), one.alike) for one in found]

    assert groups("Net.a", "Net.b", "Net.c") == [("Net.c", 6, 3)]
    # Of another class, or another number of runs; and one inside the other.
    assert groups("Net.a", "Net.b", b={"type": "Tails"}) == [("Net.b", 2, 1), ("Net.a", 1, 1)]
    assert groups("Net.a", "Net.b", b={"calls": 3.0}) == [("Net.b", 2, 1), ("Net.a", 1, 1)]
    assert groups("Net.a", "Net.a.b", "Net.c") == [("Net.c", 4, 2)]


def test_layers_alike_are_told_at_once_with_the_line_that_all_run():
    modules = [module("Net", 1.0, 1, type="Net")]
    modules += [module(f"Net.{at}", 2.0, 1.5) for at in range(2)]
    rows = [operator("mm", 240.0, 1.5, f"Net.{at}") for at in range(2)]
    loop = line(9, "y.append(x[head] @ w)", calls=480.0, operator_s=2 * MS)
    once = line(8, "y.append(1)", calls=239.0, operator_s=9 * MS)
    report = report_of(modules=modules, operators=rows, lines=[loop, once])
    (told,) = told_of(report)
    assert told["title"].startswith("Each of 2 modules of Heads (Net.0) repeats")
    assert of(told, "line gain_s") == near(9, 3 * MS * 0.8 * (1 - 1 / 120))
    assert told["evidence"][0]["operators"] == 480


# With a backward pass for each call, gradients are gathered over small batches.
GROUPS = "1 1 -; 1 1 calls=8.; 0 1 calls=7.9; 0 1 parameters=0; 0 1 depth=1; 1 3.9 -; 0 4 -"


@cases("is_group passes changes", GROUPS)
def test_a_model_called_for_each_sample_is_a_group(changes, passes, is_group):
    net = module("Net", 32.0, 0.0, parameters=9, forward_s=2 * MS, backward_s=1 * MS) | changes
    operators = [operator("mm", 64.0, 1, "Net"), operator("select", 32.0, 0.3, "(loss)")]
    operators += [operator("add_", 8.0, 0.2, "(gradient accumulation)")]
    operators += [operator("stack", 7.9, 0.5, "(loss)")]
    setup = {"setup": {"steps": 10, "backward_passes": 10 * passes}}
    # Of its own it repeats nothing: 64 operators in 32 calls.
    groups = [*repeated_groups(report_of(parts=setup, modules=[net], operators=operators))]
    assert len(groups) == is_group
    for group in groups:
        assert group.child is group.module
        assert [group.seconds, group.operators, group.runs] == near(3.5 * MS, 104, net["calls"])


# Of each product, 2 KiB are not weights: 240 calls read or write 480 KiB and 256 KiB of weights.
@cases("name shapes moved", "mm [[256,1],[1,256]] 753664",
       "addmm [[4],[1,256],[256,256]] 753664; bmm [[1,256],[256,256]] 63406080")  # fmt: skip
def test_one_operator_reads_the_weights_once(name, shapes, moved):
    moves = {"shapes": str(shapes), "moved_bytes": 240 * 4 * (65536 + 512)}
    report = heads(operators=[operator(name, 240.0, 4, flop=1e4, **moves)])
    for peak in (0.0, 8e10):
        rate = {"value": peak}
        peaks = {"flop_per_s": [rate], "bytes_per_s": [rate]}
        report["roofline"] = {"peaks": peaks} if peak else None
        # A quarter of the peak is surely reached, else 5 GB/s.
        computing = [told["evidence"][0]["computing_s"] for told in told_of(report)]
        assert computing == near(moved / (peak / 4 or 5e9))


def test_a_repeated_operator_is_told_with_its_figures_and_line():
    # A group takes a fifth of the step, in operators of less than 20 microseconds.
    for factor, is_found in ((1.001, 1), (0.999, 0)):
        own_ms = 0.2 * factor * 12.5
        shares = [told["evidence"][0]["step_share"] for told in told_of(heads(own_ms=own_ms))]
        assert shares == near(own_ms * MS / TRACED_S)[:is_found]
    for microseconds, is_found in ((19.9, 1), (20.1, 0), (11, 1), (38, 0)):
        rows = [operator("mm", 4e-3 / (microseconds * 1e-6), 4)]
        assert len(told_of(heads(operators=rows))) == is_found
    loop = line(9, "        parts.append(x[head] @ w[head])", calls=24.0, operator_s=2 * MS)
    (told,) = told_of(heads(lines=[loop, line(3, "y = 3 * x", calls=24.0, operator_s=1 * MS)]))
    gain_s = 3.2 * MS * (1 - 1 / 120) - 0.4 * MS
    assert of(told, "module severity file gain_s") == near("Net.heads", "high", None, gain_s)
    names = "repeated operators cost_s per_operator_s computing_s"
    expected = near(120.0, 240.0, 3.2 * MS, 3.2 * MS / 240, 0.4 * MS)
    assert of(told["evidence"][0], names) == expected
    assert links(told) == ["modules/Net.heads", "operators/aten::mm"]
    assert told_of(heads(own_ms=30.0, runs=200.0))[0]["gain_s"] == STEP_S
    # Less than three tenths of its 3.2 ms is the price of the calls.
    for computing_ms, is_known in ((2.2, True), (2.23, False)):
        rows = [operator("mm", 240.0, 4, flop=computing_ms * MS * module_of._FLOP_PER_S)]
        (told,) = told_of(heads(operators=rows, lines=[loop]))
        assert (told["gain_s"] is not None) is is_known
        assert is_known or "about as long" in told["gain_reason"]
    rows = (9, 240, 1), (10, 120, 2), (11, 480, 3), (12, 119, 9), (13, 481, 9)
    lines = [line(at, "y = f(x)", calls=calls, operator_s=ms * MS) for at, calls, ms in rows]
    (told,) = told_of(heads(lines=lines))
    assert (told["line"], told["evidence"][-1]["calls"]) == (11, 480.0)
    (carried,) = told_of(heads(lines=[line(9, "h = cell(h)", calls=240.0, operator_s=1 * MS)]))
    assert (carried["gain_s"], carried["severity"]) == (None, "medium")


@cases("factor is_found", "1.001 1; 0.999 0")
def test_a_device_is_idle_for_a_fifth_since_the_host_is_late(factor, is_found):
    late_s, same = 2.5 * factor * MS, {"device": "cuda:0", "count": 7}
    parts = ((0.3, "aten::mm in Net.first"), (0.7, "aten::add in Net.last"))
    gaps = [(late_s * part, part, before, "host late") for part, before in parts]
    gaps = rows_of("total_s longest_s before cause", *gaps, (9 * MS, 1, None, "data wait"), **same)
    ran = [("gemm", 30.0, 2 * MS), ("add", 10.0, 1 * MS), ("Memcpy HtoD", 99.0, 9 * MS)]
    launching = {"launching": {"kernels": 40.0, "launches": 50.0, "launch_s": 4e-6}}
    kernels = rows_of("name calls device_s", *ran)
    found = told_of(report_of(device="cuda", parts=launching, gaps=gaps, kernels=kernels))
    assert len(found) == is_found
    for told in found:
        assert of(told, "gain_s module") == near(late_s * 0.8, "Net.last")
        first, *others = told["evidence"]
        expected = near(4e-6, 40.0, None, 3 * MS / 40, late_s * 80)
        assert of(first, "launch_s kernels operators kernel_s idle_share") == expected
        assert [each["gaps"] for each in others] == [7, 7]
        assert links(told) == ["ranges/launches", "ranges/gaps", "ranges/gaps"]
