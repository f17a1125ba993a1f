"""The made-up report in which every view of the page has something, and every link its row."""

from __future__ import annotations

from typing import Any

from tests.support.full_report import on_a_device
from tests.support.overview import add_sources, add_verdict
from tests.support.reports import row

VIEWS = (
    "overview", "modules", "operators", "kernels", "python", "source", "memory", "flops",
    "benchmark", "ranges", "method", "environment", "glossary",
)  # fmt: skip
# Operators that memory and gaps name, but that no row of the made-up operators has.
_OTHERS = ("aten::zeros_like", "aten::relu", "aten::empty", "aten::mm", "aten::item", "aten::add")


def whole() -> dict[str, Any]:
    """The report of a run on a device with a verdict, findings, sources and kernels."""
    report = add_sources(add_verdict(on_a_device()))
    tables = report["tables"]
    tables["kernels"] = [row("kernels", name="gemm", calls=1.0, device_s=1e-4, device="cuda:0",
        module=module, operator="aten::mm") for module in ("Digits.features.0",
        "Digits.classifier.0")]  # fmt: skip
    known = {record["name"] for record in tables["operators"]}
    tables["operators"] += [row("operators", name=name, shapes="[]", calls=1.0, self_s=1e-6,
        total_s=1e-6) for name in (*_OTHERS, "implicit_gemm") if name not in known]  # fmt: skip
    tables["gaps"][-1] |= {"after": "aten::add in (optimizer)", "before": "aten::mm"}
    tables["gaps"][0]["before"] = tables["gaps"][1]["before"] = "aten::add"
    for record in tables["watch"]:
        if record["file"] != "train.py" and not record["file"].startswith("<"):
            record["file"] = "/usr/lib/python3.11/site-packages/" + record["file"]
    slugs = ("data-starved", "forced-synchronisation", "memory-growth")
    for finding, slug in zip(report["findings"], slugs, strict=True):
        finding["slug"] = slug
    report["step_bar"]["parts"][1]["link"] = "python/train.py:61:main"
    return report
