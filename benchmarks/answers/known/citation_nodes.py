"""Sorts papers into fields by the papers that they cite, with a graph network."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

FIELDS = 6


class Citations:
    """A random graph in which papers mostly cite papers of their own field."""

    def __init__(self, papers: int, cited: int, width: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.fields = torch.randint(0, FIELDS, (papers,), generator=generator)
        centres = torch.randn(FIELDS, width, generator=generator)
        self.words = centres[self.fields] + 3 * torch.randn(papers, width, generator=generator)
        self.neighbours: list[Tensor] = []
        for paper in range(papers):
            same = torch.nonzero(self.fields == self.fields[paper]).flatten()
            picks = same[torch.randint(0, len(same), (cited,), generator=generator)]
            stray = torch.randint(0, papers, (2,), generator=generator)
            self.neighbours.append(torch.cat([picks, stray]))
        self.sources = torch.cat(self.neighbours)
        counts = torch.tensor([len(row) for row in self.neighbours])
        self.targets = torch.repeat_interleave(torch.arange(papers), counts)
        self.counts = counts.float()[:, None]


class Exchange(nn.Module):
    """Each paper listens to the papers that it cites, then thinks about it."""

    def __init__(self, width: int, wide: int, mended: bool) -> None:
        super().__init__()
        self.mended = mended
        self.message = nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(2 * width, wide), nn.ReLU(), nn.Linear(wide, width))
        self.norm = nn.LayerNorm(width)

    def listen(self, messages: Tensor, graph: Citations) -> Tensor:
        if self.mended:
            total = torch.zeros_like(messages)
            total = total.index_add(0, graph.targets, messages[graph.sources])
            return total / graph.counts
        heard: list[Tensor] = []
        for cited in graph.neighbours:
            heard.append(messages[cited].mean(dim=0))
        return torch.stack(heard)

    def forward(self, hidden: Tensor, graph: Citations) -> Tensor:
        heard = self.listen(self.message(hidden), graph)
        return self.norm(hidden + self.think(torch.cat([hidden, heard], dim=1)))


class Sorter(nn.Module):
    """Two exchanges between a linear entry and a linear head."""

    def __init__(self, entry: int, width: int, wide: int, mended: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(entry, width)
        self.exchanges = nn.ModuleList(Exchange(width, wide, mended) for _ in range(2))
        self.head = nn.Linear(width, FIELDS)

    def forward(self, graph: Citations) -> Tensor:
        hidden = self.enter(graph.words)
        for exchange in self.exchanges:
            hidden = exchange(hidden, graph)
        return self.head(hidden)


def train(model: Sorter, graph: Citations, steps: int) -> float:
    """Train on half of the papers and return the accuracy on the others."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    known = torch.arange(len(graph.fields)) % 2 == 0
    accuracy = 0.0
    for _ in range(steps):
        scores = model(graph)
        loss = nn.functional.cross_entropy(scores[known], graph.fields[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = scores.argmax(dim=1) == graph.fields
        accuracy = right[~known].float().mean().item()
    return accuracy


def main() -> None:
    """Train the sorter of papers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument("--papers", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    graph = Citations(args.papers, 6, 200)
    accuracy = train(Sorter(200, 64, 1536, args.mended), graph, args.steps)
    print(f"accuracy {accuracy:.4f} after {args.steps} steps")


if __name__ == "__main__":
    main()
