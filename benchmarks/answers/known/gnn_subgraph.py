"""Node classification with GraphSAGE on mini-batches of 2-hop neighbourhoods."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_graph(n, e, n_classes, dim, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, n_classes, (n,), generator=g)
    src = torch.randint(0, n, (e,), generator=g)
    dst = torch.randint(0, n, (e,), generator=g)
    centers = torch.randn(n_classes, dim, generator=g)
    x = centers[y] + 1.5 * torch.randn(n, dim, generator=g)
    return x, y, torch.stack([src, dst])


class NeighbourLoader:
    def __init__(self, edge_index, num_nodes, batch_size, hops=2):
        self.edge_index = edge_index
        self.num_nodes = num_nodes
        self.batch_size = batch_size
        self.hops = hops
        self.gen = torch.Generator().manual_seed(1)

    def incoming(self, nodes):
        mask = torch.isin(self.edge_index[1], nodes)
        return self.edge_index[:, mask]

    def __call__(self, n_batches):
        for _ in range(n_batches):
            seeds = torch.randperm(self.num_nodes, generator=self.gen)[: self.batch_size]
            nodes = seeds
            for _ in range(self.hops):
                edges = self.incoming(nodes)
                extra = torch.unique(edges[0])
                extra = extra[~torch.isin(extra, nodes)]
                nodes = torch.cat([nodes, extra])
            local = torch.full((self.num_nodes,), -1, dtype=torch.long)
            local[nodes] = torch.arange(len(nodes))
            yield seeds, nodes, local[edges]


class IndexedNeighbourLoader(NeighbourLoader):
    def __init__(self, edge_index, num_nodes, batch_size, hops=2):
        super().__init__(edge_index, num_nodes, batch_size, hops)
        order = torch.argsort(edge_index[1], stable=True)
        self.src = edge_index[0][order]
        self.deg = torch.bincount(edge_index[1], minlength=num_nodes)
        self.start = torch.cumsum(self.deg, 0) - self.deg

    def incoming(self, nodes):
        deg = self.deg[nodes]
        offset = torch.arange(int(deg.sum())) - torch.repeat_interleave(torch.cumsum(deg, 0) - deg, deg)
        pos = torch.repeat_interleave(self.start[nodes], deg) + offset
        return torch.stack([self.src[pos], torch.repeat_interleave(nodes, deg)])


class SAGEConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.self_lin = nn.Linear(cin, cout)
        self.nbr_lin = nn.Linear(cin, cout, bias=False)

    def forward(self, x, edges):
        src, dst = edges
        agg = torch.zeros_like(x).index_add_(0, dst, x[src])
        cnt = torch.bincount(dst, minlength=x.size(0)).clamp(min=1).unsqueeze(1)
        return self.self_lin(x) + self.nbr_lin(agg / cnt)


class SAGE(nn.Module):
    def __init__(self, cin, hidden, n_classes):
        super().__init__()
        self.c1 = SAGEConv(cin, hidden)
        self.c2 = SAGEConv(hidden, n_classes)

    def forward(self, x, edges, n_seeds):
        h = F.relu(self.c1(x, edges))
        return self.c2(h, edges)[:n_seeds]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=40_000)
    parser.add_argument("--edges", type=int, default=400_000)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    x, y, edge_index = make_graph(args.nodes, args.edges, 8, 64)
    loader_cls = IndexedNeighbourLoader if args.mended else NeighbourLoader
    loader = loader_cls(edge_index, args.nodes, args.batch_size)
    model = SAGE(64, 96, 8)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step, (seeds, nodes, edges) in enumerate(loader(args.steps), 1):
        out = model(x[nodes], edges, len(seeds))
        loss = F.cross_entropy(out, y[seeds])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            acc = (out.argmax(1) == y[seeds]).float().mean().item()
            print(f"step {step} loss {loss.item():.3f} acc {acc:.2f} subgraph {len(nodes)} nodes")


if __name__ == "__main__":
    main()
