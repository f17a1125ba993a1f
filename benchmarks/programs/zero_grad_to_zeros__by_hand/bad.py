"""A model that is updated by hand, and whose gradients are zeroed by hand, tensor by tensor."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 200


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on the same batch again and again."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(40)])
    parameters = list(model.parameters())
    inputs = torch.randn(8, 64)
    for _ in range(steps):
        loss = model(inputs).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 1e-4 * parameter.grad
                parameter.grad.zero_()  # @zero
        after_step()


if __name__ == "__main__":
    main()
