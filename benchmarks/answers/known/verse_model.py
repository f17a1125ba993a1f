"""Models made-up verses word by word with a small causal transformer."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional


def write_verses(count: int, length: int, words: int) -> Tensor:
    """Write verses in which each word mostly decides the next."""
    generator = torch.Generator().manual_seed(5)
    follow = torch.randint(0, words, (words,), generator=generator)
    verses = torch.empty(count, length, dtype=torch.long)
    verses[:, 0] = torch.randint(0, words, (count,), generator=generator)
    for place in range(1, length):
        surprise = torch.rand(count, generator=generator) < 0.2
        other = torch.randint(0, words, (count,), generator=generator)
        verses[:, place] = torch.where(surprise, other, follow[verses[:, place - 1]])
    return verses


class PairTable(nn.Module):
    """Vectors of pairs of words, which share the rows of one table."""

    def __init__(self, rows: int, width: int, mended: bool) -> None:
        super().__init__()
        self.mended = mended
        self.weight = nn.Parameter(0.02 * torch.randn(rows, width))

    def forward(self, words: Tensor) -> Tensor:
        before = functional.pad(words[:, :-1], (1, 0))
        pairs = (before * 7919 + words) % len(self.weight)
        if self.mended:
            return functional.embedding(pairs, self.weight)
        chosen = functional.one_hot(pairs, len(self.weight))
        return chosen.to(self.weight.dtype) @ self.weight


class Layer(nn.Module):
    """Causal attention and a feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.Linear(2 * width, width),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        parts = self.project(self.before(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.feed(hidden)


class VerseModel(nn.Module):
    """Words in, guesses of the next words out."""

    def __init__(self, words: int, width: int, length: int, mended: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.pairs = PairTable(8192, width, mended)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.Sequential(*[Layer(width, 4) for _ in range(2)])
        self.after = nn.LayerNorm(width)
        self.head = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words) + self.pairs(words) + self.places[: words.shape[1]]
        return self.head(self.after(self.layers(hidden)))


def train(model: VerseModel, verses: Tensor, steps: int, batch: int) -> float:
    """Train the model and return the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    last = 0.0
    for step in range(steps):
        chosen = verses[torch.randint(0, len(verses), (batch,))]
        logits = model(chosen[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), chosen[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            last = loss.item()
            print(f"step {step}: loss {last:.4f}")
    return last


def main() -> None:
    """Train the model of verses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(0)
    verses = write_verses(2000, 49, 400)
    model = VerseModel(400, 96, 48, args.mended)
    print(f"loss {train(model, verses, args.steps, args.batch):.4f}")


if __name__ == "__main__":
    main()
