"""What our counter says of every torchvision weight with a published count, as JSON on stdout.

A program of its own: torchvision is installed without its dependencies and beside the environment
(`make test` does it), where no other test's imports find it; and its compiled operators do not
load beside a CPU build of torch, so that those which its models call are declared here.
Everything is on the device `meta`: shapes without data.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Where `make test` puts it.
FOLDER = Path(sys.prefix) / "torchvision"
CHECKOUT = Path(__file__).resolve().parent.parent

# How many boxes go on to the second stage of a detector, and how many of its results to the heads
# for masks and key points, depends on what the image shows, and on `meta` no image shows anything:
# there, all go on that may (1000 and 100). These were published for other numbers, since the image
# that torchvision counted with was noise.
NOISE = "of noise"
BOXES = {
    "FasterRCNN_MobileNet_V3_Large_320_FPN_Weights.COCO_V1": (0, 0, f"{NOISE} no box goes on"),
    "FasterRCNN_MobileNet_V3_Large_FPN_Weights.COCO_V1": (0, 0, f"{NOISE} no box goes on"),
    "MaskRCNN_ResNet50_FPN_Weights.COCO_V1": (1000, 0, f"{NOISE} nothing was found"),
    "KeypointRCNN_ResNet50_FPN_Weights.COCO_LEGACY": (1000, 0, f"{NOISE} nothing was found"),
    "KeypointRCNN_ResNet50_FPN_Weights.COCO_V1": (1000, 1, f"{NOISE} one person was found"),
}

# Height and width that the counts of detectors were published for; of the others 800.
DETECTION_SIZES = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": 320,
    "keypointrcnn_resnet50_fpn": 1333,
    "ssd300_vgg16": 300,
    "ssdlite320_mobilenet_v3_large": 320,
}
FRAMES, FLOW_SIZE = 16, 512

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    (
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
        "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"
    ),
)


def is_installed() -> bool:
    """Whether there is a torchvision to compare with."""
    return (FOLDER / "torchvision").is_dir() or importlib.util.find_spec("torchvision") is not None


def torchvision_models() -> Any:
    """`torchvision.models`, which runs on `meta` after this."""
    import torch

    if FOLDER.is_dir():
        sys.path.append(str(FOLDER))
    library = torch.library.Library("torchvision", "DEF")
    for operator in _OPERATORS:
        library.define(operator)
    library.impl(
        "roi_align",
        lambda image, rois, scale, height, width, *rest: image.new_empty(
            (rois.shape[0], image.shape[1], height, width)
        ),
        "Meta",
    )
    from torchvision import models
    from torchvision.models import regnet
    from torchvision.models.detection import roi_heads, transform

    importlib.import_module("torchvision.ops.roi_align")._assert_has_ops = lambda: None
    torch.fx.experimental._config.meta_nonzero_assume_all_nonzero = True
    # Neither multiplies, and both ask for values.
    transform.GeneralizedRCNNTransform.postprocess = lambda self, found, *rest: found
    roi_heads.keypointrcnn_inference = lambda logits, boxes: ([], [])
    # Half of the time would go to these, which have no count and change no shape.
    for name in ("normal_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_", "uniform_"):
        setattr(torch.nn.init, name, lambda tensor, *rest, **named: tensor)
    torch.nn.functional.batch_norm = lambda x, *rest, **named: x
    # Widths of layers, which are worked out by torch.
    made = regnet.BlockParams.from_init_params

    def on_the_cpu(*args: Any, **named: Any) -> Any:
        with torch.device("cpu"):
            return made(*args, **named)

    regnet.BlockParams.from_init_params = on_the_cpu
    models.kept_library = library
    return models


class Boxes:
    """Stands for `batched_nms`: lets a stated number of boxes go on in each stage."""

    def __init__(self, *limits: int) -> None:
        self.limits = list(limits)

    def __call__(self, boxes: Any, *rest: Any) -> Any:
        import torch

        limit = self.limits.pop(0) if self.limits else boxes.shape[0]
        return torch.empty(min(limit, boxes.shape[0]), dtype=torch.long, device="meta")


def macs(model: Any, inputs: tuple[Any, ...], boxes: Boxes | None = None) -> float:
    """Multiply-adds of one call, in billions, by the counter of the layer flops.

    RuntimeError where anything that multiplies had no figure.
    """
    import torch

    from profstack.readers.flops.counting import Count

    if boxes is not None:
        sys.modules["torchvision.ops.boxes"].batched_nms = boxes
    count = Count(torch, on_meta=True)
    with torch.no_grad():
        count.begin()
        try:
            model(*inputs)
        finally:
            count.end()
    step = count.rest()
    if count.error is not None or step.missed:
        raise RuntimeError(f"not counted: {count.error} {step.missed} {count.failures}")
    return sum(step.flop.values()) / 2e9


def built(models: Any, name: str, size: int) -> Any:
    """A model for inference, without data."""
    import torch

    builder = models.get_model_builder(name)
    takes = inspect.signature(builder).parameters
    options: dict[str, Any] = {}
    if "weights_backbone" in takes:
        options["weights_backbone"] = None
    if "aux_loss" in takes:
        # As with these weights, which have a second head.
        options["aux_loss"] = True
    if "quantize" in takes:
        # Operators of quantised numbers have nothing for `meta`; the layers are the same.
        options["quantize"] = False
    if name.startswith("vit_"):
        options["image_size"] = size
    with torch.device("meta"):
        return builder(weights=None, **options).eval()


def inputs_for(module: str, name: str, weights: Any) -> tuple[int, tuple[Any, ...]]:
    """Height of the image that a weight's count was published for, and the inputs."""
    import torch

    options = getattr(weights.transforms, "keywords", {})
    with torch.device("meta"):
        if module == "detection":
            size = DETECTION_SIZES.get(name, 800)
            return size, ([torch.empty(3, size, size)],)
        if module == "optical_flow":
            return FLOW_SIZE, (torch.empty(1, 3, FLOW_SIZE, FLOW_SIZE),) * 2
        if module == "video":
            height, width = options["crop_size"]
            return height, (torch.empty(1, 3, FRAMES, height, width),)
        size = options["resize_size" if module == "segmentation" else "crop_size"]
        return size, (torch.empty(1, 3, size, size),)


