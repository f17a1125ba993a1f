"""Device kernels find the modules that launched them, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_programs import NEEDS_GPU, module, program, reported_program

pytestmark = NEEDS_GPU


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return reported_program(tmp_path_factory.mktemp("kernels"), program())


def test_every_layer_is_recorded(report: dict[str, Any]) -> None:
    lacking = {
        layer["name"]: (layer["status"], layer["reason"])
        for layer in report["layers"]
        if layer["status"] not in ("recorded", "emitted")
    }
    assert not lacking
    assert report["environment"]["device"] == "cuda"


def test_nearly_all_device_time_has_an_owner(report: dict[str, Any]) -> None:
    kernels = report["tables"]["kernels"]
    total = sum(row["device_s"] for row in kernels)
    owned = sum(row["device_s"] for row in kernels if row["module"] is not None)
    assert total > 0
    assert owned >= 0.95 * total
    assert {row["device"] for row in kernels} == {"cuda:0"}


def test_products_are_the_modules_that_make_them(report: dict[str, Any]) -> None:
    wide, out = module(report, "Net.wide"), module(report, "Net.out")
    for row in (wide, out):
        assert row["forward_device_s"] > 0
        assert row["backward_device_s"] > 0
    # The same products forward; the inputs of the first one need no gradient.
    assert wide["forward_device_s"] == pytest.approx(out["forward_device_s"], rel=0.3)
    ratio = out["backward_device_s"] / out["forward_device_s"]
    assert 1.4 < ratio < 3.0
    assert wide["backward_device_s"] < 0.8 * out["backward_device_s"]
    assert module(report, "(optimizer)")["forward_device_s"] > 0


def test_a_module_holds_what_is_inside(report: dict[str, Any]) -> None:
    whole, wide, out = (module(report, path) for path in ("Net", "Net.wide", "Net.out"))
    for column in ("forward_device_s", "backward_device_s"):
        assert whole[column] >= wide[column] + out[column]


def test_busy_time_is_the_kernels_time(report: dict[str, Any]) -> None:
    kernels = [
        row
        for row in report["tables"]["kernels"]
        if not row["name"].startswith(("Memcpy", "Memset"))
    ]
    rows = report["tables"]["launches"]
    busy = sum(row["device_busy_s"] for row in rows) / len(rows)
    # One stream: nothing runs beside another.
    assert sum(row["device_s"] for row in kernels) == pytest.approx(busy, rel=0.1)
    assert report["launching"]["kernels"] == pytest.approx(
        sum(row["calls"] for row in kernels), rel=0.2
    )
    assert all(row["launched_by"] == "runtime calls" for row in rows)
