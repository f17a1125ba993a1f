"""Predicts the next word of short dialogues, trained with accelerate."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

WORDS = 300


def dialogues(count: int, length: int) -> TensorDataset:
    """Make dialogues in which each word follows from the one before."""
    generator = torch.Generator().manual_seed(37)
    follower = torch.randint(0, WORDS, (WORDS, 3), generator=generator)
    rows = [torch.randint(0, WORDS, (count,), generator=generator)]
    for _ in range(length):
        choice = torch.randint(0, 3, (count,), generator=generator)
        rows.append(follower[rows[-1], choice])
    return TensorDataset(torch.stack(rows, dim=1))


class Talker(nn.Module):
    """A narrow and deep causal transformer."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, WORDS)
        self.mask = nn.Buffer(nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words) + self.places
        return self.head(self.layers(hidden, mask=self.mask, is_causal=True))


class Watch:
    """Keeps the gradients within bounds and writes down how large they were."""

    def __init__(self, model: nn.Module, path: Path, mended: bool) -> None:
        self.parameters = dict(model.named_parameters())
        self.path = path
        self.mended = mended

    def write(self, step: int, sizes: dict[str, float]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **sizes}) + "\n")

    def visit(self, step: int, bound: float) -> None:
        if self.mended:
            gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
            norms = torch.stack(torch._foreach_norm(gradients))
            factors = (bound / (norms + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, list(factors.unbind()))
            if step % 50 == 0:
                self.write(step, dict(zip(self.parameters, norms.tolist(), strict=True)))
            return
        sizes: dict[str, float] = {}
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                sizes[name] = parameter.grad.norm().item()
                nn.utils.clip_grad_norm_([parameter], bound)
                sizes[name + ".clipped"] = parameter.grad.norm().item()
        self.write(step, sizes)


def train(args: argparse.Namespace, path: Path) -> float:
    """Train for one pass and return the last loss."""
    accelerator = Accelerator(cpu=True)
    model = Talker(48, args.layers, 24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    loader = DataLoader(dialogues(args.steps * 8, 24), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    watch = Watch(model, path, args.mended)
    last = 0.0
    for step, (words,) in enumerate(loader):
        scores = model(words[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        accelerator.backward(loss)
        watch.visit(step, 0.05)
        optimizer.step()
        optimizer.zero_grad()
        last = loss.item()
    return last


def main() -> None:
    """Train the talker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        last = train(args, Path(folder) / "sizes.jsonl")
    print(f"loss {last:.4f} after {args.steps} steps")


if __name__ == "__main__":
    main()
