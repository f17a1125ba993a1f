"""Learns to match film posters with their captions with a contrastive loss."""

from __future__ import annotations

import argparse
import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

GENRES = ["western", "thriller", "romance", "comedy", "horror", "musical"]
COLOURS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (40, 70, 200)}
COLOURS |= {"yellow": (220, 200, 40), "violet": (150, 50, 180), "grey": (120, 120, 120)}
SOUNDS = ["ka", "lo", "mi", "ren", "sta", "vo", "dri", "el", "fa", "gun", "ha", "jor"]
SIDE = 32


def invent_names(count: int, rng: random.Random) -> list[str]:
    """Invent names of people and places."""
    return ["".join(rng.choices(SOUNDS, k=rng.randint(3, 5))) for _ in range(count)]


def make_films(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Make captions and the posters that go with them."""
    rng = random.Random(seed)
    noise = np.random.default_rng(seed)
    names = invent_names(18000, rng)
    captions = []
    posters = noise.normal(0, 30, (count, SIDE, SIDE, 3)).astype(np.float32)
    for poster in posters:
        genre, back, front = rng.choice(GENRES), rng.choice([*COLOURS]), rng.choice([*COLOURS])
        cast = " and ".join(rng.choices(names, k=8))
        captions.append(f"a {genre} in {back} and {front} set in {rng.choice(names)} with {cast}")
        poster += COLOURS[back]
        size = 6 + 4 * GENRES.index(genre)
        row, column = rng.randint(0, SIDE - size), rng.randint(0, SIDE - size)
        poster[row : row + size, column : column + size] = COLOURS[front]
    return captions, posters / 128 - 1


class Vocabulary:
    """The words of the captions, with a number for each."""

    def __init__(self, captions: list[str]) -> None:
        self.words = ["<pad>"]
        for caption in captions:
            for word in caption.split():
                if word not in self.words:
                    self.words.append(word)

    def __len__(self) -> int:
        return len(self.words)

    def number(self, word: str) -> int:
        """Return the number of a word."""
        return self.words.index(word)

    def encode(self, captions: list[str]) -> Tensor:
        """Return the numbers of the words of some captions."""
        rows = [torch.tensor([self.number(w) for w in text.split()]) for text in captions]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class MendedVocabulary(Vocabulary):
    """The words of the captions, with a number for each."""

    def __init__(self, captions: list[str]) -> None:
        self.numbers = {"<pad>": 0}
        for caption in captions:
            for word in caption.split():
                self.numbers.setdefault(word, len(self.numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    def number(self, word: str) -> int:
        return self.numbers[word]


class PosterModel(nn.Module):
    """An encoder of posters and one of captions with a common space."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.poster = nn.Sequential(
            nn.Conv2d(3, 24, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(48, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * (SIDE // 8) ** 2, width),
        )
        self.embed = nn.Embedding(words, 48, padding_idx=0)
        self.caption = nn.GRU(48, width, batch_first=True)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, posters: Tensor, captions: Tensor) -> Tensor:
        _, state = self.caption(self.embed(captions))
        seen = nn.functional.normalize(self.poster(posters), dim=1)
        told = nn.functional.normalize(state[-1], dim=1)
        return self.scale.exp() * seen @ told.T


def contrast(scores: Tensor) -> Tensor:
    """Return the symmetric contrastive loss."""
    goals = torch.arange(len(scores))
    across = nn.functional.cross_entropy(scores, goals)
    return (across + nn.functional.cross_entropy(scores.T, goals)) / 2


def main() -> None:
    """Train on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--films", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    captions, posters = make_films(args.films, seed=23)
    vocabulary = (MendedVocabulary if args.mended else Vocabulary)(captions)
    pixels = torch.from_numpy(posters).permute(0, 3, 1, 2).contiguous()
    data = TensorDataset(pixels, vocabulary.encode(captions))
    held = args.films // 20
    known, held_out = torch.utils.data.random_split(data, [args.films - held, held])
    loader = DataLoader(known, batch_size=args.batch, shuffle=True, drop_last=True)
    model = PosterModel(len(vocabulary), width=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, args.epochs + 1):
        total = 0.0
        for pictures, texts in loader:
            loss = contrast(model(pictures, texts))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")
    with torch.no_grad():
        scores = model(*(torch.stack(part) for part in zip(*held_out, strict=True)))
    ranks = (scores > scores.diagonal()[:, None]).sum(dim=1)
    print(f"{len(vocabulary)} words, recall at 10: {(ranks < 10).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
