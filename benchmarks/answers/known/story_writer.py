"""Continues the beginnings of stories with a small decoder."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

LETTERS = 128
State = list[tuple[Tensor, Tensor]]


class Layer(nn.Module):
    """Attention to what was said before, and thought about it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(
        self, hidden: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rows, length, width = hidden.shape
        parts = self.project(self.norm(hidden)).view(rows, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if past is not None:
            key = torch.cat([past[0], key], dim=2)
            value = torch.cat([past[1], value], dim=2)
        mixed = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=past is None
        )
        hidden = hidden + self.merge(mixed.transpose(1, 2).reshape(rows, length, width))
        return hidden + self.think(hidden), (key, value)


class Writer(nn.Module):
    """A decoder over letters."""

    def __init__(self, width: int, layers: int, longest: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.places = nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, letters: Tensor, past: State | None) -> tuple[Tensor, State]:
        start = 0 if past is None else past[0][0].shape[2]
        places = torch.arange(start, start + letters.shape[1])
        hidden = self.letters(letters) + self.places(places)
        state: State = []
        for number, layer in enumerate(self.layers):
            hidden, memory = layer(hidden, None if past is None else past[number])
            state.append(memory)
        return self.norm(hidden[:, -1]) @ self.letters.weight.T, state


@torch.inference_mode()
def write(model: Writer, opening: Tensor, count: int, mended: bool) -> Tensor:
    """Continue some openings by so many letters."""
    story = opening
    scores, state = model(story, None)
    for number in range(count):
        story = torch.cat([story, scores.argmax(dim=1, keepdim=True)], dim=1)
        if number + 1 == count:
            break
        if mended:
            scores, state = model(story[:, -1:], state)
        else:
            scores, state = model(story, None)
    return story


def main() -> None:
    """Continue many openings, a few at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--openings", type=int, default=55)
    parser.add_argument("--count", type=int, default=24)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Writer(128, 3, 128).eval()
    total = 0
    for _ in range(args.openings):
        opening = torch.randint(0, LETTERS, (2, 48))
        story = write(model, opening, args.count, args.mended)
        total += int(story[:, 48:].sum())
    print(f"checksum {total} after {args.openings} requests")


if __name__ == "__main__":
    main()
