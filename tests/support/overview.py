"""Made-up additions to a report: a verdict with its bar, findings of every kind, sources, and
parts of lines by module."""

from tests.support.made_up import made_up
from tests.support.reports import row
from tests.support.tables import rows_of

MIB = 2**20
LENGTH = 120


def finding(slug, title, **values):
    """A finding with what every one has."""
    gains = ("gain_s", "gain_is", "gain_reason", "run_s", "run_gain_s", "run_gain_is")
    empty = dict.fromkeys((*gains, "file", "line", "module"))
    lists = {"layers": ["torch"], "evidence": [], "advice": "Mend it."}
    return {"slug": slug, "title": title, "severity": "medium", **empty, **lists, **values}


def add_verdict(report):
    """A verdict by shares, the bar of the step, and findings with and without a gain."""
    median = report["benchmark"]["median_s"]
    tests = [("input-bound", 0.45, 0.3), ("python-bound", 0.2, 0.4), ("compute-bound", None, 0.4)]
    evidence = rows_of("test share threshold_share", *tests)
    for each in evidence[:2]:
        each["time_s"] = each["share"] * median
    evidence[0]["link"] = "modules/(wait)"
    sentence = "Input-bound: 45 % of a clean step waits for the next batch."
    report["verdict"] = {"slug": "input-bound", "sentence": sentence, "margin": 0.15}
    report["verdict"]["evidence"], report["verdict"]["sureness"] = evidence, "likely"
    parts = [("data wait", 0.45, "modules/(wait)"), ("Python", 0.2, "python/train.py:10:main")]
    parts += [("forward", 0.15, "modules/Digits"), ("backward", 0.19, "modules/Digits")]
    parts = rows_of("name share link", *parts, ("other", 0.01, None), **{"is": "calibrated"})
    parts = [part | {"seconds": part["share"] * median} for part in parts]
    report["step_bar"] = {"median_s": median, "parts": parts, "reason": None}
    copy = {"operator": "aten::item", "total_s": 1e-5, "limits_agree": False}
    copy["link"] = "operators/aten::addmm"
    report["findings"] = [
        finding("input-starved", "The step waits for its data", severity="high",
                gain_is="estimated", gain_s=0.4 * median, file="train.py", line=22,
                advice="Load in 2 workers.",
                evidence=[{"wait_s": 0.45 * median, "link": "modules/(wait)"}]),
        finding("sync", "A copy to the host waits", gain_s=0.05 * median, gain_is="measured",
                module="Digits.classifier.0", evidence=[copy | {"calls": n} for n in range(5)]),
        finding("memory-growth", "Memory grows with every step", severity="low", layers=["memory"],
                gain_reason="it costs memory, not time",
                evidence=[{"growth_bytes": 3 * MIB, "link": "source/train.py:68"}]),
    ]  # fmt: skip
    return report


def add_sources(report):
    """The text of train.py, the parts of its lines by module, and a file without text."""
    lines = [record for record in report["tables"]["lines"] if record["file"] == "train.py"]
    known = {record["line"]: record["source"] for record in lines}
    text = "".join(f"{known.get(line) or f'# line {line}'}\n" for line in range(1, LENGTH + 1))
    report["sources"] = [
        {"file": "train.py", "text": text, "bytes": len(text), "reason": None},
        {"file": "augment.py", "text": None, "bytes": 10**6, "reason": "it has more than 200 kB"},
    ]
    report["tables"]["module_lines"] = [
        row("module_lines", module=module, file="train.py", line=int(line), calls=float(not number),
            python_s=python * 1e-6, operator_s=operators * 1e-6, backward_s=backward * 1e-6)
        for line, parts in made_up("overview")["parts"].items()
        for number, (module, python, operators, backward) in enumerate(parts)
    ]  # fmt: skip
    return report
