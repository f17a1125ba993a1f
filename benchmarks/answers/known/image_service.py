"""Answers requests to read the plates in pictures from a pool of threads."""

from __future__ import annotations

import argparse
import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

SIGNS = " 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def pictures(count: int, height: int, width: int) -> list[bytes]:
    """Make some pictures as the clients send them."""
    rng = np.random.default_rng(23)
    sent: list[bytes] = []
    for _ in range(count):
        coarse = rng.integers(0, 255, (height // 8, width // 8), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(coarse).resize((width, height)).save(buffer, "BMP")
        sent.append(buffer.getvalue())
    return sent


class Reader(nn.Module):
    """Convolutions, then a recurrent network along the line of text."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, padding=1, stride=(2, 1)),
            nn.ReLU(),
        )
        self.follow = nn.GRU(4 * height, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, len(SIGNS))

    def forward(self, images: Tensor) -> Tensor:
        columns = self.look(images).flatten(1, 2).transpose(1, 2)
        return self.head(self.follow(columns)[0])


class Service:
    """Turns the bytes of a request into the text on the plate."""

    def __init__(self, model: Reader, mended: bool) -> None:
        self.model = model.eval()
        self.mended = mended

    def decode(self, body: bytes) -> Tensor:
        pixels = np.array(Image.open(io.BytesIO(body)), dtype=np.float32)
        return torch.from_numpy(pixels)[None, None] / 255.0

    def handle(self, body: bytes) -> tuple[str, float]:
        image = self.decode(body)
        with torch.inference_mode() if self.mended else nullcontext():
            shares, signs = self.model(image).softmax(dim=2)[0].max(dim=1)
            return "".join(SIGNS[sign] for sign in signs.tolist()), shares.mean().item()


def main() -> None:
    """Answer all requests and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--requests", type=int, default=280)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    service = Service(Reader(32, 64), args.mended)
    bodies = pictures(args.requests, 32, 160)
    with ThreadPoolExecutor(args.threads) as pool:
        answers = list(pool.map(service.handle, bodies))
    certainty = sum(share for _, share in answers) / len(answers)
    print(f"certainty {certainty:.5f} after {len(answers)} requests")


if __name__ == "__main__":
    main()
