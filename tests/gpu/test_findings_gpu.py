"""Planted mistakes are found on a GPU, and the same loop without them has none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_programs import NEEDS_GPU, WORKLOADS, reported

pytestmark = [*NEEDS_GPU, pytest.mark.slow]

SLUGS = {
    "item": "forced-synchronisation",
    "pageable": "host-to-device-copy",
    "float32": "float32-matmul-without-tf32",
}


def found(folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    # Whether TF32 would help is told by peaks, which are measured for this.
    report = reported(folder, str(WORKLOADS), *options, PROFSTACK_PEAKS="1")
    return {finding["slug"]: finding for finding in report["findings"]}


@pytest.mark.parametrize("model", ["mlp", "small"])
def test_nothing_planted_nothing_found(tmp_path: Path, model: str) -> None:
    assert not found(tmp_path, model).keys() & set(SLUGS.values())


@pytest.mark.parametrize(
    ("model", "mistake"), [("small", "item"), ("mlp", "pageable"), ("mlp", "float32")]
)
def test_what_is_planted_is_found_alone(tmp_path: Path, model: str, mistake: str) -> None:
    findings = found(tmp_path, model, "--mistake", mistake)
    assert findings.keys() & set(SLUGS.values()) == {SLUGS[mistake]}
    finding = findings[SLUGS[mistake]]
    assert finding["gain_s"] is None or finding["gain_s"] > 0
    if mistake == "item":
        text = WORKLOADS.read_text("utf-8").splitlines()[finding["line"] - 1]
        assert ".item()" in text
    if mistake == "pageable":
        text = WORKLOADS.read_text("utf-8").splitlines()[finding["line"] - 1]
        assert ".to(" in text
