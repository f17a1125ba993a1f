"""Hyper-parameter sweep of an MLP on household energy readings kept in a CSV file."""
import argparse
import itertools
import os
import tempfile

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F

COLUMNS = ["ts"] + [f"sensor_{i}" for i in range(14)] + ["usage"]


def write_csv(path, n_rows, block=2000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((block, 14))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * rng.standard_normal(block)
    stamps = pd.date_range("2023-01-01", periods=block, freq="min").strftime("%Y-%m-%d %H:%M:%S")
    lines = [",".join([t] + [f"{v:.5f}" for v in row] + [f"{u:.5f}"]) for t, row, u in zip(stamps, x, y)]
    body = "\n".join(lines) + "\n"
    with open(path, "w") as f:
        f.write(",".join(COLUMNS) + "\n")
        for _ in range(n_rows // block):
            f.write(body)


def load_table(path):
    df = pd.read_csv(path, parse_dates=["ts"])
    df["hour"] = df["ts"].dt.hour + df["ts"].dt.minute / 60
    df["night"] = (df["hour"] < 6).astype(float)
    features = [c for c in df.columns if c.startswith("sensor_")] + ["hour", "night"]
    for c in features:
        lo, hi = df[c].quantile([0.01, 0.99])
        df[c] = df[c].clip(lo, hi)
    x = (df[features] - df[features].mean()) / df[features].std()
    return (torch.tensor(x.to_numpy(), dtype=torch.float32),
            torch.tensor(df["usage"].to_numpy(), dtype=torch.float32))


class MLP(nn.Module):
    def __init__(self, n_in, width, depth, dropout):
        super().__init__()
        dims = [n_in] + [width] * depth
        self.hidden = nn.ModuleList([nn.Linear(a, b) for a, b in zip(dims, dims[1:])])
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.hidden:
            x = self.dropout(F.silu(layer(x)))
        return self.out(x).squeeze(-1)


class Trial:
    def __init__(self, path, lr, width, dropout, steps, batch_size, table=None):
        self.lr, self.width, self.dropout = lr, width, dropout
        self.steps, self.batch_size = steps, batch_size
        self.x, self.y = table if table is not None else load_table(path)

    def fit(self):
        torch.manual_seed(0)
        n_val = len(self.x) // 100
        model = MLP(self.x.size(1), self.width, 3, self.dropout)
        opt = torch.optim.AdamW(model.parameters(), lr=self.lr, foreach=True)
        for _ in range(self.steps):
            idx = torch.randint(n_val, len(self.x), (self.batch_size,))
            loss = F.mse_loss(model(self.x[idx]), self.y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            return F.mse_loss(model(self.x[:n_val]), self.y[:n_val]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    grid = list(itertools.product([1e-3, 3e-3], [192, 256], [0.0, 0.2]))
    with tempfile.TemporaryDirectory() as root:
        path = os.path.join(root, "energy.csv")
        write_csv(path, args.rows)
        table = load_table(path) if args.mended else None
        results = []
        for lr, width, dropout in grid:
            trial = Trial(path, lr, width, dropout, args.steps, args.batch_size, table)
            results.append((trial.fit(), lr, width, dropout))
            print(f"lr {lr} width {width} dropout {dropout}: val mse {results[-1][0]:.4f}")
    print("best:", min(results))


if __name__ == "__main__":
    main()
