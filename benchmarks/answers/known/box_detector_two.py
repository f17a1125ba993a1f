"""Run an object detector over a folder's worth of synthetic aerial pictures.

The detector is a small anchor-based network with fixed random weights.  For
every picture the best boxes are decoded, overlapping ones are suppressed and
the rest is counted.
"""
import argparse
import time

import torch
from torch import nn

STRIDE = 8
ANCHORS = torch.tensor([[18.0, 18.0], [36.0, 22.0], [24.0, 40.0]])


def draw_picture(size, generator):
    picture = torch.rand(3, size, size, generator=generator) * 0.2
    for _ in range(12):
        x, y, w, h = torch.randint(8, 40, (4,), generator=generator).tolist()
        x, y = x * size // 48, y * size // 48
        colour = torch.rand(3, 1, 1, generator=generator)
        picture[:, y:y + h, x:x + w] += colour
    return picture


def conv(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1),
                         nn.BatchNorm2d(outputs), nn.SiLU())


class Detector(nn.Module):
    """Backbone and head; returns boxes (N, A, 4) as corners and scores (N, A)."""

    def __init__(self, width=24):
        super().__init__()
        self.backbone = nn.Sequential(
            conv(3, width, 2), conv(width, 2 * width, 2), conv(2 * width, 2 * width),
            conv(2 * width, 4 * width, 2), conv(4 * width, 4 * width),
        )
        self.head = nn.Conv2d(4 * width, len(ANCHORS) * 5, 1)

    def forward(self, pictures):
        raw = self.head(self.backbone(pictures))
        n, _, rows, columns = raw.shape
        raw = raw.view(n, len(ANCHORS), 5, rows, columns).permute(0, 1, 3, 4, 2)
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        centre = (torch.stack([x, y], dim=-1) + 0.5 + raw[..., :2].tanh()) * STRIDE
        size = ANCHORS[:, None, None] * raw[..., 2:4].clamp(-2, 2).exp()
        boxes = torch.cat([centre - size / 2, centre + size / 2], dim=-1)
        return boxes.reshape(n, -1, 4), raw[..., 4].sigmoid().reshape(n, -1)


def box_iou(a, b):
    """Overlap of two boxes given as corners."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    area_a = (a[2] - a[0]) * (a[3] - a[1])
    area_b = (b[2] - b[0]) * (b[3] - b[1])
    return shared / (area_a + area_b - shared)


def suppress(boxes, threshold):
    """Indices of the boxes to keep; `boxes` are ordered by score."""
    corners = boxes.tolist()
    kept = []
    for candidate in range(len(corners)):
        overlaps = [box_iou(corners[candidate], corners[other]) for other in kept]
        if not overlaps or max(overlaps) <= threshold:
            kept.append(candidate)
    return kept


def suppress_by_matrix(boxes, threshold):
    """Indices of the boxes to keep; `boxes` are ordered by score."""
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    overlapping = (shared / (area[:, None] + area[None] - shared) > threshold).numpy()
    alive = overlapping.diagonal() | True
    kept = []
    for candidate in range(len(boxes)):
        if alive[candidate]:
            kept.append(candidate)
            alive &= ~overlapping[candidate]
    return kept


@torch.inference_mode()
def detect(model, pictures, args):
    boxes, scores = model(pictures)
    suppression = suppress_by_matrix if args.mended else suppress
    found = []
    for picture_boxes, picture_scores in zip(boxes, scores):
        best = picture_scores.topk(args.candidates).indices
        kept = suppression(picture_boxes[best], args.overlap)
        found.append((picture_boxes[best[kept]], picture_scores[best[kept]]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--batches", type=int, default=380)
    parser.add_argument("--candidates", type=int, default=250)
    parser.add_argument("--overlap", type=float, default=0.3)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(15)
    pictures = torch.stack([draw_picture(args.size, generator) for _ in range(args.pictures)])
    model = Detector().eval()
    start, objects = time.perf_counter(), 0
    for batch in range(args.batches):
        rows = (torch.arange(args.batch_size) + batch * args.batch_size) % args.pictures
        objects += sum(len(boxes) for boxes, _ in detect(model, pictures[rows], args))
        if (batch + 1) % 50 == 0:
            print(f"{batch + 1} batches, {objects} objects ({time.perf_counter() - start:.1f} s)")
    print(f"{objects} objects found")


if __name__ == "__main__":
    main()
