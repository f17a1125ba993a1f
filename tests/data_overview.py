"""Made-up additions to a report: a verdict with its bar, findings of every kind, sources, parts of
lines by module; and the same with names that try to be markup."""

from __future__ import annotations

from typing import Any

from data_report import HOSTILE, row

MIB = 2**20
LENGTH = 120
# line of train.py: module, python, operators, backward; in microseconds
_PARTS = {
    45: [
        ("Digits", 110, 0, 0), ("Digits.features.0", 40, 680, 0),
        ("Digits.classifier.0", 60, 500, 0),
    ],
    66: [(None, 20, 20, 0), ("Digits", 0, 100, 0)],
    68: [
        (None, 40, 0, 0), ("Digits.features.0", 0, 1000, 1000),
        ("Digits.classifier.0", 0, 700, 700), ("(gradient accumulation)", 0, 40, 40),
    ],
}  # fmt: skip


def finding(slug: str, title: str, **values: Any) -> dict[str, Any]:
    """A finding with what every one has."""
    empty = dict.fromkeys(("gain_s", "gain_is", "file", "line", "module", "gain_reason"))
    lists: dict[str, Any] = {"layers": ["torch"], "evidence": [], "advice": "Mend it."}
    return {"slug": slug, "title": title, "severity": "medium", **empty, **lists, **values}


def add_verdict(report: dict[str, Any]) -> dict[str, Any]:
    """A verdict by shares, the bar of the step, and findings with and without a gain."""
    median = report["benchmark"]["median_s"]
    report["verdict"] = {
        "slug": "input-bound",
        "sentence": "Input-bound: 45 % of a clean step waits for the next batch.",
        "margin": 0.15,
        "evidence": [
            {"test": "input-bound", "share": 0.45, "threshold_share": 0.3, "time_s": 0.45 * median,
             "link": "modules/(wait)"},
            {"test": "python-bound", "share": 0.2, "threshold_share": 0.4, "time_s": 0.2 * median},
            {"test": "compute-bound", "share": None, "threshold_share": 0.4},
        ],
    }  # fmt: skip
    shares = {"data wait": 0.45, "Python": 0.2, "forward": 0.15, "backward": 0.19}
    links = ("modules/(wait)", "python/train.py:10:main", "modules/Digits", "modules/Digits")
    parts = [
        {"name": name, "seconds": share * median, "share": share, "link": link, "is": "calibrated"}
        for (name, share), link in zip(shares.items(), links, strict=True)
    ]
    parts.append({"name": "other", "seconds": 0.01 * median, "share": 0.01, "link": None})
    report["step_bar"] = {"median_s": median, "parts": parts, "reason": None}
    report["findings"] = [
        finding("input-starved", "The step waits for its data", severity="high",
                gain_is="estimated", gain_s=0.4 * median, file="train.py", line=22,
                advice="Load in 2 workers.",
                evidence=[{"wait_s": 0.45 * median, "link": "modules/(wait)"}]),
        finding("sync", "A copy to the host waits", gain_s=0.05 * median, gain_is="measured",
                module="Digits.classifier.0",
                evidence=[{"operator": "aten::item", "calls": number, "total_s": 1e-5,
                           "limits_agree": False,
                           "link": "operators/aten::addmm"} for number in range(5)]),
        finding("memory-growth", "Memory grows with every step", severity="low", layers=["memory"],
                gain_reason="it costs memory, not time",
                evidence=[{"growth_bytes": 3 * MIB, "link": "source/train.py:68"}]),
    ]  # fmt: skip
    return report


def add_sources(report: dict[str, Any]) -> dict[str, Any]:
    """The text of train.py, the parts of its lines by module, and a file without text."""
    known = {
        record["line"]: record["source"]
        for record in report["tables"]["lines"]
        if record["file"] == "train.py"
    }
    text = "\n".join(known.get(line) or f"# line {line}" for line in range(1, LENGTH + 1)) + "\n"
    report["sources"] = [
        {"file": "train.py", "text": text, "bytes": len(text), "reason": None},
        {"file": "augment.py", "text": None, "bytes": 10**6, "reason": "it has more than 200 kB"},
    ]
    report["tables"]["module_lines"] = [
        row("module_lines", module=module, file="train.py", line=line, calls=float(not number),
            python_s=python * 1e-6, operator_s=operators * 1e-6, backward_s=backward * 1e-6)
        for line, parts in _PARTS.items()
        for number, (module, python, operators, backward) in enumerate(parts)
    ]  # fmt: skip
    return report


def make_hostile(report: dict[str, Any]) -> dict[str, Any]:
    """Names of files, functions, modules and arguments that try to be markup."""
    report["argv"] = [HOSTILE]
    report["verdict"]["sentence"] = HOSTILE
    report["verdict"]["evidence"] += [{"name": HOSTILE, "file": HOSTILE, "line": 3}, HOSTILE]
    report["findings"] += [
        finding(HOSTILE, HOSTILE, file=HOSTILE, line=3, module=HOSTILE, advice=HOSTILE,
                layers=[HOSTILE], evidence=[{"name": HOSTILE, "link": f"source/{HOSTILE}:3"}]),
    ]  # fmt: skip
    report["sources"].append({"file": HOSTILE, "text": HOSTILE, "bytes": 9, "reason": None})
    report["tables"]["lines"].append(
        row("lines", file=HOSTILE, line=1, source=HOSTILE, own=True, calls=1.0, python_s=1.0,
            operator_s=1.0, reason=HOSTILE)
    )  # fmt: skip
    report["tables"]["module_lines"].append(
        row("module_lines", module=HOSTILE, file=HOSTILE, line=1, calls=1.0, python_s=1.0,
            operator_s=1.0, backward_s=0.0)
    )  # fmt: skip
    record = row("functions", phase="step", file=HOSTILE, line=1, name=HOSTILE, calls=1.0)
    report["tables"]["functions"].append(record | {"self_s": 9.0, "total_s": 9.0})
    report["layers"][0] |= {"status": "failed", "reason": HOSTILE, "command": HOSTILE}
    return report
