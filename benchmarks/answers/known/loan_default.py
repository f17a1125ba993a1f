"""Train a credit model on a table of loans.

The loans are written to a CSV file first, read back with pandas, turned into
features and used to train a small network with one embedding per category.
"""
import argparse
import math
import os
import tempfile
import time

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

PURPOSES = ["car", "house", "study", "travel", "business", "other"]
REGIONS = ["north", "south", "east", "west"]
NUMERIC = ["amount", "months", "income", "age", "late_payments", "accounts"]


def write_loans(path, rows, seed=12):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "amount": rng.lognormal(9, 0.7, rows).round(2),
        "months": rng.integers(6, 84, rows),
        "income": rng.lognormal(10.3, 0.5, rows).round(2),
        "age": rng.integers(18, 80, rows),
        "late_payments": rng.poisson(0.6, rows),
        "accounts": rng.integers(1, 12, rows),
        "purpose": rng.choice(PURPOSES, rows),
        "region": rng.choice(REGIONS, rows),
    })
    burden = np.log(frame["amount"] / frame["income"]) + 0.5 * frame["late_payments"]
    burden += 0.4 * (frame["purpose"] == "business") - 0.01 * (frame["age"] - 40)
    frame["defaulted"] = (burden + rng.normal(0, 0.5, rows) > -0.7).astype(int)
    frame.to_csv(path, index=False)


def loan_features(row):
    """Features of one loan: numbers and category codes."""
    numbers = [
        math.log(row["amount"]), row["months"] / 12, math.log(row["income"]), row["age"] / 10,
        float(row["late_payments"]), float(row["accounts"]),
        row["amount"] / row["income"], row["amount"] / row["months"] / 1000,
    ]
    return numbers, [PURPOSES.index(row["purpose"]), REGIONS.index(row["region"])]


def features_by_row(frame):
    numbers, codes, labels = [], [], []
    for _, row in frame.iterrows():
        n, c = loan_features(row)
        numbers.append(n)
        codes.append(c)
        labels.append(float(row["defaulted"]))
    return np.array(numbers), np.array(codes), np.array(labels)


def features_by_column(frame):
    f = {name: frame[name].to_numpy(dtype=np.float64) for name in NUMERIC}
    numbers = np.stack([
        np.log(f["amount"]), f["months"] / 12, np.log(f["income"]), f["age"] / 10,
        f["late_payments"], f["accounts"],
        f["amount"] / f["income"], f["amount"] / f["months"] / 1000,
    ], axis=1)
    codes = np.stack([frame["purpose"].map(PURPOSES.index).to_numpy(),
                      frame["region"].map(REGIONS.index).to_numpy()], axis=1)
    return numbers, codes, frame["defaulted"].to_numpy(dtype=np.float64)


def load_loans(path, by_column):
    frame = pd.read_csv(path)
    numbers, codes, labels = features_by_column(frame) if by_column else features_by_row(frame)
    numbers = (numbers - numbers.mean(0)) / numbers.std(0)
    return (torch.tensor(numbers, dtype=torch.float32), torch.tensor(codes, dtype=torch.long),
            torch.tensor(labels, dtype=torch.float32))


class CreditNet(nn.Module):
    def __init__(self, numbers=8, hidden=384):
        super().__init__()
        self.purpose = nn.Embedding(len(PURPOSES), 8)
        self.region = nn.Embedding(len(REGIONS), 4)
        self.body = nn.Sequential(nn.Linear(numbers + 12, hidden), nn.ReLU(),
                                  nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, numbers, codes):
        x = torch.cat([numbers, self.purpose(codes[:, 0]), self.region(codes[:, 1])], dim=1)
        return self.body(x).squeeze(1)


def train(model, numbers, codes, labels, epochs, batch_size=512):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        start, total = time.perf_counter(), 0.0
        for rows in torch.randperm(len(labels)).split(batch_size):
            loss = F.binary_cross_entropy_with_logits(model(numbers[rows], codes[rows]),
                                                      labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch}: loss {total / len(labels):.4f} "
              f"({time.perf_counter() - start:.1f} s)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loans", type=int, default=130_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "loans.csv")
        write_loans(path, args.loans)
        numbers, codes, labels = load_loans(path, by_column=args.mended)
    train(CreditNet(), numbers, codes, labels, args.epochs)


if __name__ == "__main__":
    main()
