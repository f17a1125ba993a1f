"""Node classification on a synthetic citation network with a two-layer GCN.

Papers of one field cite each other more often and share words; the network
learns the field of a paper from its bag of words and its citations.
"""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


def make_citations(papers, words, fields, cites=5, seed=6):
    generator = torch.Generator().manual_seed(seed)
    field = torch.randint(0, fields, (papers,), generator=generator)
    topic_words = torch.rand(fields, words, generator=generator).pow(6) * 0.08
    bag = (torch.rand(papers, words, generator=generator) < topic_words[field]).float()
    source = torch.arange(papers).repeat_interleave(cites)
    target = torch.randint(0, papers, (papers * cites,), generator=generator)
    same = torch.rand(papers * cites, generator=generator) < 0.7
    by_field = [torch.nonzero(field == f).squeeze(1) for f in range(fields)]
    for edge in torch.nonzero(same).squeeze(1).tolist():
        members = by_field[field[source[edge]]]
        target[edge] = members[target[edge] % len(members)]
    edges = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    return bag, field, edges


def normalised_adjacency(edges, papers, sparse):
    """The matrix D^-1/2 (A + I) D^-1/2 of the citation graph."""
    adjacency = torch.zeros(papers, papers)
    adjacency[edges[0], edges[1]] = 1.0
    adjacency.fill_diagonal_(1.0)
    scale = adjacency.sum(1).rsqrt()
    adjacency = scale[:, None] * adjacency * scale[None, :]
    return adjacency.to_sparse().coalesce() if sparse else adjacency


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x, adjacency):
        support = self.linear(x)
        if adjacency.is_sparse:
            return torch.sparse.mm(adjacency, support) + self.bias
        return torch.mm(adjacency, support) + self.bias


class GCN(nn.Module):
    def __init__(self, words, hidden, fields, dropout=0.5):
        super().__init__()
        self.first = GraphConvolution(words, hidden)
        self.second = GraphConvolution(hidden, fields)
        self.dropout = dropout

    def forward(self, x, adjacency):
        x = F.dropout(x, self.dropout, self.training)
        x = F.relu(self.first(x, adjacency))
        x = F.dropout(x, self.dropout, self.training)
        return self.second(x, adjacency)


def train_step(model, optimizer, bag, adjacency, field, train_nodes):
    model.train()
    logits = model(bag, adjacency)
    loss = F.cross_entropy(logits[train_nodes], field[train_nodes])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss


@torch.no_grad()
def test(model, bag, adjacency, field, nodes):
    model.eval()
    predicted = model(bag, adjacency)[nodes].argmax(1)
    return (predicted == field[nodes]).float().mean().item()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--papers", type=int, default=1800)
    parser.add_argument("--words", type=int, default=800)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--mended", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    fields = 7
    bag, field, edges = make_citations(args.papers, args.words, fields)
    adjacency = normalised_adjacency(edges, args.papers, sparse=args.mended)
    order = torch.randperm(args.papers)
    train_nodes, test_nodes = order[: args.papers // 3], order[args.papers // 3:]
    model = GCN(args.words, args.hidden, fields)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        loss = train_step(model, optimizer, bag, adjacency, field, train_nodes)
        if step % 100 == 0:
            score = test(model, bag, adjacency, field, test_nodes)
            print(f"step {step}: loss {loss.item():.4f}, test accuracy {score:.3f} "
                  f"({time.perf_counter() - start:.1f} s)")


if __name__ == "__main__":
    main()
