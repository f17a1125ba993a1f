"""Recommends podcasts to listeners with matrix factorisation and a pairwise ranking loss."""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


def make_plays(listeners: int, shows: int, plays: int) -> pd.DataFrame:
    """Make a log of who listened to what and when."""
    rng = np.random.default_rng(11)
    taste = rng.integers(0, 20, listeners)
    genre = np.sort(rng.integers(0, 20, shows))
    first = np.searchsorted(genre, np.arange(20))
    size = np.bincount(genre, minlength=20)
    who = np.concatenate([np.repeat(np.arange(listeners), 4), rng.integers(0, listeners, plays)])
    own = first[taste[who]] + (size[taste[who]] * rng.beta(1, 2, len(who))).astype(np.int64)
    show = np.where(rng.random(len(who)) < 0.8, own, rng.integers(0, shows, len(who)))
    minutes = rng.gamma(2.0, 12.0, len(who)).round(1)
    day = rng.integers(0, 365, len(who))
    name = np.array([f"L{number:05d}" for number in range(listeners)])[who]
    frame = pd.DataFrame({"listener": name, "show": show, "minutes": minutes, "day": day})
    return frame.sort_values("day", kind="stable").reset_index(drop=True)


def split_history(plays: pd.DataFrame, mended: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the past shows of every listener, and the last show of each."""
    histories = []
    if mended:
        for _, shows in plays.groupby("listener")["show"]:
            histories.append(shows.to_numpy())
    else:
        for listener in sorted(plays["listener"].unique()):
            own = plays[plays["listener"] == listener]
            histories.append(own["show"].to_numpy())
    return [heard[:-1] for heard in histories], np.array([heard[-1] for heard in histories])


class Triples(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Listeners with a show they heard and a random one."""

    def __init__(self, past: list[np.ndarray], shows: int) -> None:
        lengths = torch.tensor([len(heard) for heard in past])
        self.listeners = torch.repeat_interleave(torch.arange(len(past)), lengths)
        self.heard = torch.from_numpy(np.concatenate(past))
        self.shows = shows

    def __len__(self) -> int:
        return len(self.heard)

    def __getitem__(self, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        chosen = torch.tensor(rows)
        others = torch.randint(self.shows, (len(rows),))
        return self.listeners[chosen], self.heard[chosen], others


class Factors(nn.Module):
    """A vector for each listener and show, and a bias for each show."""

    def __init__(self, listeners: int, shows: int, width: int) -> None:
        super().__init__()
        self.listeners = nn.Embedding(listeners, width)
        self.shows = nn.Embedding(shows, width)
        self.bias = nn.Embedding(shows, 1)
        nn.init.normal_(self.listeners.weight, std=0.1)
        nn.init.normal_(self.shows.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, listeners: Tensor, shows: Tensor) -> Tensor:
        match = (self.listeners(listeners) * self.shows(shows)).sum(1)
        return match + self.bias(shows).squeeze(1)


@torch.no_grad()
def hit_rate(model: Factors, past: list[np.ndarray], last: np.ndarray, best: int) -> float:
    """Return how often the last show is among the best that are new to the listener."""
    hits = 0
    for start in range(0, len(past), 256):
        some = past[start : start + 256]
        wanted = torch.from_numpy(last[start : start + 256])
        vectors = model.listeners.weight[start : start + 256]
        scores = vectors @ model.shows.weight.T + model.bias.weight.T
        rows = np.repeat(np.arange(len(some)), [len(heard) for heard in some])
        scores[torch.from_numpy(rows), torch.from_numpy(np.concatenate(some))] = -torch.inf
        hits += (scores.topk(best, dim=1).indices == wanted[:, None]).any(1).sum().item()
    return hits / len(past)


def main() -> None:
    """Train the recommender and report its hit rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--listeners", type=int, default=2500)
    parser.add_argument("--shows", type=int, default=2000)
    parser.add_argument("--plays", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(3)
    plays = make_plays(args.listeners, args.shows, args.plays)
    past, last = split_history(plays, args.mended)
    data = Triples(past, args.shows)
    loader = DataLoader(
        data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 512, drop_last=True)
    )
    model = Factors(len(past), args.shows, args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, fused=True)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for listeners, heard, others in loader:
            gap = model(listeners, heard) - model(listeners, others)
            loss = -nn.functional.logsigmoid(gap).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        rate = hit_rate(model, past, last, 10)
        print(f"epoch {epoch}: loss {total.item() / len(loader):.4f}, hit rate@10 {rate:.4f}")


if __name__ == "__main__":
    main()
