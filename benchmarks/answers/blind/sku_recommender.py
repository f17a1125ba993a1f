"""Train a two-table recommender on synthetic shop visits.

Every visit is a (customer, article) pair with a label that says whether the
article was bought.  Tastes are hidden vectors, so there is something to learn.
"""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class Visits:
    """An endless stream of visits with a popularity bias."""

    def __init__(self, customers, articles, taste_dim=8, seed=3):
        self.generator = torch.Generator().manual_seed(seed)
        self.customers, self.articles = customers, articles
        self.customer_taste = torch.randn(customers, taste_dim, generator=self.generator)
        self.article_taste = torch.randn(articles, taste_dim, generator=self.generator)

    def skewed(self, count, limit):
        u = torch.rand(count, generator=self.generator)
        return (u.pow(2.5) * limit).long().clamp_(max=limit - 1)

    def batch(self, size):
        customers = self.skewed(size, self.customers)
        articles = self.skewed(size, self.articles)
        affinity = (self.customer_taste[customers] * self.article_taste[articles]).sum(1)
        noise = torch.randn(size, generator=self.generator)
        return customers, articles, (affinity + noise > 0).float()


class Recommender(nn.Module):
    def __init__(self, customers, articles, dim=32, hidden=256, sparse=False):
        super().__init__()
        self.customer_table = nn.Embedding(customers, dim, sparse=sparse)
        self.article_table = nn.Embedding(articles, dim, sparse=sparse)
        self.tower = nn.Sequential(
            nn.Linear(3 * dim, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden // 2), nn.ReLU(),
            nn.Linear(hidden // 2, 1),
        )
        for table in (self.customer_table, self.article_table):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, customers, articles):
        c = self.customer_table(customers)
        a = self.article_table(articles)
        return self.tower(torch.cat([c, a, c * a], dim=1)).squeeze(1)


def accuracy(model, visits, size=4096):
    with torch.no_grad():
        customers, articles, bought = visits.batch(size)
        predicted = model(customers, articles) > 0
        return (predicted == bought.bool()).float().mean().item()


def train(model, visits, args):
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    start = time.perf_counter()
    average = None
    for step in range(1, args.steps + 1):
        customers, articles, bought = visits.batch(args.batch_size)
        logits = model(customers, articles)
        loss = F.binary_cross_entropy_with_logits(logits, bought)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            value = loss.item()
            average = value if average is None else 0.8 * average + 0.2 * value
        if step % 100 == 0:
            print(f"step {step}: loss {average:.4f} ({time.perf_counter() - start:.1f} s)")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--customers", type=int, default=90_000)
    parser.add_argument("--articles", type=int, default=40_000)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--mended", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    visits = Visits(args.customers, args.articles)
    model = Recommender(args.customers, args.articles, sparse=args.mended)
    train(model, visits, args)
    print(f"accuracy {accuracy(model, visits):.4f}")


if __name__ == "__main__":
    main()
