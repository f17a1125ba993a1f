"""Vertex labelling on a mesh-like graph by a transformer with spectral position features."""
import argparse

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.sparse.linalg import eigsh
from scipy.spatial import cKDTree


def make_mesh(n, k=6, seed=0):
    rng = np.random.default_rng(seed)
    pts = rng.random((n, 3))
    pts[:, 2] = 0.2 * np.sin(6 * pts[:, 0]) * np.cos(5 * pts[:, 1])
    _, nbr = cKDTree(pts).query(pts, k + 1)
    rows = np.repeat(np.arange(n), k)
    cols = nbr[:, 1:].ravel()
    adj = sp.coo_matrix((np.ones(len(rows)), (rows, cols)), shape=(n, n)).tocsr()
    adj = adj.maximum(adj.T)
    labels = ((4 * pts[:, 0]).astype(int) + (2 * pts[:, 1]).astype(int)) % 5
    return pts.astype(np.float32), adj, torch.from_numpy(labels)


def laplacian(adj):
    d = np.asarray(adj.sum(1)).ravel()
    inv = sp.diags(1 / np.sqrt(d))
    return sp.identity(adj.shape[0]) - inv @ adj @ inv


def spectral_features(adj, k):
    lap = torch.from_numpy(laplacian(adj).toarray())
    values, vectors = torch.linalg.eigh(lap)
    return vectors[:, 1:k + 1].float()


def spectral_features_sparse(adj, k):
    values, vectors = eigsh(laplacian(adj).tocsc(), k=k + 1, sigma=-1e-3, which="LM", v0=np.ones(adj.shape[0]))
    order = np.argsort(values)
    return torch.from_numpy(vectors[:, order[1:]].astype(np.float32))


class Patches:
    """Draws random local patches of the mesh as token sequences."""

    def __init__(self, pts, pe, labels, size):
        self.tree = cKDTree(pts)
        self.pts, self.pe, self.labels, self.size = torch.from_numpy(pts), pe, labels, size
        self.rng = np.random.default_rng(1)

    def batch(self, n):
        centers = self.rng.integers(0, len(self.pts), n)
        _, idx = self.tree.query(self.pts[centers].numpy(), self.size)
        idx = torch.from_numpy(idx)
        sign = torch.from_numpy(self.rng.choice([-1.0, 1.0], self.pe.size(1))).float()
        x = torch.cat([self.pts[idx] - self.pts[centers][:, None], self.pe[idx] * sign * len(self.pts) ** 0.5], -1)
        return x, self.labels[idx]


class PatchTransformer(nn.Module):
    def __init__(self, n_in, n_classes, dim=96, layers=2):
        super().__init__()
        self.inp = nn.Linear(n_in, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, n_classes)

    def forward(self, x):
        return self.out(self.body(self.inp(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vertices", type=int, default=2200)
    parser.add_argument("--pe-dim", type=int, default=16)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    pts, adj, labels = make_mesh(args.vertices)
    position = spectral_features_sparse if args.mended else spectral_features
    patches = Patches(pts, position(adj, args.pe_dim), labels, size=48)
    model = PatchTransformer(3 + args.pe_dim, 5)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for step in range(1, args.steps + 1):
        x, y = patches.batch(args.batch_size)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
