"""The heaviest rows of a report in the terminal, and its highlights in a line each."""

import re

import pytest

from profstack.report import terminal_tables as module
from profstack.report.screen import Screen
from tests.support.full_report import full
from tests.support.nsys_recordings import fact
from tests.support.rank_reports import of_ranks
from tests.support.reports import build, rows

MIB = 2**20


def printed(report, most=3, *, parts=True):
    """The tables by the heading of their names: the other headings, and the cells by name."""
    screen = Screen(160, colour=False)
    module.print_top_tables(screen, report, most, parts=parts)
    found = {}
    for block in screen.text().strip().split("\n\n"):
        (head, *others), *cells = (re.split("  +", line) for line in block.splitlines())
        found[head] = (others, [tuple(each) for each in cells])
    return found


def _report():
    report = build()
    report["benchmark"]["median_s"] = 0.004
    names = "path depth self_s forward_s calibrated_s"
    modules = rows("modules", names, ("Net", 0, 1e-6, 0.003, 0.0035))
    for at in (2, 5, 3, 4):
        modules += rows("modules", names, (f"Net.{at}", 1, at * 1e-4, None, at * 2e-4))
    modules += rows("modules", names, ("(wait)", 0, 7e-4, 9e-4), ("(loss)", 0, 0.0, 0.0))
    operators = ("mm", 2, 3e-4), ("add", 20_000, 4e-4), ("mm", 3, 2e-4)
    engine = ("step", "~", "<method 'run' of 'torch._C.Engine' objects>", 9e-4)
    functions = ("step", "a/f.py", "f", 3e-4), engine, ("startup", "a/f.py", "begin", 5.0)
    same = {"line": 7, "calls": 5, "total_s": 0.5}
    report["tables"] |= {
        "modules": modules,
        "operators": rows("operators", "name calls self_s", *operators, calibrated_s=7e-5),
        "functions": rows("functions", "phase file name self_s", *functions, **same),
    }
    return report


def test_the_heaviest_rows_stand_with_their_figures():
    assert printed(_report()) == {
        "module": (["forward", "self", "calibrated", "share"], [
            ("Net", "3.00 ms", "1.00 µs", "3.50 ms", "87.5 %"),
            ("Net.5", "–", "500 µs", "1.00 ms", "25.0 %"),
            ("Net.4", "–", "400 µs", "800 µs", "20.0 %"),
            ("Net.3", "–", "300 µs", "600 µs", "15.0 %"), ("(wait)", "–", "700 µs", "–", "–"),
        ]),
        "operator": (["calls", "self", "calibrated"], [
            ("mm", "5", "500 µs", "140 µs"), ("add", "20.0 k", "400 µs", "70.0 µs")
        ]),
        "function": (["calls", "self"], [
            ("torch._C.Engine.run", "5", "900 µs"), ("f", "f.py:7", "5", "300 µs")
        ]),
    }  # fmt: skip
    assert [name for name, *_ in printed(_report(), 1)["operator"][1]] == ["mm"]
    assert "(wait)" not in str(printed(_report(), parts=False)["module"])


def one(report, begins):
    """The highlight that begins so, without its beginning."""
    found = [line for line in module.highlights(report) if line.startswith(begins)]
    return found[0].removeprefix(begins) if found else "none"


def test_owners_of_the_step_and_its_threads():
    assert module.highlights(build()) == []
    report = full()
    shares = {"(a)": 0.0157, "(b)": 0.0006, "(c)": 0.0004, "(d)": None}
    unowned = [{"path": path, "share": share} for path, share in shares.items()]
    report["attribution"] |= {"owned_share": 0.9724, "unowned": unowned}
    told = "97.2 % of a step's time has one; not (a) 1.6 %, (b) 0.1 %"
    assert one(report, "owners: ") == told
    facts = {"reason": None, "sentences": ["one", "two", "three"]}
    assert one(report | {"processes": facts}, "threads: ") == "one; two"
    record = report["tables"]["flops"][0]
    record["uncounted"] = [{"operator": "aten::fft"}, {"operator": "aten::mul"}]
    told = "2.76 M FLOP forward, 5.16 M backward per step (FlopCounterMode)"
    lost = "; without a formula: aten::fft, aten::mul"
    assert one(report, "operations: ") == told + lost


