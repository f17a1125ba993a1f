"""The answer of imported files: which function, line or owner has most, in words with figures."""

from profstack.findings.imported import answer
from tests.support.findings import built_in, completed, function
from tests.support.tables import rows_of


def report(tables=None, layer_tables=None):
    layers = [{"name": name, "rows": rows} for name, rows in (layer_tables or {}).items()]
    return completed({"layer_tables": layers, "tables": tables or {}})


def test_the_function_with_most_time_is_named_with_its_caller():
    name = "<method 'read' of '_io.FileIO' objects>"
    rows = [function("<module>", 1.0, 20.0, line=1), function("main", 0.5, 19.0, line=2)]
    rows += [built_in(name, 6.0, calls=1200.0)]
    rows += [function("load", 2.5, 8.5, file="/home/u/data.py", line=33)]
    # An imported file does not tell whose its functions are. More than half is of one caller.
    rows = [each | {"own": None} for each in rows]
    for load_s, caller in ((3.1, ", mostly called by load (data.py:33)"), (2.9, "")):
        callers = ("/home/u/data.py:33(load)", load_s), ("/home/u/a.py:2(b)", 2.0)
        calls = rows_of("caller self_s", *callers, callee=f"~:0({name})")
        assert answer(report({"functions": rows, "calls": calls})) == (
            f"60 % of the profiled 10.0 s is {name} itself, in its 1.20 k calls{caller}. "
            "With all that it calls, load (data.py:33) takes 85 %."
        )
    assert answer(report()) is None


def test_samples_name_the_function_and_the_scripts_heaviest_line():
    rows = [{"file": "/home/u/a.py", "line": 3, "name": "mix", "self_share": 0.4, "kind": None}]
    made = report({"watch": rows}) | {"watch": {"watched_s": 12.0}}
    assert answer(made).startswith("40 % of the sampled 12.0 s is mix")
    assert "heaviest line" not in answer(made)
    made["tables"]["lines"] = [{"file": "/home/u/a.py", "line": 9, "watch_share": 0.3}]
    assert "the script's heaviest line is a.py:9 with 30 %" in answer(made)


MIB = 1 << 20


def line(device, mib, number=41.0, part="taken in forward"):
    return {
        "device": device, "file": "/home/u/model.py", "line": number, "function": "attend",
        "part": part, "peak_bytes": mib * MIB,
    }  # fmt: skip


def segment(device, reserved, gaps):
    return {"device": device, "reserved_bytes": reserved * MIB, "gap_bytes": gaps * MIB}


def test_a_snapshot_names_the_fullest_device_its_owner_and_its_gaps():
    lines = [line("cuda:0", 90), line("cuda:1", 60)]
    lines.append(line("cuda:1", 40, number=12.0, part="taken elsewhere"))
    held = "cuda:1 held at most 100 MiB in tensors, 60 % of it from attend (model.py:41), taken in "
    for gaps, words in ((20, ""), (21, " 10 % of the 200 MiB that the allocator has reserved is")):
        segments = [segment("cuda:0", 500, 400), segment("cuda:1", 200, gaps)]
        found = answer(report({}, {"snapshot_lines": lines, "snapshot_segments": segments}))
        assert found.startswith(f"{held}forward.{words}")
        assert found.endswith("gaps between blocks." if words else "forward.")


def test_a_trace_says_how_long_its_steps_took_and_what_was_largest():
    # The shapes of one operator are rows of their own.
    operators = [("aten::mm", 0.002), ("aten::add", 0.003), ("aten::mm", 0.0022), ("gelu", None)]
    tables = {
        "steps": [{"wall_s": wall} for wall in (0.001, 0.003, 0.01, None)],
        "operators": [{"name": name, "self_s": self_s} for name, self_s in operators],
        "modules": [{"path": "Net", "self_s": 0.001}, {"path": "(optimizer)", "self_s": 0.003}],
        "kernels": [{"name": "gemm", "device_s": 0.9}, {"name": "copy", "device_s": 0.1}],
    }
    made = {**report(tables), "script": None, "imports": [{"file": "a.json"}, {"file": "b.json"}]}
    slowed = "all times are as torch.profiler slowed them. "
    begin = f"a.json, b.json: 3 steps of 3.00 ms (median); {slowed}"
    parts = (
        "The largest part is (optimizer), with 75 % of the steps' time. "
        "The largest operator is aten::mm, with 58 % of the operators' time."
    )
    kernel = "The largest kernel is gemm, with 90 % of the kernels' time. "
    assert answer(made) == begin + kernel + parts
    assert answer({**made, "script": "train.py"}) is None
