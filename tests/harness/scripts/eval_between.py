"""Evaluation before the first epoch, between epochs and after the last."""

import probe

probe.first_line()

import torch
from torch import nn


def evaluate(model, data, labels):
    model.eval()
    with torch.no_grad():
        losses = [
            nn.functional.cross_entropy(model(data[i : i + 16]), labels[i : i + 16])
            for i in range(0, len(data), 16)
        ]
    model.train()
    print("eval", torch.stack(losses).mean().item().hex())


def main():
    probe.seed(6)
    data, labels = torch.randn(128, 20), torch.randint(3, (128,))
    model = nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps = 0
    evaluate(model, data, labels)
    for _ in range(6):
        for batch in torch.randperm(128).split(16):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            steps += 1
            print(loss.item().hex())
        evaluate(model, data, labels)
    probe.last_step(model=model, optimizer=optimizer)
    print("steps", steps)


if __name__ == "__main__":
    main()
