"""Recommends songs to listeners by pairwise ranking of heard and unheard songs."""

from __future__ import annotations

import argparse
import random

import torch
from torch import Tensor, nn


class Listening:
    """Who has heard which song, and pairs drawn from it."""

    def __init__(self, users: int, songs: int, each: int, mended: bool) -> None:
        generator = torch.Generator().manual_seed(1)
        self.songs = songs
        self.mended = mended
        self.random = random.Random(2)
        taste = torch.randint(0, songs, (users, 1), generator=generator)
        offsets = torch.randint(0, songs // 8, (users, each), generator=generator)
        self.heard = (taste + offsets) % songs
        self.heard_sets = [set(row) for row in self.heard.tolist()]
        self.matrix = torch.zeros(users, songs, dtype=torch.bool).scatter_(1, self.heard, True)

    def draw(self, batch: int) -> tuple[Tensor, Tensor]:
        users = torch.randint(0, len(self.heard), (batch,))
        picks = torch.randint(0, self.heard.shape[1], (batch,))
        return users, self.heard[users, picks]

    def contrast(self, users: Tensor, count: int) -> Tensor:
        """Return songs that each user has not heard."""
        if self.mended:
            wide = users[:, None].expand(-1, count)
            songs = torch.randint(0, self.songs, wide.shape)
            clash = self.matrix[wide, songs]
            while bool(clash.any()):
                songs = torch.where(clash, torch.randint(0, self.songs, wide.shape), songs)
                clash = self.matrix[wide, songs]
            return songs
        rows: list[list[int]] = []
        for user in users.tolist():
            heard = self.heard_sets[user]
            row: list[int] = []
            while len(row) < count:
                song = self.random.randrange(self.songs)
                if song not in heard:
                    row.append(song)
            rows.append(row)
        return torch.tensor(rows)


class Ranker(nn.Module):
    """Embeddings of users and songs, scored by a small network."""

    def __init__(self, users: int, songs: int, width: int) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.songs = nn.Embedding(songs, width)
        self.score = nn.Sequential(
            nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1)
        )

    def forward(self, users: Tensor, songs: Tensor) -> Tensor:
        user = self.users(users)[:, None].expand(-1, songs.shape[1], -1)
        return self.score(torch.cat([user, self.songs(songs)], dim=-1)).squeeze(-1)


def train(model: Ranker, data: Listening, args: argparse.Namespace) -> float:
    """Train on drawn pairs and return the last loss."""
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    last = 0.0
    for _ in range(args.steps):
        users, liked = data.draw(args.batch)
        others = data.contrast(users, args.others)
        scores = model(users, torch.cat([liked[:, None], others], dim=1))
        loss = -nn.functional.logsigmoid(scores[:, :1] - scores[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
    return last


def main() -> None:
    """Train the recommender of songs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=130)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--others", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = Listening(3000, 2000, 60, args.mended)
    last = train(Ranker(3000, 2000, 16), data, args)
    print(f"loss {last:.4f} after {args.steps} steps")


if __name__ == "__main__":
    main()
