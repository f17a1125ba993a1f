"""Finds the topics of forum members with a graph network over their answers."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

TOPICS = 8


def make_forum(members: int, answers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the members' features, who answered whom, and their topics."""
    generator = torch.Generator().manual_seed(13)
    topics = torch.randint(0, TOPICS, (members,), generator=generator)
    order = topics.argsort()
    places = torch.randint(0, members, (answers,), generator=generator)
    near = places + torch.randint(-200, 201, (answers,), generator=generator)
    edges = torch.stack([order[places], order[near.clamp(0, members - 1)]])
    features = torch.randn(members, 64, generator=generator)
    features[:, :TOPICS] += nn.functional.one_hot(topics, TOPICS)
    return features, edges, topics


def both_ways(edges: Tensor) -> Tensor:
    """Return each edge once in both directions."""
    return torch.unique(torch.cat([edges, edges.flip(0)], dim=1), dim=1)


class GraphLayer(nn.Module):
    """The mean of the neighbours, and the member itself."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.itself = nn.Linear(inputs, outputs)
        self.others = nn.Linear(inputs, outputs)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        total = torch.zeros_like(nodes).index_add(0, target, nodes[source])
        degree = torch.bincount(target, minlength=len(nodes)).clamp(min=1)
        return self.itself(nodes) + self.others(total / degree[:, None])


class ForumNet(nn.Module):
    """Three graph layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(64, width)
        self.layers = nn.ModuleList([GraphLayer(width, width) for _ in range(3)])
        self.leave = nn.Linear(width, TOPICS)

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        nodes = self.enter(features).relu()
        for layer in self.layers:
            nodes = layer(nodes, edges).relu()
        return self.leave(nodes)


class Forum:
    """The graph as the network wants it."""

    def __init__(self, members: int, answers: int, mended: bool) -> None:
        self.features, self.answers, self.topics = make_forum(members, answers)
        self.known = torch.rand(members) < 0.3
        self.ready = both_ways(self.answers) if mended else None

    def edges(self) -> Tensor:
        """Return the edges between members."""
        return both_ways(self.answers) if self.ready is None else self.ready


def train(model: ForumNet, forum: Forum, steps: int) -> float:
    """Train on the members with known topics; return the accuracy on the others."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    right = 0.0
    for step in range(steps):
        logits = model(forum.features, forum.edges())
        loss = nn.functional.cross_entropy(logits[forum.known], forum.topics[forum.known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            guesses = logits.argmax(dim=1) == forum.topics
            right = guesses[~forum.known].float().mean().item()
            print(f"step {step}: loss {loss.item():.4f}, right {right:.3f}")
    return right


def main() -> None:
    """Train the network over the forum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--answers", type=int, default=40_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    forum = Forum(10_000, args.answers, args.mended)
    print(f"right {train(ForumNet(64), forum, args.steps):.3f}")


if __name__ == "__main__":
    main()