def _held(device, **sizes):
    figures = ((kind, size * MIB) for kind, size in sizes.items())
    return rows("memory_owners", "kind peak_bytes", *figures, device=device)


def test_the_peak_of_the_fullest_device_is_told_by_kind():
    report = build()
    tables, begins = report["tables"], "bytes at the peak of a step"
    assert module.peak_bytes(report) is None
    tables["memory_owners"] = _held("cpu", a=181, b=88, c=44, d=36, e=21, f=20, g=3)
    told = "393 MiB, a 181 MiB, b 88.0 MiB, c 44.0 MiB, d 36.0 MiB, e 21.0 MiB"
    assert (one(report, f"{begins}: "), module.peak_bytes(report)) == (told, 393 * MIB)
    figures = [("cpu", "a", "Net.2", 96 * MIB), ("gpu", "a", "Net.3", 900 * MIB)]
    figures += [("cpu", "b", None, 95 * MIB), ("cpu", "b", None, None)]
    tables["peak_holders"] = rows("peak_holders", "device kind module bytes", *figures)
    assert one(report, "bytes").endswith("; the largest holder: a of Net.2, 96.0 MiB")
    tables["memory_owners"] += _held("gpu", x=984, y=11, z=5)
    tables["peak_holders"] = []
    assert one(report, f"{begins} on gpu: ") == "1000 MiB, x 984 MiB, y 11.0 MiB"


def _import(own=(), modules=(), **facts):
    report = build()
    report["nsys"] = fact(**{"missing": {}, "other_processes": 0, **facts})
    names = ("step", "device", "kernels", "idle_s", "wall_s")
    tables = report["tables"]
    tables["nsys_steps"] = [dict(zip(names, each, strict=True)) for each in own]
    tables["nsys_modules"] = rows("nsys_modules", "torch_calls disagreement", *modules, path="m")
    return report


def test_an_import_has_a_line_with_its_medians():
    steps = [
        (1, "0", 46, 0.003, 0.014), (2, "0", 50, 0.009, 0.02), (3, "0", 47, 0.004, 0.015),
        (4, "0", None, 0.5, 0.9), (5, "0", 900, None, 0.9)]  # fmt: skip
    told = "nsys: 12 steps of out.sqlite (nsys 2024.6.2.225)"
    known = f"{told}; 47 kernels a step; no kernel for 4.00 ms of 15.0 ms"
    assert module.nsys_line(_import(steps)) == known
    whole = "nsys: the whole capture (190 ms, no step range) of out.sqlite"
    assert module.nsys_line(_import(steps=0)).startswith(whole)
    modules = [(3.0, None), (None, None), (2.0, "1 ms against 3 ms")]
    words = "; differs from the torch layer in 1 of 3 modules"
    assert module.nsys_line(_import([], modules)) == told + words
    # A step has the kernels of all its devices.
    steps = [(at, device, 10 * at + 3, 0.001 * at, 0.01) for at in (1, 2, 4) for device in "01"]
    known = "; 46 kernels a step; no kernel for 2.00 ms of 10.0 ms, on each of 2 devices"
    assert module.nsys_line(_import(steps)) == told + known


@pytest.mark.parametrize("count", [8, 9])
def test_ranks_begin_with_the_straggler_and_say_how_many_are_left(count):
    report = of_ranks(count, straggler=0, missing=(1,))
    screen = Screen(100, colour=False)
    module.print_ranks(screen, report)
    head, *rows = screen.text().splitlines()[1:]
    assert head.split() == ["rank", "step", "own", "waits", "late", "largest", "part", "place"]
    straggler = "0 50.0 ms 44.0 ms 6.00 ms 33.0 ms data wait +31.0 ms train.py:61"
    assert " ".join(rows[0].split()) == straggler
    assert " ".join(rows[1].split()) == "1 – – – – it left no report –"
    latest = [str(rank) for rank in range(count - 1, 1, -1)][:6]
    assert [line.split()[0] for line in rows[2:8]] == latest
    left = [f"{count - 8} more: profstack show --table ranks"] if count > 8 else []
    assert [line for line in rows[2:] if "more" in line] == left
