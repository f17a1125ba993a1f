"""What our counter says of the smallest model of each module of torchvision, as JSON on stdout.

A program of its own: torchvision is installed without its dependencies and beside the environment
(`make test` does it), where no other test's imports find it; and its compiled operators do not
load beside a CPU build of torch, so that those that it names are declared here. Everything is
on the device `meta`: shapes without data. Detectors are left out: how many boxes go on to their
second stage depends on what the image shows.
"""

import importlib.util
import inspect
import json
import sys
from pathlib import Path

import torch

from profstack.readers.flops.counting import Count

# Where `make test` puts it.
FOLDER = Path(sys.prefix) / "torchvision"
FRAMES, FLOW_SIZE = 16, 512


def is_installed():
    """Whether there is a torchvision to compare with."""
    return (FOLDER / "torchvision").is_dir() or importlib.util.find_spec("torchvision") is not None


def torchvision_models():
    """`torchvision.models`, which runs on `meta` after this."""
    if FOLDER.is_dir():
        sys.path.append(str(FOLDER))
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision import models
    from torchvision.models import regnet

    # Half of the time would go to these, which have no count and change no shape.
    for name in ("normal_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_", "uniform_"):
        setattr(torch.nn.init, name, lambda tensor, *rest, **named: tensor)
    torch.nn.functional.batch_norm = lambda x, *rest, **named: x
    # Widths of layers, which are worked out by torch.
    made = regnet.BlockParams.from_init_params

    def on_the_cpu(*args, **named):
        with torch.device("cpu"):
            return made(*args, **named)

    regnet.BlockParams.from_init_params = on_the_cpu
    models.kept_library = library
    return models


def macs(model, inputs):
    """Multiply-adds of one call, in billions, by the counter of the layer flops."""
    count = Count(torch, on_meta=True)
    with torch.no_grad():
        count.begin()
        model(*inputs)
        count.end()
    step = count.rest()
    if count.error is not None or step.missed:
        raise RuntimeError(f"not counted: {count.error} {step.missed} {count.failures}")
    return sum(step.flop.values()) / 2e9


def counted(models, name, module):
    """A model's published count and ours."""
    builder, weights = models.get_model_builder(name), models.get_model_weights(name).DEFAULT
    transforms = getattr(weights.transforms, "keywords", {})
    size = transforms.get("resize_size" if module == "segmentation" else "crop_size", FLOW_SIZE)
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    takes = inspect.signature(builder).parameters
    # Segmentation has a second head with these weights; operators of quantised numbers have
    # nothing for `meta`, where the layers are the same.
    options = {"weights_backbone": None, "aux_loss": True, "quantize": False}
    options = {option: value for option, value in options.items() if option in takes}
    if name.startswith("vit_"):
        options["image_size"] = height
    shape = (1, 3, FRAMES, height, width) if module == "video" else (1, 3, height, width)
    with torch.device("meta"):
        model = builder(weights=None, **options).eval()
        inputs = (torch.empty(shape),) * (2 if module == "optical_flow" else 1)
    told = {"name": name, "module": module, "published": weights.meta["_ops"]}
    return {**told, "macs": macs(model, inputs)}


def by_file(models):
    """By file its model with the fewest multiply-adds: larger ones have more of the same layers."""
    found = {}
    weights = {name: models.get_model_weights(name).DEFAULT for name in models.list_models()}
    for name in sorted(weights, key=lambda name: weights[name].meta["_ops"]):
        file = models.get_model_builder(name).__module__
        if ".detection" not in file:
            found.setdefault(file, name)
    return found


if __name__ == "__main__":
    zoo = torchvision_models()
    rows = [counted(zoo, name, file.split(".")[2]) for file, name in by_file(zoo).items()]
    json.dump(rows, sys.stdout)