def counted(models: Any) -> Iterator[dict[str, Any]]:
    """Every weight with its published count and ours; what has one builder and size runs once."""
    done: dict[tuple[str, int], float] = {}
    for name in models.list_models():
        module = models.get_model_builder(name).__module__.split(".")[2]
        model, of_size = None, -1
        for weights in models.get_model_weights(name):
            size, inputs = inputs_for(module, name, weights)
            if model is None or size != of_size:
                model, of_size = built(models, name, size), size
            if (name, size) not in done:
                done[name, size] = macs(model, inputs, Boxes())
            row = {"name": str(weights), "published": weights.meta.get("_ops")}
            row |= {"module": module, "macs": done[name, size], "all_boxes": None}
            if row["name"] in BOXES:
                proposals, found, _ = BOXES[row["name"]]
                row["all_boxes"] = row["macs"]
                row["macs"] = macs(model, inputs, Boxes(proposals, found))
            yield row


def examples(models: Any) -> Iterator[dict[str, Any]]:
    """The examples for `bench` beside torchvision's models of the same architecture."""
    import torch

    for file, name in (("bench_resnet18", "resnet18"), ("bench_efficientnet", "efficientnet_b0")):
        spec: Any = importlib.util.spec_from_file_location(file, CHECKOUT / f"examples/{file}.py")
        example: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        with torch.device("meta"):
            model, inputs = getattr(example, name)()
            image = (torch.empty(1, 3, 224, 224),)
        theirs = built(models, name, 224)
        yield {
            "name": name,
            "input": list(inputs[0].shape),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "macs": macs(model, inputs),
            "macs_at_224": macs(model, image),
            "their_macs": macs(theirs, inputs),
            "shapes": sorted(list(value.shape) for value in model.state_dict().values()),
            "their_shapes": sorted(list(value.shape) for value in theirs.state_dict().values()),
        }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    zoo = torchvision_models()
    json.dump({"weights": list(counted(zoo)), "examples": list(examples(zoo))}, sys.stdout)
