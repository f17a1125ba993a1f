"""Whether products are made in TF32, whichever way the script chose it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu_programs import NEEDS_GPU, python

pytestmark = NEEDS_GPU

_ASK = """
import json
import torch
torch.ones(1, device="cuda")
{chosen}
from profstack.capture.run import device_facts
print(json.dumps(device_facts(torch)))
"""


@pytest.mark.parametrize(
    ("chosen", "products", "convolutions"),
    [
        ("pass", False, True),
        ("torch.backends.cuda.matmul.allow_tf32 = True", True, True),
        ('torch.set_float32_matmul_precision("high")', True, True),
        ("torch.backends.cudnn.allow_tf32 = False", False, False),
    ],
)
def test_the_choice_is_read(
    tmp_path: Path, chosen: str, products: bool, convolutions: bool
) -> None:
    facts = json.loads(python(tmp_path, "-c", _ASK.format(chosen=chosen)))
    assert facts["device"] == "cuda"
    assert facts["gpu"]
    assert facts["tf32_products"] is products
    assert facts["tf32_convolutions"] is convolutions
