"""Tells friendly from unfriendly product reviews with a small transformer encoder."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 500
Sample = tuple[Tensor, int]
Batch = tuple[Tensor, Tensor, Tensor]


class Reviews(Dataset[Sample]):
    """Reviews as token numbers; most are short, a few very long."""

    def __init__(self, count: int, longest: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.texts: list[Tensor] = []
        self.labels: list[int] = []
        for index in range(count):
            length = int(torch.randint(12, 40, (1,), generator=generator))
            if index % 800 == 0:
                length = longest
            label = int(torch.randint(0, 2, (1,), generator=generator))
            text = torch.randint(1, VOCABULARY, (length,), generator=generator)
            text[:: 3 + label] = 1 + label
            self.texts.append(text)
            self.labels.append(label)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Sample:
        return self.texts[index], self.labels[index]


def make_collate(reviews: Reviews, mended: bool) -> Callable[[list[Sample]], Batch]:
    """Return the function that lays the reviews of a batch side by side."""
    limit = max(len(text) for text in reviews.texts)

    def collate(samples: list[Sample]) -> Batch:
        width = max(len(text) for text, _ in samples) if mended else limit
        tokens = torch.zeros(len(samples), width, dtype=torch.long)
        for row, (text, _) in enumerate(samples):
            tokens[row, : len(text)] = text
        return tokens, tokens == 0, torch.tensor([label for _, label in samples])

    return collate


class Reader(nn.Module):
    """A transformer encoder, an average over the words and a linear head."""

    def __init__(self, width: int, layers: int, longest: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor, empty: Tensor) -> Tensor:
        hidden = self.words(tokens) + self.places[: tokens.shape[1]]
        hidden = self.encoder(hidden, src_key_padding_mask=empty)
        kept = (~empty).unsqueeze(-1).float()
        return self.head((hidden * kept).sum(dim=1) / kept.sum(dim=1))


def train(model: Reader, loader: DataLoader[Batch]) -> tuple[float, int]:
    """Train for one pass over the reviews."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    last, steps = 0.0, 0
    for tokens, empty, labels in loader:
        loss = nn.functional.cross_entropy(model(tokens, empty), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        last = loss.item()
        steps += 1
    return last, steps


def main() -> None:
    """Train the reader of reviews."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--reviews", type=int, default=1600)
    parser.add_argument("--longest", type=int, default=96)
    args = parser.parse_args()
    torch.manual_seed(0)
    reviews = Reviews(args.reviews, args.longest)
    loader = DataLoader(
        reviews,
        batch_size=args.batch,
        shuffle=True,
        collate_fn=make_collate(reviews, args.mended),
    )
    last, steps = train(Reader(96, 2, args.longest), loader)
    print(f"loss {last:.4f} after {steps} steps")


if __name__ == "__main__":
    main()
