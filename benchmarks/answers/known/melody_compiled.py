"""Continues melodies of different lengths with a compiled network."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

NOTES = 128


def compose(count: int, longest: int) -> list[Tensor]:
    """Compose melodies as random walks, each of its own length."""
    generator = torch.Generator().manual_seed(83)
    lengths = torch.randint(16, longest, (count,), generator=generator)
    melodies = []
    for length in lengths.tolist():
        moves = torch.randint(-2, 3, (length,), generator=generator)
        melodies.append((60 + moves.cumsum(0)).clamp(0, NOTES - 1))
    return melodies


class Bar(nn.Module):
    """Causal convolutions with a gate."""

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(2 * width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        inner = self.norm(hidden)
        before = nn.functional.pad(inner, (0, 0, self.reach, 0))[:, : inner.shape[1]]
        value, gate = self.mix(torch.cat([inner, before], dim=-1)).chunk(2, dim=-1)
        return hidden + self.out(value.tanh() * gate.sigmoid())


class MelodyNet(nn.Module):
    """Notes in, guesses of the next notes out."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.notes = nn.Embedding(NOTES, width)
        self.bars = nn.ModuleList([Bar(width, 2 ** (index % 5)) for index in range(depth)])
        self.head = nn.Linear(width, NOTES)

    def forward(self, notes: Tensor) -> Tensor:
        hidden = self.notes(notes)
        for bar in self.bars:
            hidden = bar(hidden)
        return self.head(hidden)


def batch_of(melodies: list[Tensor], size: int) -> tuple[Tensor, Tensor]:
    """Draw melodies, filled up to the longest of them."""
    picks = torch.randint(0, len(melodies), (size,)).tolist()
    filled = nn.utils.rnn.pad_sequence(
        [melodies[pick] for pick in picks], batch_first=True, padding_value=-1
    )
    return filled[:, :-1].clamp(min=0), filled[:, 1:]


def train(model: nn.Module, melodies: list[Tensor], args: argparse.Namespace) -> float:
    """Train the network and return the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    last = 0.0
    for step in range(args.steps):
        notes, following = batch_of(melodies, args.batch)
        logits = model(notes)
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), following.flatten(), ignore_index=-1
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        if step % 10 == 0:
            print(f"step {step}: length {notes.shape[1]}, loss {last:.4f}")
    return last


def main() -> None:
    """Train the compiled network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = MelodyNet(48, 6)
    compiled = torch.compile(model, backend="aot_eager", dynamic=bool(args.mended))
    print(f"loss {train(compiled, compose(1000, 160), args):.4f}")


if __name__ == "__main__":
    main()
