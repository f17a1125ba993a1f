"""Whether products are made in TF32, whichever way the script chose it."""

import json

from tests.support.gpu_programs import NEEDS_GPU, python
from tests.support.tables import cases, of

pytestmark = NEEDS_GPU
_ASK = """
import json
import torch
torch.ones(1, device="cuda")
{chosen}
from profstack.capture.run import device_facts
print(json.dumps(device_facts(torch)))
"""


@cases(
    "chosen products convolutions",
    *(("pass", False, True), ("torch.backends.cuda.matmul.allow_tf32 = True", True, True)),
    ('torch.set_float32_matmul_precision("high")', True, True),
    ("torch.backends.cudnn.allow_tf32 = False", False, False),
)
def test_the_choice_is_read(tmp_path, chosen, products, convolutions):
    facts = json.loads(python(tmp_path, "-c", _ASK.format(chosen=chosen)))
    assert facts["gpu"]
    assert of(facts, "device tf32_products tf32_convolutions") == ["cuda", products, convolutions]
