"""Score card transactions with a feature-token transformer and write a review table."""
import argparse
import os
import tempfile

import numpy as np
import pandas as pd
import torch
import torch.nn as nn

FEATURES = ["amount", "hour", "distance_km", "merchant_risk", "n_last_day", "n_last_hour",
            "age_days", "balance", "foreign", "contactless"]


def make_transactions(n, seed=0):
    rng = np.random.default_rng(seed)
    df = pd.DataFrame({f: rng.standard_normal(n) for f in FEATURES}).astype(np.float32)
    df["amount"] = rng.lognormal(3, 1, n).astype(np.float32)
    df["hour"] = rng.integers(0, 24, n).astype(np.float32)
    df["card_id"] = rng.integers(10**6, 10**7, n)
    return df


class FeatureTransformer(nn.Module):
    def __init__(self, n_features, dim=96, layers=2):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(n_features, dim) * 0.1)
        self.shift = nn.Parameter(torch.randn(n_features, dim) * 0.1)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        tokens = x.unsqueeze(-1) * self.scale + self.shift
        return self.head(self.body(tokens).mean(1)).squeeze(-1)


@torch.inference_mode()
def score(model, df, batch_size):
    x = torch.from_numpy(df[FEATURES].to_numpy())
    x = (x - x.mean(0)) / x.std(0)
    return torch.cat([model(chunk).sigmoid() for chunk in x.split(batch_size)]).numpy()


class ReviewTable:
    """One line per transaction with the decision and the reason for it."""

    COLUMNS = ["card_id", "amount", "score", "decision", "reason"]

    def __init__(self):
        self.frame = pd.DataFrame(columns=self.COLUMNS)

    def decide(self, tx, p):
        decision = "block" if p > 0.55 else "review" if p > 0.5 else "pass"
        reason = "amount" if tx.amount > 60 else "night" if tx.hour < 5 else "pattern"
        return {"card_id": tx.card_id, "amount": tx.amount, "score": float(p),
                "decision": decision, "reason": reason}

    def fill(self, df, scores):
        for tx, p in zip(df.itertuples(), scores):
            row = pd.DataFrame([self.decide(tx, p)])
            self.frame = pd.concat([self.frame, row], ignore_index=True)
        return self.frame


class ListReviewTable(ReviewTable):
    def fill(self, df, scores):
        rows = [self.decide(tx, p) for tx, p in zip(df.itertuples(), scores)]
        self.frame = pd.DataFrame(rows, columns=self.COLUMNS)
        return self.frame


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--transactions", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    df = make_transactions(args.transactions)
    model = FeatureTransformer(len(FEATURES)).eval()
    scores = score(model, df, args.batch_size)
    table = ListReviewTable() if args.mended else ReviewTable()
    review = table.fill(df, scores)
    with tempfile.TemporaryDirectory() as out:
        review.to_csv(os.path.join(out, "review.csv"), index=False)
    print(review["decision"].value_counts().to_dict(), f"mean score {scores.mean():.4f}")


if __name__ == "__main__":
    main()
