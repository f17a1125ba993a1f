"""Counts of whole models against those that torchvision published, with a counter of its own."""

import json
import runpy

import pytest
import torch

from tests.support import torchvision_macs
from tests.support.processes import CHECKOUT, run_python

# Of billions of multiply-adds: half of the last digit, and what binary fractions may be off.
ROUNDING = 0.0005 * 1.001


@pytest.mark.skipif(not torchvision_macs.is_installed(), reason="make test installs torchvision")
def test_models_of_every_file_have_their_published_count():
    rows = json.loads(run_python("-W", "ignore", torchvision_macs.__file__).stdout)
    assert len(rows) >= 23
    assert {row["module"] for row in rows} >= {
        *("resnet", "swin_transformer", "vision_transformer"),
        *("optical_flow", "quantization", "segmentation", "video"),
    }
    assert [row for row in rows if abs(row["macs"] - row["published"]) > ROUNDING] == []


@pytest.mark.parametrize(("file", "name", "parameters", "published"), [
    ("bench_resnet18.py", "resnet18", 11_689_512, 1.814),
    ("resnet18_inference.py", "ResNet18", 11_689_512, 1.814),
    ("bench_efficientnet.py", "efficientnet_b0", 5_288_548, 0.386),
])  # fmt: skip
def test_the_examples_are_the_published_architectures(file, name, parameters, published):
    with torch.device("meta"):
        made = runpy.run_path(str(CHECKOUT / "examples" / file))[name]()
        model = made[0] if isinstance(made, tuple) else made
        image = torch.empty(1, 3, 224, 224)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert abs(torchvision_macs.macs(model, (image,)) - published) <= ROUNDING
