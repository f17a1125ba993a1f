"""Made-up comparisons of two sides: small with every part, and of hostile names."""

import copy

from tests.support.made_up import made_up
from tests.support.reports import HOSTILE

_MADE = made_up("comparisons")
# Name, seconds before and after, whether they differ by more than noise, cause, file, line.
STEP_PARTS = _MADE["step"]


def change(before, after, told=None, **more):
    """One figure on both sides; where more than noise is told, with an interval."""
    known = before is not None and after is not None
    difference = (after or 0.0) - (before or 0.0)
    made = {
        "before": before, "after": after, "difference": difference,
        "low": None if told is None else difference - abs(difference) / 7,
        "high": None if told is None else difference + abs(difference) / 9,
        "ratio": after / before if known and before else None, "beyond_noise": told,
        "reason": None if told is not None else "one recording a side",
    }  # fmt: skip
    return made | more


def table_row(key, figures, status="both", **more):
    """A row of a table, matched as `status` says."""
    made = dict.fromkeys(("was", "file", "line")) | {"calls_before": 1.0, "calls_after": 1.0}
    return made | {"key": key, "status": status, "change": figures} | more


def table(name, title, unit, rows, **more):
    """A table of a comparison, the largest difference first."""
    rows = sorted(rows, key=lambda row: -abs(row["change"]["difference"] or 0))
    return {"name": name, "title": title, "unit": unit, "rows": rows, "left_out": 0,
            "reason": None if rows else "not recorded on both sides"} | more  # fmt: skip


def side(label, medians_s):
    """The facts of one side."""
    folders = [f"profstack-runs/{label}-{at:04}" for at in range(1, len(medians_s) + 1)]
    made = {"label": label, "folders": folders, "script": "train.py", "commit": f"{label}c0ffee"}
    made |= {"recordings": len(medians_s), "steps": 120 * len(medians_s)}
    return made | {"medians_s": medians_s}


def _parts(of):
    return [
        {"of": of, "name": name, "before_s": before, "after_s": after,
         "difference_s": after - before, "low_s": after - before - before / 30,
         "high_s": after - before + before / 24, "beyond_noise": told, "cause": cause, "file": file,
         "line": line, "places": [{"file": file, "line": line, "cause": cause}]
         if file or cause else []}
        for name, before, after, told, cause, file, line in _MADE[of]
    ]  # fmt: skip


def _tables():
    modules = [table_row(path, change(*of), **more) for path, *of, more in _MADE["modules"]]
    functions = [
        table_row(f"{name} (loader.py:{line})", change(*of), file="/app/loader.py", line=line)
        for name, line, *of in _MADE["functions"]
    ]
    product = table_row("aten::mm [[64, 64], [64, 8]]", change(0.0004, 0.00041, None))
    held = table_row("activations", change(2**20, 3 * 2**20, True))
    rate = table_row("items per second", change(11_267.0, 15_238.0, True))
    return [
        table("modules", "Modules", "s", modules),
        table("operators", "Operators", "s", [product]),
        table("kernels", "Kernels", "s", [], reason="this machine has no accelerator"),
        table("functions", "Functions", "s", functions, left_out=311),
        table("memory", "Memory at the peak", "bytes", [held]),
        table("throughput", "Throughput", "items/s", [rate]),
    ]


def comparison(**changed):
    """A comparison with every part: the second side is faster, and not all was equal."""
    made = copy.deepcopy(_MADE["whole"]) | {"parts": _parts("step") + _parts("run")}
    made["before"] = side("main", [0.0028, 0.00284, 0.00291])
    made["after"] = side("HEAD", [0.00209, 0.00213, 0.00214])
    made["tables"] = _tables()
    step, memory = made["gates"]
    step["change"] = change(0.00284, 0.00213, True)
    memory["change"] = change(2**20, 3 * 2**20, True)
    return made | changed


def hostile():
    """The same with a hostile name wherever a program could have given one."""
    made = comparison()
    for name in ("before", "after"):
        made[name] |= {"label": HOSTILE, "script": HOSTILE, "commit": HOSTILE, "folders": [HOSTILE]}
    made["verdict"] |= {"sentence": HOSTILE, "action": HOSTILE}
    made["inequalities"][0] |= {"text": HOSTILE, "before": HOSTILE, "after": HOSTILE}
    place = {"cause": HOSTILE, "file": HOSTILE, "line": 3}
    made["parts"][0] |= {"name": HOSTILE, **place, "places": [place, place]}
    made["findings"][0] |= {"title": HOSTILE, "slug": HOSTILE, "file": HOSTILE}
    made["gates"][0] |= {"rule": HOSTILE, "text": HOSTILE, "file": HOSTILE}
    for each in made["tables"]:
        for row in each["rows"][:1]:
            row |= {"key": HOSTILE, "was": HOSTILE, "status": "moved", "file": HOSTILE, "line": 3}
    made["tables"][2]["reason"] = HOSTILE
    return made
