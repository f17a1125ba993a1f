"""The device's memory: the step's peak, what holds it, and a history that opens in memory_viz."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from gpu_programs import NEEDS_GPU, module, program, python, reported_program

pytestmark = NEEDS_GPU

WIDTH = 2048
WEIGHTS = 2 * (WIDTH * WIDTH + WIDTH) * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    return reported_program(folder, program(width=WIDTH))


def on_device(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    rows = report["tables"]["memory_owners"]
    return {row["kind"]: row for row in rows if row["device"] == "cuda:0"}


def test_the_peak_is_torchs_own(report: dict[str, Any]) -> None:
    peak = sum(row["peak_bytes"] for row in on_device(report).values())
    assert peak == pytest.approx(report["said"]["peak"], rel=0.02)


def test_profstack_takes_no_memory_of_the_device(report: dict[str, Any], folder: Path) -> None:
    alone = python(folder, "program.py")
    assert f'"peak": {report["said"]["peak"]},' in alone


def test_parameters_gradients_and_state_are_told_apart(report: dict[str, Any]) -> None:
    kinds = on_device(report)
    for kind in ("parameters", "gradients", "optimizer state"):
        # Blocks are multiples of 512 bytes, of which a bias takes several.
        assert kinds[kind]["largest_bytes"] == pytest.approx(WEIGHTS, rel=0.01), kind


def test_a_modules_peak_is_its_activations(report: dict[str, Any]) -> None:
    assert module(report, "Net.wide")["device_peak_bytes"] >= WIDTH * WIDTH * 4
    assert module(report, "Net.wide")["device_net_bytes"] == pytest.approx(
        WIDTH * WIDTH * 4, rel=0.05
    )


def test_the_series_has_the_device(report: dict[str, Any]) -> None:
    rows = [row for row in report["tables"]["memory"] if row["device_allocated_bytes"] is not None]
    assert rows
    for row in rows:
        assert 0 <= row["device_allocated_bytes"] <= row["device_reserved_bytes"]
    assert max(row["device_allocated_bytes"] for row in rows) <= report["said"]["peak"]


def test_the_history_is_one_that_memory_viz_opens(report: dict[str, Any], folder: Path) -> None:
    layer = next(layer for layer in report["layers"] if layer["name"] == "memory")
    paths = [artifact["path"] for artifact in layer["artifacts"]]
    (snapshot,) = [path for path in paths if path.endswith(".pickle")]
    content = pickle.loads((folder / "rec" / snapshot).read_bytes())
    assert content["segments"]
    assert any(content["device_traces"])
