"""Counts of whole models against published ones: every torchvision weight that has one.

torchvision publishes multiply-adds in billions, rounded to three digits after the point, which
it counted with a counter of its own. The models of bench_resnet18.py and bench_efficientnet.py
are compared with torchvision's of the same architecture.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torchvision_macs
from conftest import clean_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not torchvision_macs.is_installed(),
        reason="no torchvision: make test installs it",
    ),
]

# In billions of multiply-adds: half of the last digit that is published.
ROUNDING = 0.0005
WEIGHTS = 166


@pytest.fixture(scope="module")
def counted() -> dict[str, list[dict[str, Any]]]:
    """What the program of that name counts, once for all tests."""
    done = subprocess.run(
        [sys.executable, str(Path(torchvision_macs.__file__))],
        env=clean_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return found


def deviation(row: dict[str, Any], column: str = "macs") -> float:
    """By how much more a count is off than it may be: up to 1 is within 0.0005 G or 0.1 %."""
    allowed = max(ROUNDING, row["published"] / 1000)
    return abs(row[column] - row["published"]) / allowed


def test_every_weight_with_a_published_count_agrees(counted, record_property) -> None:
    rows = [row for row in counted["weights"] if row["published"] is not None]
    assert len(rows) == len({row["name"] for row in rows}) == WEIGHTS
    assert {row["module"] for row in rows} >= {
        *("detection", "optical_flow", "quantization", "segmentation", "video"),
    }
    worst = max(rows, key=deviation)
    print(f"{len(rows)} weights; the worst is {worst}")
    record_property("worst", worst["name"])
    # A thousandth of the last published digit is what binary fractions may be off.
    assert [row for row in rows if abs(row["macs"] - row["published"]) > ROUNDING * 1.001] == []
    assert deviation(worst) <= 1.001


def test_exceptions_are_needed(counted) -> None:
    """With all the boxes that may go on, those that are named would not agree."""
    excepted = [row for row in counted["weights"] if row["all_boxes"] is not None]
    assert {row["name"] for row in excepted} == torchvision_macs.BOXES.keys()
    for row in excepted:
        assert deviation(row, "all_boxes") > 10, row


def test_the_examples_are_the_published_architectures(counted) -> None:
    resnet, efficientnet = counted["examples"]
    assert (resnet["name"], resnet["parameters"]) == ("resnet18", 11_689_512)
    assert (efficientnet["name"], efficientnet["parameters"]) == ("efficientnet_b0", 5_288_548)
    assert resnet["input"] == [1, 3, 1024, 2048]
    assert efficientnet["input"] == [1, 3, 224, 224]
    for row, published in ((resnet, 1.814), (efficientnet, 0.386)):
        assert row["macs_at_224"] == pytest.approx(published, abs=ROUNDING)
        assert row["macs"] == row["their_macs"]
        assert row["shapes"] == row["their_shapes"]
