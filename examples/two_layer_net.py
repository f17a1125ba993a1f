"""The two-layer network of the classic lecture on deep-learning software.

A batch of random data is fitted by a linear layer, a ReLU and another linear layer, and the
weights are updated by hand: there is no optimizer whose steps could be counted. With `--plain`
there are no modules either, only tensors and autograd.

    python -m profstack run examples/two_layer_net.py
    python -m profstack run examples/two_layer_net.py --plain
"""

import argparse

import torch
from torch import nn

BATCH, INPUTS, HIDDEN, OUTPUTS = 64, 1000, 100, 10


def train_modules(x: torch.Tensor, y: torch.Tensor, iterations: int, every: int) -> int:
    """Fit with `nn.Sequential` and `nn.MSELoss`; returns the number of updates made."""
    model = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, OUTPUTS),
    )
    loss_function = nn.MSELoss(reduction="sum")
    learning_rate = 1e-4
    steps = 0
    for iteration in range(iterations):
        loss = loss_function(model(x), y)
        if iteration % every == 0 or iteration == iterations - 1:
            print(f"iteration {iteration:4d}: loss {loss.item():.6e}")
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= learning_rate * parameter.grad
        steps += 1
    return steps


def train_plain(x: torch.Tensor, y: torch.Tensor, iterations: int, every: int) -> int:
    """Fit with two weight matrices and autograd; returns the number of updates made."""
    w1 = torch.randn(INPUTS, HIDDEN, requires_grad=True)
    w2 = torch.randn(HIDDEN, OUTPUTS, requires_grad=True)
    learning_rate = 1e-6
    steps = 0
    for iteration in range(iterations):
        prediction = x.mm(w1).clamp(min=0).mm(w2)
        loss = (prediction - y).pow(2).sum()
        if iteration % every == 0 or iteration == iterations - 1:
            print(f"iteration {iteration:4d}: loss {loss.item():.6e}")
        loss.backward()
        with torch.no_grad():
            w1 -= learning_rate * w1.grad
            w2 -= learning_rate * w2.grad
            w1.grad = None
            w2.grad = None
        steps += 1
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", action="store_true", help="tensors and autograd only")
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--every", type=int, default=100, help="print the loss this often")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    x = torch.randn(BATCH, INPUTS)
    y = torch.randn(BATCH, OUTPUTS)
    train = train_plain if options.plain else train_modules
    print(f"steps: {train(x, y, options.iterations, options.every)}")


if __name__ == "__main__":
    main()
