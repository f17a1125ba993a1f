"""Made-up reports for rules: what a test does not say is null, or empty."""

from types import SimpleNamespace

from profstack.storage.schema import report as schema

# Parts with what they have where nothing is said.
_PARTS = {"run": (schema.Run, {}), "step": (schema.StepFacts, {"count": 0})}
_PARTS["benchmark"] = (schema.Benchmark, {"n": 0, "counted_steps": []})
_PARTS["processes"] = (schema.Processes, {"sentences": []})
_PARTS["launching"] = (schema.LaunchMeans, {"steps": 0})
_NULLABLE = {"attribution": schema.Attribution, "roofline": schema.Roofline}
_LISTS = ["run_bar", "argv", "slices", "probe_effect", "layers", "findings", "warnings", "sources"]
_SETUP = {"steps": 0, "reason": None, "tf32_products": None, "tf32_convolutions": None}
# Whose files are the user's.
PLACES = {"roots": ["/app/"], "libraries": ["/lib/"], "profstack": ["/lib/"], "working": "/app/"}
PLACES |= {"text": False, "sep": "/"}
TRAIN = "/app/train.py"
LOADER = "/lib/torch/utils/data/dataloader.py"
MS = 1e-3
# A clean step, and the torch layer's longer one: its times shrink to four fifths.
STEP_S, TRACED_S, CALIBRATION = 0.010, 0.0125, 0.8


def row(table, **known):
    """A row of a table with all its columns; of a step, where the table has phases."""
    empty = dict.fromkeys(schema.REPORT[table].names)
    return empty | ({"phase": "step"} if "phase" in empty else {}) | known


def completed(report):
    """A report with all parts, all tables and all columns of its rows."""
    made = {"environment": {}, "setup": _SETUP, "status_reason": None, "nsys": None}
    made |= {"requests": None, "tokens": None, "watch": None}
    made |= {name: [] for name in _LISTS} | dict(report)
    for name, (kind, known) in _PARTS.items():
        made[name] = dict.fromkeys(kind.__annotations__) | known | report.get(name, {})
    for name, kind in _NULLABLE.items():
        part = report.get(name)
        made[name] = None if part is None else dict.fromkeys(kind.__annotations__) | part
    tables, names = report.get("tables", {}), schema.REPORT
    made["tables"] = {name: [row(name, **each) for each in tables.get(name, ())] for name in names}
    return made


def report_of(*, step_s=STEP_S, trusted=True, device="cpu", parts=None, **tables):
    """A report of these tables whose traced steps take a quarter longer than the clean ones.

    Where they are not `trusted` the torch layer slowed them too much.
    """
    parts = dict(parts or {})
    mark = {"mode": "pipelined", "median_s": step_s, "n": 50, "counted_steps": [3]}
    mark |= parts.pop("benchmark", {})
    traced = {"step_s": TRACED_S, "clean_median_s": step_s}
    traced["calibrated_owned_s"] = STEP_S if trusted else None
    environment = {"device": device, **parts.pop("environment", {})}
    known = {"benchmark": mark, "attribution": traced, "environment": environment}
    return completed({**known, "tables": tables, **parts})


def function(name, self_s, total_s=None, **more):
    """A row of `functions`: of the user's own in train.py, unless told otherwise."""
    times = {"self_s": self_s, "total_s": self_s if total_s is None else total_s}
    known = {"file": TRAIN, "line": 5, "name": name, "calls": 2.0, **times}
    made = row("functions", **known | {"calibrated_s": self_s * CALIBRATION} | more)
    return made | {"own": made["file"].startswith("/app/")}


def built_in(name, self_s, **more):
    return function(name, self_s, file="~", line=0, **more)


def call(caller, callee, total_s=0.0, **more):
    """A row of `calls` between two rows of `functions`."""
    places = ("{file}:{line}({name})".format(**each) for each in (caller, callee))
    known = dict(zip(("caller", "callee"), places, strict=True))
    return row("calls", **known | {"calls": 2.0, "total_s": total_s} | more)


def line(number, source="", **figures):
    """A row of `lines`: the user's own, run once a step."""
    known = {"file": TRAIN, "line": number, "source": source, "own": True, "calls": 1.0}
    return row("lines", **known | {"python_s": 0.0, "operator_s": 0.0} | figures)


# What names a row; all else in it are figures.
_NAMES = ["phase", "file", "name", "own", "path", "depth", "type", "module", "source", "device"]
_NAMES += ["operator", "shapes", "kind"]


def asked(family, recording, report, *tables):
    """The findings of a family: the same with rows in these tables that have names alone."""
    found, unknown = family(recording, report), dict(report["tables"])
    for table in tables:
        rows = unknown[table]
        nulled = [{key: each[key] if key in _NAMES else None for key in each} for each in rows]
        for at, each in enumerate(nulled):
            each |= {"line": 1000 + at} if "line" in each else {}
            each |= {"path": each["path"] + "~"} if table == "modules" else {}
        unknown[table] = [*rows, *nulled]
    assert family(recording, {**report, "tables": unknown}) == found
    return found


def recorded(facts=None, **selections):
    """A recording of which rules ask facts and selections alone, these by layer and mode.

    A selection is a pair of its steps and its seconds, as in `cprofile_timed=(4, 0.05)`.
    """
    known = {name: SimpleNamespace(steps=n, wall_s=s) for name, (n, s) in selections.items()}
    select = lambda layer, modes: known.get(f"{layer}_{modes[0][0]}")  # noqa: E731
    return SimpleNamespace(facts=dict(facts or {}), select=select)


def links(finding):
    """The links of a finding's evidence."""
    return [each["link"] for each in finding["evidence"] if "link" in each]
